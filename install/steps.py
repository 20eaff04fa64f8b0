"""What each step of a set-up does. When a step is due is decided in stages.py."""

from __future__ import annotations

import json
import os
import shutil
import sys
import sysconfig
from pathlib import Path
from typing import Any

from install import horovod_build, lockfile, progress, sources
from install.context import Context
from install.errors import SetupError
from install.mpi import PYPI

RANK_LIMIT_S = 300.0
RECORDER = Path("hpcckpt/tracing")


def make_venv(context: Context) -> None:
    shutil.rmtree(context.logs, ignore_errors=True)
    command = [sys.executable, "-m", "venv", "--clear", str(context.venv)]
    progress.run(command, "virtual environment", context.logs / "venv.log", os.environ)


def drop_half_installed(site: Path) -> list[str]:
    """Remove the metadata of packages that an interrupted pip left behind, so that pip installs them again.

    pip writes INSTALLER after a package's files.
    """
    halves = [found for found in site.glob("*.dist-info") if not (found / "INSTALLER").exists()]
    for found in halves:
        shutil.rmtree(found)
    return [found.name for found in halves]


def install_packages(context: Context) -> None:
    for site in context.venv.glob("lib/python3*/site-packages"):
        drop_half_installed(site)
    wanted = context.venv / "hpcckpt-packages.txt"
    wanted.write_text(lockfile.for_pip(context.pins))
    command = context.pip("install", "--progress-bar", "off", "-r", str(wanted))
    watch = progress.watch_pip(len(context.pins))
    progress.run(command, "packages", context.logs / "packages.log", context.environ(), watch)


def install_sources(context: Context) -> None:
    sources.install_chainer(context)
    sources.fit_mpi4py(context)


def install_horovod(context: Context) -> dict[str, Any]:
    return {"horovod_wheel": horovod_build.install(context).folder()}


def check_ranks(context: Context) -> dict[str, Any]:
    """Start two ranks per framework and let them add a tensor."""
    found = {}
    script = context.root / "install" / "rank_check.py"
    for part in ("torch", "tensorflow", "chainer"):
        log = context.logs / f"ranks-{part}.log"
        command = [context.mpi.mpirun, "-np", "2", str(context.python), "-P", str(script), part]
        progress.run(command, f"two ranks with {part}", log, context.rank_environ(), limit_s=RANK_LIMIT_S)
        found[part] = read_rank_check(log.read_text())
        inside = Path(found[part]["libmpi"][0]).is_relative_to(context.venv.resolve())
        if inside != (context.mpi.kind == PYPI):
            used = found[part]["libmpi"][0]
            raise SetupError(f"{part}: ranks use {used}, which is not {context.mpi.describe()}")
    return {"ranks": found}


def read_rank_check(text: str) -> dict[str, Any]:
    """What rank 0 found. Raises SetupError when it printed nothing."""
    for line in text.splitlines():
        _, mark, rest = line.partition("RANK-CHECK ")
        if mark:
            value, _ = json.JSONDecoder().raw_decode(rest)
            return dict(value)
    raise SetupError("two ranks: rank 0 said nothing; its mpirun may have started single processes")


def install_project(context: Context) -> None:
    command = context.pip("install", "--no-deps", "--no-build-isolation", "-e", str(context.root))
    progress.run(command, "hpcckpt and its recorder", context.logs / "project.log", context.environ())
    if not recorder(context).exists():
        raise SetupError(f"{recorder(context)}: not built; see {context.logs}/project.log")


def recorder(context: Context) -> Path:
    return context.root / RECORDER / f"_iotrace{sysconfig.get_config_var('EXT_SUFFIX')}"
