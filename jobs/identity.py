"""What a run's numbers rest on besides its axes: site, file system, tracer, coverage, versions.

Asks installed packages and the launcher, and imports no framework. Goes into the run's id.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from hpcckpt import environment, registry
from hpcckpt.errors import SiteError, SpecError, TraceError
from hpcckpt.host import mount_of
from hpcckpt.tracing.io.base import choose
from jobs import launchers
from jobs.site import Site


def tracer_name(site: Site, tracer: str | None) -> str:
    """The I/O tracer of the runs: the one asked for, else the site's, else the best that is there."""
    if site.darshan_module is not None and tracer is None:
        return "darshan"  # the module brings it to the nodes; where one submits it may not be
    try:
        return choose(tracer or site.tracer, site.darshan_lib, os.environ)[0].name
    except TraceError as error:
        raise SiteError(str(error)) from error
    except SpecError as error:
        raise SpecError(str(error).replace("io:", "tracer:", 1)) from error


def of_site(site: Site, scratch: Path, tracer: str) -> dict[str, str]:
    """The part that all runs of a campaign share."""
    return {
        "site": site.name,
        "scratch_filesystem": mount_of(scratch).filesystem,
        "tracer": tracer,
        "launcher": _launcher(site),
    }


def _launcher(site: Site) -> str:
    """The launcher's version. Where the job's modules bring it, the submitting side may not have it."""
    try:
        return launchers.find(site.launcher, site.python).version
    except launchers.NotHereError as error:
        if site.executor == "local":
            raise
        return f"{site.launcher}: {error.short}"


def of_parts(framework: str, format_: str, python: str | None = None) -> dict[str, str]:
    """The part that goes with a framework and a format: library versions, declared coverage."""
    low, high = registry.load("hpcckpt.formats", format_).expected_coverage
    return {"expected_coverage": f"{low:g},{high:g}"} | _versions(framework, python)


@cache
def _installed(python: str) -> dict[str, str]:
    return environment.packages(python)  # starts that Python, once for a campaign


def _versions(framework: str, python: str | None) -> dict[str, str]:
    """Versions of the packages that a framework declares, in the Python that will run it."""
    installed = environment.packages() if python is None else _installed(python)
    names = registry.load("hpcckpt.frameworks", framework).packages
    return {name: installed.get(name, "not installed") for name in sorted(names)}
