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

from analysis.readers.darshan import DarshanLog, read_log, traced_bytes, zero_ns
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
    calls, reason = _calls(logs, beacons)
    found = {}
    for directory in dict.fromkeys(save.directory for save in saves):
        mine = sorted((save for save in saves if save.directory == directory), key=lambda save: save.begin_ns)
        parts = [traced_bytes(log, directory) for log in logs]
        total = sum(part.by_rank.get(rank, 0) for part in parts)
        # The names at the time of the write: a file may have been renamed into the directory.
        here = (
            None
            if calls is None
            else calls.below({path for part in parts for path, _ in part.by_written_name})
        )
        length = 0 if here is None else int(here.length.sum())
        if len(mine) == 1:
            if here is not None and length < TIMED_SHARE * total:
                found[mine[0].generation] = Traced(
                    bytes=total, calls=None, calls_reason=f"calls with times hold {length} of {total} bytes"
                )
            else:
                found[mine[0].generation] = Traced(bytes=total, calls=here, calls_reason=reason)
            continue
        if here is None or length != total:
            why = reason or f"calls with times hold {length} of {total} bytes"
            return {}, f"generations share a directory and only times tell them apart: {why}"
        found |= _by_time(here, mine)
    return found, None


def _by_time(calls: Calls, saves: Sequence[Save]) -> dict[int, Traced]:
    """Calls of saves into one directory: a call belongs to the last save that had begun before it."""
    last = np.searchsorted(np.array([save.begin_ns for save in saves]), calls.begin_ns, side="right") - 1
    found = {}
    for index, save in enumerate(saves):
        mine = calls.where(last == index)
        found[save.generation] = Traced(bytes=int(mine.length.sum()), calls=mine)
    return found


class _Placed(msgspec.Struct, frozen=True):
    """All write calls of a rank, with the file that each went to."""

    path: npt.NDArray[np.object_]
    calls: Calls

    def below(self, paths: set[str]) -> Calls:
        """The calls into these files."""
        chosen = np.array([path in paths for path in self.path.tolist()], dtype=bool)
        return self.calls.where(chosen)


def _calls(logs: Sequence[DarshanLog], beacons: Sequence[Beacon]) -> tuple[_Placed | None, str | None]:
    """Write calls on the rank's clock, or why they cannot be put there."""
    marks = [(beacon.path, beacon.before_ns, beacon.after_ns) for beacon in beacons]
    paths, parts = [np.empty(0, dtype=object)], [no_calls()]
    for log in logs:
        segments = log.segments
        if not len(segments):
            continue
        try:
            zero = zero_ns(log, marks)
        except TraceError as error:
            return None, str(error).removeprefix(f"{log.source}: ")
        begin, end = zero.on_clock(segments.start_s), zero.on_clock(segments.end_s)
        paths.append(segments.path)
        parts.append(Calls(begin_ns=begin, end_ns=end, length=segments.length.astype(np.int64)))
    begin, end, length = (
        np.concatenate([getattr(p, name) for p in parts]) for name in Calls.__struct_fields__
    )
    return _Placed(np.concatenate(paths), Calls(begin_ns=begin, end_ns=end, length=length)), None
