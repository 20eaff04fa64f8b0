"""Places: the namespaces in which a cluster's processes live, and how all of a place's processes are found again.

A place (a node, or the controller) has a host name, /etc/hosts, /dev/shm and a node-local disk of its own. The mount
of that disk is the mark: whatever process sees it belongs to the place, be it a daemon, a job or something that a job
left behind. So nothing need be remembered, a crash loses nothing, and no other process can be taken for ours.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Collection, Sequence
from pathlib import Path

import psutil

from hpcckpt.errors import SubmitError
from jobs.private_slurm.layout import Layout

SHM_SIZE = "2g"
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
UNSHARE = ("unshare", "--uts", "--mount", "--propagation", "private")
KILL_LIMIT_S = 20.0
POLL_S = 0.02

# The mark comes first: a process that a failure leaves in here is found by it. The name is set through /proc because
# not every machine has a `hostname` program.
ENTER = """
mount --bind "$2/disk/$1" "$2/local"
echo "$1" > /proc/sys/kernel/hostname
mount --bind "$2/etc/hosts" /etc/hosts
mount -t tmpfs -o "size=$3" tmpfs /dev/shm
log=$4
shift 4
setsid "$@" </dev/null >>"$log" 2>&1 &
"""


def environment(layout: Layout) -> dict[str, str]:
    """A daemon's environment: nothing of the shell that happens to start the cluster reaches a job."""
    return {
        "PATH": SYSTEM_PATH,
        "LC_ALL": "C",
        "SLURM_CONF": str(layout.conf),
        "MYSQL_UNIX_PORT": str(layout.database_socket),
    }


def start(layout: Layout, place: str, log: Path, program: Sequence[str]) -> None:
    """Start a program in a fresh namespace of a place; it lives on when this process and its shell end."""
    (layout.disks / place).mkdir(parents=True, exist_ok=True)
    command = [*UNSHARE, "sh", "-ec", ENTER, "sh", place, str(layout.root), SHM_SIZE, str(log), *program]
    done = subprocess.run(
        command, env=environment(layout), cwd="/", umask=0o022, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    if done.returncode != 0:
        raise SubmitError(f"private Slurm: cannot enter {place} for {program[0]}: {done.stderr.strip()}")


def processes(layout: Layout) -> dict[str, list[psutil.Process]]:
    """All processes of the cluster by place; places without any are left out."""
    found: dict[str, list[psutil.Process]] = {}
    places: dict[str, str | None] = {}  # by mount namespace: one look for all of its processes
    for pid in psutil.pids():
        try:
            namespace = str(Path(f"/proc/{pid}/ns/mnt").readlink())
            if namespace not in places:
                places[namespace] = _place(layout, Path(f"/proc/{pid}/mountinfo").read_text())
            place = places[namespace]
            if place is not None:
                found.setdefault(place, []).append(psutil.Process(pid))
        except (OSError, psutil.Error):
            continue
    return found


def _place(layout: Layout, mounts: str) -> str | None:
    """The place whose disk is mounted as `local`: mountinfo has the mounted folder fourth, the mount point fifth."""
    for line in reversed(mounts.splitlines()):
        fields = line.split(" ")
        if fields[4] == str(layout.local):
            return fields[3].removesuffix("//deleted").rpartition("/")[2]
    return None


def kill(layout: Layout, only: Collection[str] | None = None) -> int:
    """SIGKILL for every process of these places (None: all) until there is none; how many there were.

    More than one look, because a process may fork between being seen and being killed.
    """
    end = time.monotonic() + KILL_LIMIT_S
    seen: set[int] = set()
    while True:
        left = [p for place, some in processes(layout).items() if only is None or place in only for p in some]
        if not left:
            return len(seen)
        if time.monotonic() > end:
            raise SubmitError(f"private Slurm: {_names(left)} of {layout.root} do not die; look at their state in ps")
        for process in left:
            seen.add(process.pid)
            try:
                process.send_signal(signal.SIGKILL)
            except psutil.Error:
                continue
        time.sleep(POLL_S)


def _names(some: list[psutil.Process]) -> str:
    return ", ".join(f"process {process.pid}" for process in some[:5])
