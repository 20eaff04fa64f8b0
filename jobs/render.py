"""A run and a site become script text. Pure: equal input, equal text; nothing is written or started.

Templates hold no arithmetic and no framework names; what they need is worked out here. A key that a
template uses and a site lacks is a SiteError that names it.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from hpcckpt.errors import SiteError, SubmitError
from hpcckpt.experiment import Job, Run
from hpcckpt.restart.spec import extra_legs
from hpcckpt.rundir import LegDir, RunDir
from jobs.site import Site

TEMPLATES = Path(__file__).resolve().parent.parent / "templates"
LOG_DIR = "{log_dir}"
"""What a tracer writes where the rank's own log directory belongs."""
STARTUP_S = 120.0
"""Allowed on top of the legs' limits: start, conversion of logs, cleaning up."""


class _Missing(jinja2.StrictUndefined):
    """Reports a missing key by its bare name, so that the error can say whose key it is."""

    def __init__(self, hint: Any = None, obj: Any = None, name: Any = None, *more: Any) -> None:
        super().__init__(str(name), obj, name, *more)


def with_log_dir(value: str) -> str:
    """Shell text of `value`, quoted, with the shell variable log_dir in each place of the placeholder."""
    return '"$log_dir"'.join(shlex.quote(part) if part else "" for part in value.split(LOG_DIR)) or "''"


def _templates() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=_Missing,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # shell text, quoted by the filters below
    )
    environment.filters["quote"] = lambda value: shlex.quote(str(value))
    environment.filters["with_log_dir"] = with_log_dir
    return environment


def _fill(template: str, whose: str, values: dict[str, Any]) -> str:
    try:
        return _templates().get_template(template).render(values)
    except jinja2.TemplateNotFound as error:
        raise SiteError(f"{whose}: no template {error.name} in {TEMPLATES}") from error
    except jinja2.UndefinedError as error:
        raise SiteError(f"{whose}: key {str(error)!r} is missing, and {template} needs it") from error


def limit_s(run: Run) -> float:
    """Seconds after which the whole job is over, whatever happens inside."""
    legs = len(run.legs) + (extra_legs(run.settings.restart) if run.settings.restart else 0)
    return run.settings.leg_limit_s * legs + STARTUP_S


def driver_command(python: str, run_dir: RunDir) -> str:
    """What submitit starts its task with: known here, so that a script can be shown without submitit."""
    return f"{shlex.quote(python)} -u -m submitit.core._submit {shlex.quote(str(run_dir.log))}"


def job_script(
    job: Job, site: Site, run_dir: RunDir, python: str, programs: Path | None, workdir: Path
) -> str:
    """The script of one run: `job.sh`, and what a dry run prints.

    `programs` is the folder of the Python environment's programs, put first on PATH.
    """
    template = "local.sh.j2" if site.executor == "local" else f"sbatch/{site.launcher}.sh.j2"
    values = {
        "run": job.run,
        "point": job.run.point,
        "campaign": job.campaign,
        "site": site.facts(),
        "time_limit": site.time or str(math.ceil(limit_s(job.run) / 60)),
        "output": _for_header(run_dir.log / "job.log") if site.executor == "slurm" else "",
        "programs": str(programs) if programs else "",
        "source": str(Path(__file__).resolve().parent.parent),
        "workdir": str(workdir),
        "command": driver_command(python, run_dir),
    }
    return _fill(template, f"site {site.name}", values)


def _for_header(path: Path) -> str:
    """A path as an option of sbatch's header can hold it: Slurm and submitit would replace %j and its like."""
    if odd := sorted(set(re.findall(r"[\"'\\#%\x00-\x1f]", str(path)))):
        raise SubmitError(
            f"{path}: Slurm's scripts cannot carry {' '.join(odd)} in a path; choose another place by --runs"
        )
    return str(path)


def rank_script(
    run_dir: RunDir,
    leg: LegDir,
    program: list[str],
    variables: Mapping[str, str],
    traced: Mapping[str, str],
    container: Sequence[str] = (),
) -> str:
    """The wrapper that each rank starts as: `traced` reaches the rank's own process and no other.

    `container` is put before it; what it starts gets `traced`, and it itself does not.
    """
    values = {
        "container": list(container),
        "logs": str(leg.darshan),
        "variables": dict(sorted(variables.items())),
        "traced": dict(sorted(traced.items())),
        "program": shlex.join([*program, str(run_dir.path), leg.name]),
    }
    return _fill("rank.sh.j2", f"run {run_dir.path.name}", values)
