"""What the machine must offer before a private cluster can start: root, packages, namespaces, free ports."""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess

from hpcckpt.errors import SubmitError
from jobs.private_slurm.config import LOOPBACK
from jobs.private_slurm.layout import Shape
from jobs.private_slurm.places import SYSTEM_PATH, UNSHARE

PROGRAMS: dict[str, tuple[str, ...]] = {
    "slurm-wlm": ("slurmctld", "slurmd", "sbatch", "srun", "scancel", "scontrol", "sinfo", "squeue"),
    "munge": ("munged", "munge"),
    "util-linux": ("unshare", "setsid", "mount"),
}
FOR_ACCOUNTING: dict[str, tuple[str, ...]] = {
    "slurmdbd": ("slurmdbd",),
    "slurm-wlm": ("sacct", "sacctmgr"),
    "mariadb-server": ("mariadbd", "mariadb-install-db", "mariadb-admin"),
}
PORTS = range(20000, 32000)
"""Below the range from which the kernel hands out ports, so that none is taken by accident later."""
TRIES = 200


def check(shape: Shape) -> None:
    """Refuse, in one sentence, what can't work here."""
    missing = absent(PROGRAMS)
    for package, some in (absent(FOR_ACCOUNTING) if shape.accounting else {}).items():
        missing.setdefault(package, []).extend(some)
    if missing:
        programs = ", ".join(program for some in missing.values() for program in some)
        way_out = "" if absent(PROGRAMS) else "; or go without accounting: --no-accounting"
        raise SubmitError(
            f"private Slurm: this machine lacks {programs}: as root, apt-get install -y {' '.join(missing)}{way_out}"
        )
    need_root("start")
    done = subprocess.run([*UNSHARE, "true"], capture_output=True, text=True)
    if done.returncode != 0:
        raise SubmitError(
            f"private Slurm: no namespaces of its own here ({done.stderr.strip()}): each node needs a host name and "
            "mounts of its own; in a container, start that with --privileged or --cap-add SYS_ADMIN"
        )


def need_root(what: str) -> None:
    if os.geteuid() != 0:
        raise SubmitError(f"private Slurm: only root can {what} it, and this is user {os.geteuid()}: use sudo")


def absent(programs: dict[str, tuple[str, ...]]) -> dict[str, list[str]]:
    """Packages of which a program is missing, with those programs. An ordinary user's PATH lacks the sbin folders."""
    path = os.pathsep.join(filter(None, [os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"]))
    missing = {package: [p for p in some if shutil.which(p, path=path) is None] for package, some in programs.items()}
    return {package: some for package, some in missing.items() if some}


def free_ports(count: int) -> int:
    """The first of a block of so many ports that nobody uses; by chance, so that two clusters rarely meet."""
    for _ in range(TRIES):
        first = random.randrange(PORTS.start, PORTS.stop - count)
        if all(_free(port) for port in range(first, first + count)):
            return first
    raise SubmitError(f"private Slurm: no {count} free ports in a row from {PORTS.start} to {PORTS.stop}")


def _free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


__all__ = ["SYSTEM_PATH", "check", "free_ports", "need_root"]
