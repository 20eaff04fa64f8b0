"""One rank's I/O trace as checkpoints need it: bytes and write calls per generation, on the rank's own clock.

The Darshan logs themselves are read by `analysis.readers.darshan`; here they are aligned by the
beacons and cut by the directories of the generations, and by time where generations share one.
What cannot be had has a reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from analysis.readers.darshan import DarshanLog, read_log, traced_below, zero_ns
from analysis.readers.darshan_tables import FileSegments
from hpcckpt.errors import TraceError
from hpcckpt.records import Beacon, Save, Start

Ns = npt.NDArray[np.int64]

BAD_LOG = "bad_trace_log"
TIMED_SHARE = 0.99
"""Below it the calls with times are not all calls: Darshan has no times for writes through C streams."""


class Calls(msgspec.Struct, frozen=True, kw_only=True):
    """Write calls in one generation's directory; columns of equal length."""

    begin_ns: Ns
    end_ns: Ns
    length: Ns

    def where(self, chosen: npt.NDArray[np.bool_]) -> Calls:
        """The calls that are chosen."""
        return Calls(begin_ns=self.begin_ns[chosen], end_ns=self.end_ns[chosen], length=self.length[chosen])

    def union_ns(self, low: int, high: int) -> int:
        """Time within [low, high] in which at least one call was under way."""
        begin, end = np.clip(self.begin_ns, low, high), np.clip(self.end_ns, low, high)
        order = np.argsort(begin, kind="stable")
        begin, end = begin[order], end[order]
        if not len(begin):
            return 0
        # What lies before the furthest end so far is already counted.
        reached = np.maximum.accumulate(np.concatenate(([low], end[:-1])))
        return int(np.maximum(end - np.maximum(begin, reached), 0).sum())


