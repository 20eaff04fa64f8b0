"""The daemons of a private cluster: how each is started, and how one knows that it answers.

Each function returns when its daemon answers, or raises with the end of its log.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil

from hpcckpt.errors import SubmitError
from jobs.private_slurm import places
from jobs.private_slurm.layout import CONTROLLER, Layout

LIMIT_S = 60.0
POLL_S = 0.05
QUIET_S = 0.5
"""A daemon that is not seen for so long after its start is dead."""
SLURMD = "slurmd"
SERVES = ("idle", "mix", "alloc", "comp", "resv")
"""States of a node that is there; Slurm marks those that don't answer by a star behind."""


def needed(accounting: bool) -> tuple[str, ...]:
    """Names of the controller's daemons."""
    return ("munged", "mariadbd", "slurmdbd", "slurmctld") if accounting else ("munged", "slurmctld")


def ask(layout: Layout, *command: str, timeout_s: float = 30) -> subprocess.CompletedProcess[str]:
    """Run a program of Slurm against this cluster. Never raises for what the program says."""
    env = {**os.environ, **places.environment(layout)}
    try:
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, "", f"no answer in {timeout_s:g} s")


def munged(layout: Layout) -> None:
    key = layout.munge / "key"
    key.touch(mode=0o600)
    key.write_bytes(os.urandom(1024))
    files = {"key-file": key, "socket": layout.munge_socket, "seed-file": layout.munge / "seed"}
    files |= {"pid-file": layout.munge / "pid", "log-file": layout.log_of("munged")}
    # By force: munged dislikes a socket below a folder that not everybody can enter, as pytest's are.
    command = ["munged", "--foreground", "--force", *(f"--{name}={path}" for name, path in files.items())]
    _start(layout, "munged", command)
    _wait(layout, "munged", lambda: ask(layout, "munge", "-S", str(layout.munge_socket), "-n").returncode == 0)


def database(layout: Layout) -> None:
    """MariaDB without network: its data last as long as the cluster, so nothing is ever flushed."""
    data, log = layout.database / "data", layout.log_of("mariadbd")
    install = ["mariadb-install-db", "--no-defaults", "--user=root", f"--datadir={data}"]
    done = ask(layout, *install, "--auth-root-authentication-method=socket", "--skip-test-db", timeout_s=LIMIT_S)
    if done.returncode != 0:
        raise SubmitError(f"private Slurm: mariadb-install-db failed: {(done.stderr or done.stdout).strip()[-500:]}")
    options = ["--no-defaults", "--user=root", f"--datadir={data}", f"--socket={layout.database_socket}"]
    options += ["--skip-networking", f"--pid-file={layout.run / 'mariadbd.pid'}", "--performance-schema=OFF"]
    options += ["--innodb-buffer-pool-size=64M", "--innodb-log-file-size=16M", "--innodb-lock-wait-timeout=900"]
    _start(layout, "mariadbd", ["mariadbd", *options, "--innodb-flush-log-at-trx-commit=0"], log)
    ping = ["mariadb-admin", "--no-defaults", "-uroot", f"--socket={layout.database_socket}", "ping"]
    _wait(layout, "mariadbd", lambda: ask(layout, *ping).returncode == 0)


def database_daemon(layout: Layout) -> None:
    _start(layout, "slurmdbd", ["slurmdbd", "-D"])
    _wait(layout, "slurmdbd", lambda: ask(layout, "sacctmgr", "-n", "show", "cluster").returncode == 0)


def controller(layout: Layout) -> None:
    _start(layout, "slurmctld", ["slurmctld", "-D", "-f", str(layout.conf)])
    _wait(layout, "slurmctld", lambda: ask(layout, "scontrol", "ping").returncode == 0)


def nodes(layout: Layout, names: Iterable[str]) -> None:
    """Start the nodes and return when all of them serve."""
    waiting = set(names)
    for name in sorted(waiting):
        (layout.spool / name).mkdir(exist_ok=True)
        command = [SLURMD, "-D", "-N", name, "-f", str(layout.conf)]
        places.start(layout, name, layout.log_of(f"slurmd.{name}.out"), command)

    def all_serve() -> bool:
        states = node_states(layout)
        return all(states.get(name) in SERVES for name in waiting)

    def dead() -> str | None:
        living = places.processes(layout)
        gone = next((name for name in sorted(waiting) if not runs(living.get(name, []), SLURMD)), None)
        return None if gone is None else f"slurmd.{gone}"

    _until(layout, "slurmd", all_serve, dead)


def node_states(layout: Layout) -> dict[str, str]:
    """Slurm's short word for each node, with its star where the node does not answer."""
    said = ask(layout, "sinfo", "-h", "-N", "-p", "main", "-o", "%N %t").stdout
    return dict(line.split() for line in said.splitlines() if len(line.split()) == 2)


def runs(some: Iterable[psutil.Process], daemon: str) -> bool:
    """Whether a daemon is among these processes."""
    return any(_name(process) == daemon for process in some)


def _name(process: psutil.Process) -> str:
    try:
        return "" if process.status() == psutil.STATUS_ZOMBIE else process.name()
    except psutil.Error:
        return ""


def _start(layout: Layout, daemon: str, command: list[str], log: Path | None = None) -> None:
    places.start(layout, CONTROLLER, log or layout.log_of(f"{daemon}.out"), command)


def _wait(layout: Layout, daemon: str, ready: Callable[[], bool]) -> None:
    def dead() -> str | None:
        return None if runs(places.processes(layout).get(CONTROLLER, []), daemon) else daemon

    _until(layout, daemon, ready, dead)


def _until(layout: Layout, what: str, ready: Callable[[], bool], dead: Callable[[], str | None]) -> None:
    began = time.monotonic()
    while not ready():
        waited = time.monotonic() - began
        gone = dead() if waited > QUIET_S else None
        if gone is not None:
            raise SubmitError(f"private Slurm: {gone} ended at its start: {_last_words(layout, gone)}")
        if waited > LIMIT_S:
            raise SubmitError(f"private Slurm: {what} gives no answer in {LIMIT_S:g} s: {_last_words(layout, what)}")
        time.sleep(POLL_S)


def _last_words(layout: Layout, daemon: str) -> str:
    """The end of a daemon's log, else of what it printed."""
    for log in (layout.log_of(daemon), layout.log_of(f"{daemon}.out")):
        if log.exists() and (text := log.read_text(errors="replace").strip()):
            return f"{' | '.join(text.splitlines()[-3:])} (all in {log})"
    return f"its logs in {layout.log} say nothing"
