"""The host beneath a rank: its file systems, what is behind fsync, and dirty pages."""

from __future__ import annotations

import os
import socket
import statistics
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from hpcckpt.records import Drain, Probe

PROBE_WRITES = 50
PROBE_BYTES = 4096
LOW_BYTES = 16 << 20
"""Dirty and write-back pages below this count as drained."""
VOLATILE = {"tmpfs", "ramfs", "devtmpfs"}


@dataclass(frozen=True)
class Mount:
    """One line of the mount table."""

    point: str
    filesystem: str
    options: str

    @property
    def volatile_reason(self) -> str | None:
        """Why fsync reaches no device here, None where it can."""
        if self.filesystem in VOLATILE:
            return f"no device behind fsync ({self.filesystem} at {self.point})"
        if self.filesystem == "overlay" and "volatile" in self.options.split(","):
            return f"no device behind fsync (volatile overlay at {self.point})"
        return None


def mount_of(path: Path | str) -> Mount:
    """The mount that holds `path`, which need not exist yet; unknown where the system does not tell."""
    best = Mount("/", "unknown", "")
    target = os.path.realpath(path)
    try:
        lines = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return best
    for line in lines:
        _, point, filesystem, options, *_ = line.split(" ")
        point = point.replace("\\040", " ")
        inside = target == point or target.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best.point):
            best = Mount(point, filesystem, options)
    return best


def probe(directory: Path) -> Probe:
    """Median and maximum of 50 x (4 KiB write + fsync) in `directory`."""
    mount = mount_of(directory)
    path = directory / f".probe.{socket.gethostname()}.{os.getpid()}"
    times, reason = [], mount.volatile_reason
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            for _ in range(PROBE_WRITES):
                begin = time.monotonic()
                os.write(descriptor, bytes(PROBE_BYTES))
                os.fsync(descriptor)
                times.append(time.monotonic() - begin)
        finally:
            os.close(descriptor)
            path.unlink()
    except OSError as error:
        reason = f"{directory}: {error.strerror}"
    return Probe(
        host=socket.gethostname(),
        path=str(directory),
        filesystem=mount.filesystem,
        mount_options=mount.options,
        count=len(times),
        median_s=statistics.median(times) if times else None,
        max_s=max(times, default=None),
        reason=reason,
    )


def dirty_bytes() -> int:
    """Dirty and write-back pages of this host; 0 where the system does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 0
    fields = (line.split() for line in lines)
    return sum(int(f[1]) * 1024 for f in fields if f[0] in ("Dirty:", "Writeback:"))


def drain(when: str, limit_s: float) -> Drain:
    """Ask the kernel to write back, and wait until little is dirty or `limit_s` is over.

    The request runs on a thread of its own: on a shared machine it may take longer than the limit.
    """
    before, begin = dirty_bytes(), time.monotonic()
    if before > LOW_BYTES:
        threading.Thread(target=os.sync, daemon=True).start()
    while (now := dirty_bytes()) > LOW_BYTES and time.monotonic() - begin < limit_s:
        time.sleep(0.005)
    return Drain(
        when=when,
        seconds=time.monotonic() - begin,
        dirty_before_bytes=before,
        dirty_after_bytes=now,
        reached=now <= LOW_BYTES,
    )