class Traced(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank wrote for one generation."""

    bytes: int
    calls: Calls | None
    """None where calls have no times, with `calls_reason`."""
    calls_reason: str | None = None
    fsyncs: int | None = None
    """fsync and fdatasync calls on its files; None where generations share a directory, and so their files' counts."""


class RankTrace(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's trace of a leg. `reason` says why there is nothing; `bad` lists logs that were left out."""

    generations: dict[int, Traced] = {}
    reason: str | None = None
    bad: list[tuple[str, str]] = []
    """(file, reason)"""
    warnings: list[str] = []


TraceReader = Callable[[Path, Start, Sequence[Beacon], Sequence[Save]], RankTrace]


def no_calls() -> Calls:
    """The calls of a rank that made none."""
    empty = np.empty(0, dtype=np.int64)
    return Calls(begin_ns=empty, end_ns=empty, length=empty)


def read_trace(directory: Path, start: Start, beacons: Sequence[Beacon], saves: Sequence[Save]) -> RankTrace:
    """The trace that the Darshan logs in a rank's `directory` hold. Never raises for what they hold."""
    paths = sorted(directory.glob("*.darshan"))
    if not paths:
        return RankTrace(reason="no I/O log of this rank")
    logs: list[DarshanLog] = []
    bad: list[tuple[str, str]] = []
    for path in paths:
        try:
            log = read_log(path, start.rank)
        except (TraceError, OSError) as error:
            bad.append((str(path), str(error).removeprefix(f"{path}: ")))
            continue
        # A process that the rank started leaves a log of its own: not the rank's bytes.
        if log.pid in (-1, start.pid):
            logs.append(log)
    if not logs:
        return RankTrace(
            reason=f"no usable I/O log: {bad[0][1]}" if bad else "no I/O log of this process", bad=bad
        )
    generations, reason = _generations(logs, start.rank, beacons, saves)
    warnings = [warning for log in logs for warning in log.warnings]
    return RankTrace(generations=generations, reason=reason, bad=bad, warnings=warnings)


def _generations(
    logs: Sequence[DarshanLog], rank: int, beacons: Sequence[Beacon], saves: Sequence[Save]
) -> tuple[dict[int, Traced], str | None]:
    """Bytes and calls of each generation, from all logs of the rank; or why they cannot be told apart."""
    placed, reason = _placed(logs, rank, beacons)
    by_directory: dict[str, list[Save]] = {}
    for save in saves:
        by_directory.setdefault(save.directory, []).append(save)
    below = [traced_below(log, by_directory) for log in logs]
    fsyncs = _fsyncs(logs, rank)
    found: dict[int, Traced] = {}
    for directory, mine in by_directory.items():
        parts = [each[directory] for each in below]
        total = sum(part.by_rank.get(rank, 0) for part in parts)
        # The names at the time of the write: a file may have been renamed into the directory.
        names = {path for part in parts for path, each in part.by_written_name if each == rank}
        here, length = (None, 0) if placed is None else _below(placed, names)
        if len(mine) == 1:
            timed = here is None or length >= TIMED_SHARE * total
            found[mine[0].generation] = Traced(
                bytes=total,
                calls=here if timed else None,
                calls_reason=reason if timed else f"calls with times hold {length} of {total} bytes",
                fsyncs=sum(fsyncs.get(name, 0) for name in names),
            )
            continue
        if here is None or length != total:
            why = reason or f"calls with times hold {length} of {total} bytes"
            return {}, f"generations share a directory and only times tell them apart: {why}"
        found |= _by_time(here, sorted(mine, key=lambda save: save.begin_ns))
    return found, None


def _fsyncs(logs: Sequence[DarshanLog], rank: int) -> dict[str, int]:
    """How often each file was synced, by path; files that never were are left out."""
    found: dict[str, int] = {}
    for log in logs:
        mine = (log.files.fsyncs > 0) & (log.files.rank == rank)
        for path, count in zip(log.files.path[mine].tolist(), log.files.fsyncs[mine].tolist(), strict=True):
            found[path] = found.get(path, 0) + count
    return found


def _by_time(calls: Calls, saves: Sequence[Save]) -> dict[int, Traced]:
    """Calls of saves into one directory: a call belongs to the last save that had begun before it."""
    last = np.searchsorted(np.array([save.begin_ns for save in saves]), calls.begin_ns, side="right") - 1
    found = {}
    for index, save in enumerate(saves):
        mine = calls.where(last == index)
        found[save.generation] = Traced(bytes=int(mine.length.sum()), calls=mine)
    return found


class _Placed(msgspec.Struct, frozen=True):
    """All write calls of one log on the rank's clock, and where those of each file lie."""

    calls: Calls
    files: dict[str, list[FileSegments]]
    """By path, the rank's own."""


def _placed(
    logs: Sequence[DarshanLog], rank: int, beacons: Sequence[Beacon]
) -> tuple[list[_Placed] | None, str | None]:
    """Write calls on the rank's clock, or why they cannot be put there."""
    marks = [(beacon.path, beacon.before_ns, beacon.after_ns) for beacon in beacons]
    found = []
    for log in logs:
        segments = log.segments
        if not len(segments):
            continue
        try:
            zero = zero_ns(log, marks)
        except TraceError as error:
            return None, str(error).removeprefix(f"{log.source}: ")
        begin, end = zero.on_clock(segments.start_s), zero.on_clock(segments.end_s)
        files: dict[str, list[FileSegments]] = {}
        for record in segments.records:
            if record.rank == rank:
                files.setdefault(record.path, []).append(record)
        found.append(_Placed(Calls(begin_ns=begin, end_ns=end, length=segments.length), files))
    return found, None


def _below(placed: Sequence[_Placed], names: set[str]) -> tuple[Calls, int]:
    """The calls into these files, and their bytes."""
    pieces = [(log.calls, file) for log in placed for name in sorted(names) for file in log.files.get(name, ())]
    parts = [
        Calls(begin_ns=calls.begin_ns[file.part], end_ns=calls.end_ns[file.part], length=calls.length[file.part])
        for calls, file in pieces
    ]
    length = sum(file.bytes for _, file in pieces)
    if len(parts) == 1:
        return parts[0], length
    begin, end, lengths = (
        np.concatenate([np.empty(0, np.int64), *(getattr(part, name) for part in parts)])
        for name in Calls.__struct_fields__
    )
    return Calls(begin_ns=begin, end_ns=end, length=lengths), length
