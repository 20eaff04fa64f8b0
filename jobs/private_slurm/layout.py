"""Where a private cluster keeps its files, what it consists of, and the state file that says both.

Every path of the cluster's folder is named here. Starts nothing.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from hpcckpt.errors import SpecError, SubmitError

CONTROLLER = "controller"
"""Host name of the place where the cluster's own daemons run; no node."""
SOCKET_LIMIT = 107
"""Bytes of a unix socket's path on Linux."""
LONGEST_SOCKET = "/spool/node999/node999_67043328.4294967291"  # slurmstepd's, one for each step
MOST_NODES = 999


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What a person chooses about a cluster."""

    nodes: int = 8
    cpus: int = 8
    """Processors that each node claims to have, whatever the machine has: ranks share the real ones."""
    accounting: bool = True
    """Whether `sacct` answers. Many clusters have no accounting, so both must be tried."""

    def __post_init__(self) -> None:
        if not 1 <= self.nodes <= MOST_NODES:
            raise SpecError(f"--nodes: {self.nodes} must be 1 to {MOST_NODES}")
        if self.cpus < 1:
            raise SpecError(f"--cpus: {self.cpus} must be at least 1")

    @property
    def names(self) -> list[str]:
        """Host names of the nodes, which are also their names in Slurm."""
        return [f"node{number}" for number in range(1, self.nodes + 1)]

    def __str__(self) -> str:
        return f"{self.nodes} nodes of {self.cpus} CPUs, {'with' if self.accounting else 'without'} accounting"


@dataclass(frozen=True, kw_only=True)
class State:
    """What `cluster.json` says: written before the first daemon starts, removed after the last has gone."""

    shape: Shape
    port: int
    """First of the block of ports: controller, database daemon, then one for each node."""
    first_job: int
    boot: str

    def node_port(self, name: str) -> int:
        return self.port + 2 + self.shape.names.index(name)


class Layout:
    """The paths below a cluster's root."""

    def __init__(self, root: Path) -> None:
        self.root = root.expanduser().resolve()
        self.state = self.root / "cluster.json"
        self.lock = self.root / "lock"
        self.etc = self.root / "etc"
        self.conf = self.etc / "slurm.conf"
        self.database_conf = self.etc / "slurmdbd.conf"
        self.hosts = self.etc / "hosts"
        self.epilog = self.etc / "epilog"
        self.log = self.root / "log"
        self.run = self.root / "run"
        self.spool = self.root / "spool"
        self.saved = self.root / "state"
        self.munge = self.root / "munge"
        self.munge_socket = self.munge / "socket"
        self.database = self.root / "db"
        self.database_socket = self.run / "db.socket"
        self.disks = self.root / "disk"
        """A folder for each place: the node-local disk, seen inside the node as `local`."""
        self.local = self.root / "local"
        self._check()

    def _check(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9._/+@-]+", str(self.root)):  # what slurm.conf and mountinfo hold unquoted
            raise SubmitError(f"--root: {self.root}: only letters, digits and ._/+@- can stand in slurm.conf")
        longest = len(os.fsencode(f"{self.root}{LONGEST_SOCKET}"))
        if longest > SOCKET_LIMIT:
            raise SubmitError(
                f"--root: {self.root} is {longest - SOCKET_LIMIT} characters too long for the unix sockets below it; "
                f"choose a folder of at most {SOCKET_LIMIT - len(LONGEST_SOCKET)} characters"
            )

    @property
    def folders(self) -> list[Path]:
        """Everything that `up` makes and `down` removes, but the logs."""
        return [self.etc, self.run, self.spool, self.saved, self.munge, self.database, self.disks, self.local]

    def log_of(self, daemon: str) -> Path:
        return self.log / f"{daemon}.log"

    def write_state(self, state: State) -> None:
        """Whole or not at all."""
        draft = self.state.with_suffix(".new")
        draft.write_text(json.dumps(asdict(state), indent=1) + "\n")
        os.replace(draft, self.state)

    def read_state(self) -> State | None:
        """None where there is no cluster; a file that can't be read counts as none that is up."""
        try:
            fields = json.loads(self.state.read_text())
            return State(**{**fields, "shape": Shape(**fields["shape"])})
        except (OSError, ValueError, TypeError, KeyError, SpecError):
            return None


def boot_id() -> str:
    """Tells this run of the machine from the one before a restart."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def default_root(uid: int | None = None) -> Path:
    """Where a user's cluster is unless told otherwise."""
    return Path(tempfile.gettempdir()) / f"hpcckpt-slurm-{os.getuid() if uid is None else uid}"
