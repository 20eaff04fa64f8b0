"""The event file of the preload recorder (iotrace.c), read into one NumPy table.

Nothing here knows Darshan. The layout is the C side's; its version number guards the pair.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np

from hpcckpt.errors import TraceError

LAYOUT_VERSION = 1
SUFFIX = ".iotrace"

_HEADER = struct.Struct("<8s4I4Q4q64s40s64s")
EVENT = np.dtype(
    [
        ("op", "<u2"),
        ("error", "<u2"),
        ("thread", "<u4"),
        ("file", "<u4"),
        ("other", "<u4"),
        ("offset", "<i8"),
        ("length", "<i8"),
        ("start_ns", "<i8"),
        ("end_ns", "<i8"),
    ]
)


class Op(IntEnum):
    """What a recorded call did; the numbers are those of `enum op` in iotrace_file.h."""

    OPEN = 1
    CLOSE = 2
    WRITE = 3
    STREAM_OPEN = 4
    STREAM_WRITE = 5
    STREAM_FLUSH = 6
    STREAM_CLOSE = 7
    FSYNC = 8
    FDATASYNC = 9
    RENAME = 10
    COPY = 11
    MMAP = 12
    TRUNCATE = 13
    UNLINK = 14
    DUP = 15
    STREAM_FDOPEN = 16


@dataclass(frozen=True)
class Events:
    """One process's events, in the order in which they were begun to be recorded."""

    path: Path
    pid: int
    parent_pid: int
    host: str
    boot_id: str
    program: str
    realtime_ns: int
    """CLOCK_REALTIME and `monotonic_ns` CLOCK_MONOTONIC at the same moment, the start of the recorder."""
    monotonic_ns: int
    names: dict[int, str]
    """Path of each file number in the table; number 0 stands for no file."""
    table: np.ndarray[Any, np.dtype[np.void]]
    """Columns of EVENT; `error` is the errno (0: it succeeded), offset -1 is unknown."""
    dropped: int
    """Events that found the file full."""
    unfinished: int
    """Events that were reserved but not filled in: the process was killed inside the recorder."""
    unnamed: int
    """Opens of watched files for which there was no room."""

    def notes(self) -> list[str]:
        """What is missing from the events, in sentences; empty when nothing is known to be."""
        said = {
            f"{self.dropped} events dropped: raise HPCCKPT_IOTRACE_EVENTS": self.dropped,
            f"{self.unfinished} events unfinished: the process was killed while it recorded": self.unfinished,
            f"{self.unnamed} opens not traced: too many files or descriptors": self.unnamed,
        }
        return [f"{self.path.name}: {sentence}" for sentence, count in said.items() if count]


@dataclass(frozen=True)
class _Layout:
    events_at: int
    event_bytes: int
    capacity: int
    reserved: int

    @property
    def used(self) -> int:
        return min(self.reserved, self.capacity)

    @property
    def end(self) -> int:
        return self.events_at + self.used * self.event_bytes


def _unpack(path: Path, data: bytes) -> tuple[_Layout, tuple[Any, ...]]:
    """The header's layout and all its fields; TraceError when it isn't one of ours."""
    if len(data) < _HEADER.size or data[:8] != b"HPCCKIOT":
        raise TraceError(
            f"{path}: not an event file of the recorder (empty, truncated or foreign); leave it out"
        )
    fields = _HEADER.unpack_from(data)
    version, header_bytes, names_bytes, event_bytes, capacity, reserved = fields[1:7]
    if version != LAYOUT_VERSION or event_bytes != EVENT.itemsize:
        raise TraceError(
            f"{path}: event layout {version} with {event_bytes}-byte events, expected {LAYOUT_VERSION} with "
            f"{EVENT.itemsize}; read it with the version that wrote it, or rebuild the recorder (make setup)"
        )
    return _Layout(header_bytes + names_bytes, event_bytes, capacity, reserved), fields


def _names(area: bytes) -> dict[int, str]:
    """A file's number is the offset of its name in the name area; offset 0 is taken by an empty name."""
    found, at = {}, 1
    for name in area[1:].split(b"\0")[:-1]:
        found[at] = os.fsdecode(name)
        at += len(name) + 1
    return found


def _text(field: bytes) -> str:
    return field.split(b"\0")[0].decode("utf-8", "replace")


def read_events(path: Path) -> Events:
    """Reads an event file, of a process that lives, ended or was killed.

    Raises TraceError for a file that the recorder did not write or that is cut short.
    """
    data = path.read_bytes()
    layout, fields = _unpack(path, data)
    names_used, unnamed, pid, parent_pid, realtime_ns, monotonic_ns, host, boot_id, program = fields[7:]
    if len(data) < layout.end or names_used > layout.events_at:
        raise TraceError(
            f"{path}: cut short ({len(data)} of {layout.end} bytes); leave it out, or copy it again"
        )
    table = np.frombuffer(data, EVENT, layout.used, layout.events_at)
    whole = table["op"] != 0
    header_bytes = fields[2]
    names = _names(data[header_bytes : header_bytes + names_used])
    used = np.unique(np.concatenate([table["file"][whole], table["other"][whole]])).tolist()
    if table["op"].max(initial=0) > len(Op) or not names.keys() >= set(used) - {0}:
        raise TraceError(f"{path}: damaged: an event of an unknown kind or file; leave it out")
    return Events(
        path=path,
        pid=pid,
        parent_pid=parent_pid,
        host=_text(host),
        boot_id=_text(boot_id),
        program=_text(program),
        realtime_ns=realtime_ns,
        monotonic_ns=monotonic_ns,
        names=names,
        table=table[whole],
        dropped=max(0, layout.reserved - layout.capacity),
        unfinished=int(layout.used - whole.sum()),
        unnamed=unnamed,
    )


def shrink(path: Path) -> None:
    """Gives back the space reserved for events that never came. Only for a process that has ended."""
    with path.open("rb") as file:
        layout, _ = _unpack(path, file.read(_HEADER.size))
    if path.stat().st_size > layout.end:
        os.truncate(path, layout.end)
