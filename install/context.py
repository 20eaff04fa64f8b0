"""Where one set-up works: paths, the chosen MPI, the lock, and the environment of its commands."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from install import lockfile
from install.mpi import MACHINE, Mpi

ROOT = Path(__file__).resolve().parents[1]

DROPPED = ("PYTHONPATH", "PYTHONHOME", "MAKEFLAGS", "MFLAGS", "MAKELEVEL", "OPAL_PREFIX", "LD_PRELOAD")
"""What a shell, an outer make or another MPI must not hand on to the commands of a set-up."""

AS_ROOT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_prte_allow_run_as_root": "1",
}
TWO_RANKS_ANYWHERE = {
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMP_NUM_THREADS": "1",
}


@dataclass(frozen=True)
class Context:
    """Everything that a stage needs to know."""

    root: Path
    venv: Path
    mpi: Mpi
    pins: Mapping[str, str]
    cache: Path
    logs: Path

    @property
    def python(self) -> Path:
        return self.venv / "bin" / "python"

    @property
    def record(self) -> Path:
        """What set-up chose and found; read by the job side to start ranks."""
        return self.venv / "hpcckpt-setup.json"

    def environ(self) -> dict[str, str]:
        """The environment of a command inside the virtual environment, with the chosen MPI first."""
        kept = {name: value for name, value in os.environ.items() if name not in DROPPED}
        folders = [str(self.venv / "bin")]
        if self.mpi.kind == MACHINE:
            folders.append(self.mpi.bin)
        kept["PATH"] = os.pathsep.join([*folders, kept.get("PATH", os.defpath)])
        return {**kept, "VIRTUAL_ENV": str(self.venv), "PYTHONUNBUFFERED": "1"}

    def rank_environ(self) -> dict[str, str]:
        """The environment of an mpirun that starts two ranks, whatever the machine and the user."""
        as_root = AS_ROOT if os.geteuid() == 0 else {}
        return {**self.environ(), **TWO_RANKS_ANYWHERE, **as_root}

    def pip(self, *arguments: str) -> list[str]:
        return [str(self.python), "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments]


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Where wheels that were built here are kept: outside the clone, shared by all clones of a user."""
    if environ.get("HPCCKPT_CACHE"):
        return Path(environ["HPCCKPT_CACHE"]).absolute()
    base = environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME") or Path.home()) / ".cache"
    return Path(base) / "hpcckpt" / "wheels"


def venv_folder(environ: Mapping[str, str], root: Path = ROOT) -> Path:
    chosen = environ.get("HPCCKPT_VENV") or root / ".venv"
    return (root / chosen).absolute()


def python_tag() -> str:
    return f"cp{sys.version_info.major}{sys.version_info.minor}"


def machine_tag() -> str:
    return platform.machine()


def compiler_tag(environ: Mapping[str, str]) -> str:
    """Name and version of the C++ compiler, as it answers itself."""
    command = environ.get("CXX", "g++")
    question = [*command.split(), "-dumpfullversion", "-dumpversion"]
    result = subprocess.run(question, capture_output=True, text=True)
    return f"{Path(command.split()[0]).name}{result.stdout.strip() or 'unknown'}"


def new_context(mpi: Mpi, environ: Mapping[str, str], root: Path = ROOT) -> Context:
    venv = venv_folder(environ, root)
    logs = root / "build" / "setup-logs" / venv.name.lstrip(".")
    return Context(root, venv, mpi, lockfile.read(root, mpi.kind), cache_folder(environ), logs)
