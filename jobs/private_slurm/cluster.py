"""A private cluster as a whole: up, down, and the accidents that tests need.

How a daemon is started is `daemons`' business, where its processes live `places`'.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil

from hpcckpt.errors import SpecError, SubmitError
from jobs.private_slurm import config, daemons, machine, places
from jobs.private_slurm.layout import CONTROLLER, Layout, Shape, State, boot_id, default_root

STARTED, REPAIRED, ALREADY = "started", "repaired", "already up"
JOB_NUMBERS = 60_000_000
"""Slurm itself begins anew after 67 million."""


class Cluster:
    """Slurm with `nodes` nodes below a folder of its own. Several of them live side by side."""

    def __init__(self, root: Path | None = None, nodes: int = 8, accounting: bool = True, cpus: int = 8) -> None:
        self.layout = Layout(root or default_root())
        self.shape = Shape(nodes=nodes, cpus=cpus, accounting=accounting)

    @property
    def conf(self) -> Path:
        """What SLURM_CONF must be to use the cluster."""
        return self.layout.conf

    @property
    def environment(self) -> dict[str, str]:
        """This process's environment, with the cluster's SLURM_CONF."""
        return {**os.environ, "SLURM_CONF": str(self.conf)}

    def up(self) -> str:
        """Start what is not there: one of STARTED, REPAIRED, ALREADY. Whatever fails takes all of it down again."""
        machine.check(self.shape)
        self._own_root()
        with self._locked():
            state = self.layout.read_state()
            living = self.processes()
            if state is None or not self._controlled(state, living):
                return self._start()
            if state.shape != self.shape:
                raise SubmitError(
                    f"private Slurm: a cluster of {state.shape} is up at {self.layout.root}, not one of {self.shape}: "
                    f"stop it first, by {self.command('down')}"
                )
            dead = [name for name in self.shape.names if not daemons.runs(living.get(name, []), daemons.SLURMD)]
            for name in dead:
                self.restart_node(name)
            return REPAIRED if dead else ALREADY

    def down(self) -> int:
        """Kill every process of the cluster and remove its files but the logs; how many processes there were."""
        if not self.layout.root.exists():
            return 0
        machine.need_root("stop")
        with self._locked():
            return self._clear()

    def processes(self) -> dict[str, list[psutil.Process]]:
        """Every process of the cluster, jobs' included, by place: a node's name, or `controller`."""
        return places.processes(self.layout)

    def kill_node(self, name: str) -> int:
        """A node fails: SIGKILL for its slurmd and all of its jobs' processes. Slurm is told nothing."""
        self._known(name)
        return places.kill(self.layout, [name])

    def restart_node(self, name: str) -> None:
        """A node boots: what was left of it is gone, its disk is kept; returns when it serves."""
        self.kill_node(name)
        daemons.nodes(self.layout, [name])

    def node_states(self) -> dict[str, str]:
        """Slurm's short word for each node (`idle`, `alloc`, `down*`, ...)."""
        return daemons.node_states(self.layout)

    def run(self, *command: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
        """A program of Slurm on this cluster (`squeue`, `sbatch`, ...), in this process's environment."""
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=timeout_s)

    def missing(self) -> list[str]:
        """Daemons that should run and do not; all of them where nothing is up."""
        state = self.layout.read_state()
        shape = state.shape if state else self.shape
        living = self.processes()
        names = [d for d in daemons.needed(shape.accounting) if not daemons.runs(living.get(CONTROLLER, []), d)]
        nodes = [n for n in shape.names if not daemons.runs(living.get(n, []), daemons.SLURMD)]
        return names + [f"{daemons.SLURMD} of {name}" for name in nodes]

    def command(self, action: str) -> str:
        """What a person types for `action` on this cluster."""
        root = "" if self.layout.root == Layout(default_root()).root else f" --root {self.layout.root}"
        return f"python -m jobs.private_slurm {action}{root}"

    def _known(self, name: str) -> None:
        state = self.layout.read_state()
        names = (state.shape if state else self.shape).names
        if name not in names:
            raise SpecError(f"private Slurm: no node {name!r}; they are {names[0]} to {names[-1]}")

    def _controlled(self, state: State, living: Mapping[str, list[psutil.Process]]) -> bool:
        """Whether all that the nodes depend on lives."""
        there = living.get(CONTROLLER, [])
        return state.boot == boot_id() and all(daemons.runs(there, d) for d in daemons.needed(state.shape.accounting))

    def _start(self) -> str:
        self._clear()  # what a crash left
        try:
            self._write()
            daemons.munged(self.layout)
            if self.shape.accounting:
                daemons.database(self.layout)
                daemons.database_daemon(self.layout)
            daemons.controller(self.layout)
            daemons.nodes(self.layout, self.shape.names)
        except BaseException:  # an interruption too leaves nothing behind
            self._clear()
            raise
        return STARTED

    def _write(self) -> None:
        """Folders, state and configuration of a new cluster."""
        shutil.rmtree(self.layout.log, ignore_errors=True)
        # A job number never means two jobs, not even across clusters: whoever wrote one down asks for it later.
        first = 1000 + int(time.time()) % JOB_NUMBERS
        port = machine.free_ports(2 + self.shape.nodes)
        state = State(shape=self.shape, port=port, first_job=first, boot=boot_id())
        self.layout.write_state(state)
        for folder in (*self.layout.folders, self.layout.log):
            folder.mkdir()
            folder.chmod(0o755)
        self.layout.conf.write_text(config.slurm(self.layout, state))
        self.layout.hosts.write_text(config.hosts(state, Path("/etc/hosts").read_text()))
        # Slurm reads the machine's cgroup.conf where there is none beside its own, and must not mount anything.
        (self.layout.etc / "cgroup.conf").write_text("CgroupAutomount=no\nConstrainCores=no\n")
        self.layout.epilog.write_text(config.EPILOG)
        for file in self.layout.etc.iterdir():
            file.chmod(0o755 if file == self.layout.epilog else 0o644)
        self.layout.database_conf.touch(mode=0o600)  # slurmdbd reads it only if nobody else can
        self.layout.database_conf.write_text(config.database_daemon(self.layout, state))
        self.layout.state.chmod(0o644)

    def _clear(self) -> int:
        killed = places.kill(self.layout)
        for folder in self.layout.folders:
            shutil.rmtree(folder, ignore_errors=True)
        self.layout.state.unlink(missing_ok=True)
        return killed

    def _own_root(self) -> None:
        """Make the folder; refuse one that holds something else."""
        root = self.layout.root
        root.mkdir(mode=0o755, parents=True, exist_ok=True)
        if root.stat().st_uid != os.getuid():
            raise SubmitError(f"private Slurm: {root} belongs to user {root.stat().st_uid}; choose another --root")
        ours = {path.name for path in (self.layout.lock, self.layout.log, self.layout.state, *self.layout.folders)}
        foreign = sorted(path.name for path in root.iterdir() if path.name not in ours)
        if foreign:
            raise SubmitError(
                f"private Slurm: {root} holds {foreign[0]!r}, which no cluster made; choose another --root"
            )
        root.chmod(0o755)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One at a time: two `up` of one cluster would each tear down the other's half."""
        with self.layout.lock.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
