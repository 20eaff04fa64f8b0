"""This process's own counters in /proc: bytes written and peak memory. Linux only; elsewhere a reason."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc/self")


@dataclass(frozen=True)
class Counters:
    """Totals of this process; None with a reason where the kernel does not tell."""

    write_chars_bytes: int | None
    """Bytes handed to write calls."""
    storage_bytes: int | None
    """Bytes that this process caused to be sent to storage."""
    rss_bytes: int | None
    rss_peak_bytes: int | None
    """Highest resident size since the last `reset_peak`."""
    io_reason: str | None
    rss_reason: str | None


def _fields(name: str) -> dict[str, str]:
    lines = (PROC / name).read_text().splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def read() -> Counters:
    """All counters at this moment. Costs some hundred microseconds: keep it out of timed parts."""
    try:
        io, io_reason = _fields("io"), None
    except OSError as error:
        io, io_reason = {}, f"{PROC / 'io'}: {error.strerror}"
    try:
        status, rss_reason = _fields("status"), None
    except OSError as error:
        status, rss_reason = {}, f"{PROC / 'status'}: {error.strerror}"
    return Counters(
        write_chars_bytes=int(io["wchar"]) if "wchar" in io else None,
        storage_bytes=int(io["write_bytes"]) if "write_bytes" in io else None,
        rss_bytes=_kibibytes(status.get("VmRSS")),
        rss_peak_bytes=_kibibytes(status.get("VmHWM")),
        io_reason=io_reason,
        rss_reason=rss_reason,
    )


def reset_peak() -> str | None:
    """Let the peak start anew from the present size; the reason where the kernel refuses."""
    try:
        (PROC / "clear_refs").write_text("5")
    except OSError as error:
        return f"{PROC / 'clear_refs'}: {error.strerror}"
    return None


def _kibibytes(value: str | None) -> int | None:
    return int(value.split()[0]) * 1024 if value else None
