"""Who starts the ranks: `mpirun` (Open MPI 4 and 5) and `srun`, as data, turned into a command line.

Finding a launcher asks the machine; everything else is pure. Which one a site uses is the site's fact.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hpcckpt.errors import SiteError, nearest
from hpcckpt.experiment import Point

INHERITED = ("OMPI_", "PMIX_", "PMI_", "PRTE_")
"""Variables of a surrounding MPI job: ranks that inherit them join the wrong job, or hang."""


@dataclass(frozen=True)
class Launcher:
    """One launcher program: its arguments, with {nodes}, {ranks} and {ranks_per_node} to fill in."""

    command: str
    one_machine: tuple[str, ...]
    """All ranks on this machine, whatever its number of cores."""
    many_nodes: tuple[str, ...]
    """Ranks in blocks: rank // ranks_per_node is the node."""
    version: str
    """Expression that matches what `COMMAND --version` prints for this launcher; its group is the version."""
    environment: Mapping[str, str] = field(default_factory=dict)
    crowded: Mapping[str, str] = field(default_factory=dict)
    """Added where ranks outnumber cores."""


ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}  # containers and test machines
YIELD = {"OMPI_MCA_mpi_yield_when_idle": "1"}  # a collective that spins starves the rank that it waits for
COUNT = ("-n", "{ranks}")
FREE = ("--bind-to", "none")
SHARED = ("--overcommit", "--cpu-bind=none", "--kill-on-bad-exit=1", "--unbuffered")
LAUNCHERS = (
    Launcher(
        command="mpirun",
        one_machine=(*COUNT, "--map-by", ":OVERSUBSCRIBE", *FREE),
        many_nodes=(*COUNT, "--map-by", "ppr:{ranks_per_node}:node:OVERSUBSCRIBE", *FREE),
        version=r"\(Open MPI\) (5\.\S+)",
        environment=ROOT,
        crowded=YIELD,
    ),
    Launcher(
        command="mpirun",
        one_machine=(*COUNT, "--oversubscribe", *FREE),
        many_nodes=(*COUNT, "--map-by", "ppr:{ranks_per_node}:node", "--oversubscribe", *FREE),
        version=r"\(Open MPI\) (4\.\S+)",
        environment=ROOT,
        crowded=YIELD,
    ),
    Launcher(
        command="srun",
        one_machine=("--nodes=1", "--ntasks={ranks}", *SHARED),
        many_nodes=(
            "--nodes={nodes}", "--ntasks={ranks}", "--ntasks-per-node={ranks_per_node}",
            "--distribution=block", *SHARED,
        ),
        version=r"slurm(?:-wlm)? (\S+)",
        crowded=YIELD,
    ),
)  # fmt: skip


class NotHereError(SiteError):
    """A known launcher that this machine does not have."""

    short = "not on the submitting side"


@dataclass(frozen=True)
class Found:
    """A launcher on this machine."""

    launcher: Launcher
    path: str
    version: str
    """As the program prints it."""


def find(command: str, python: str | None = None) -> Found:
    """The launcher `command`: beside the Python of a virtual environment first, else on PATH.

    An MPI that lies in the ranks' environment is the one that they load, so its launcher must start them.
    """
    known = {launcher.command for launcher in LAUNCHERS}
    if command not in known:
        raise SiteError(f"launcher: unknown name {command!r}; {nearest(command, known)}")
    beside = environment_bin(python or sys.executable)
    path = (shutil.which(command, path=str(beside)) if beside else None) or shutil.which(command)
    if path is None:
        raise NotHereError(
            f"launcher: no {command} beside Python or on PATH; install an MPI or load the site's module"
        )
    said = _ask(path)
    for launcher in LAUNCHERS:
        if launcher.command == command and re.search(launcher.version, said):
            return Found(launcher, path, said)
    if not os.environ.get("HOME"):  # Open MPI then says nothing but that
        raise SiteError(f"launcher: {path} --version says {said!r} and HOME is not set; set HOME")
    raise SiteError(f"launcher: {path} says {said!r}, which is no version this release can start ranks with")


def environment_bin(python: str) -> Path | None:
    """Folder of the programs of the virtual environment that `python` belongs to; None if to none."""
    folder = Path(python).absolute().parent
    return folder if (folder.parent / "pyvenv.cfg").exists() else None


def _ask(path: str) -> str:
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SiteError(f"launcher: {path} --version does not answer: {error}") from error
    return ((done.stdout or done.stderr).strip().splitlines() or [""])[0]


def argv(found: Found, point: Point, one_machine: bool, extra: list[str], program: list[str]) -> list[str]:
    """The command line that starts all ranks of `point` with `program`."""
    counts = {
        "nodes": point.nodes,
        "ranks": point.nodes * point.ranks_per_node,
        "ranks_per_node": point.ranks_per_node,
    }
    flags = found.launcher.one_machine if one_machine else found.launcher.many_nodes
    return [found.path, *(flag.format(**counts) for flag in flags), *extra, *program]


def environment(
    found: Found, inherited: Mapping[str, str], site: Mapping[str, str], *, local: bool, crowded: bool
) -> dict[str, str]:
    """What the launcher gets: what is inherited without a surrounding job, its own, the site's."""
    drop = (*INHERITED, "SLURM_") if local else INHERITED
    kept = {key: value for key, value in inherited.items() if not key.startswith(drop)}
    return {**kept, **found.launcher.environment, **(found.launcher.crowded if crowded else {}), **site}


def cores_here() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))
