"""What a Darshan log says of a rank: bytes below a directory, and the log's place on the rank's clock."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

import numpy as np

from analysis.readers.darshan_tables import Column, DarshanLog, Files
from hpcckpt.errors import TraceError

_SEEN_AT_LEAST = 0.99
"""Below this share of a file's size its bytes count as unseen; holes and rewritten headers stay above."""


@dataclass(frozen=True)
class TracedBytes:
    """Bytes written below a directory, through descriptors and streams together."""

    by_rank: dict[int, int]
    """Rank -1 holds what a reduced record without DXT does not divide among the ranks."""
    by_written_name: dict[tuple[str, int], int]
    """Per path and rank, under the name at the time of the write."""
    by_final_name: dict[tuple[str, int], int]
    """The same bytes under the name that the file was renamed to, where it was."""
    warnings: list[str]

    def add(self, written: str, final: str, rank: int, count: int) -> None:
        """Count one file's bytes of one rank."""
        self.by_rank[rank] = self.by_rank.get(rank, 0) + count
        self.by_written_name[written, rank] = self.by_written_name.get((written, rank), 0) + count
        self.by_final_name[final, rank] = self.by_final_name.get((final, rank), 0) + count
        if rank == -1 and count:
            what = f"{count} bytes of all ranks together, each rank's not measured"
            self.warnings.append(f"shared-record: {written}: {what}")


def traced_bytes(log: DarshanLog, directory: str, sizes: Mapping[str, int] | None = None) -> TracedBytes:
    """Who wrote how much below `directory`; a file counts whose written or whose final name lies there.

    `sizes` are the files' sizes on disk by path: bytes that no traced call wrote are then warned of.
    """
    found = traced_below(log, [directory])[directory]
    found.warnings.extend(_unseen(log, _renames(log.files), found.by_final_name, sizes or {}))
    return found


def traced_below(log: DarshanLog, directories: Iterable[str]) -> dict[str, TracedBytes]:
    """`traced_bytes` of many directories in one pass over the log."""
    found = {directory: TracedBytes({}, {}, {}, []) for directory in directories}
    above = _Above(found)
    renames = _renames(log.files)
    for (path, rank), count in _bytes_per_file(log).items():
        final, mine = path, above.of(path)
        if renames:
            final = _final_name(path, renames)
            mine = list(dict.fromkeys((*mine, *above.of(final))))
        for directory in mine:
            found[directory].add(path, final, rank, count)
    return found


class _Above:
    """Which of some directories a path lies below; files of one directory are looked up once."""

    def __init__(self, directories: Iterable[str]) -> None:
        self._known: dict[str, list[str]] = {}
        for directory in directories:
            self._known.setdefault(directory.rstrip("/"), []).append(directory)
        self._seen: dict[str, list[str]] = {}

    def of(self, path: str) -> list[str]:
        parent = path.rpartition("/")[0]
        if (found := self._seen.get(parent)) is None:
            found, name = [], path
            while "/" in name:
                name = name.rpartition("/")[0]
                found += self._known.get(name, [])
            self._seen[parent] = found
        return found


def _bytes_per_file(log: DarshanLog) -> dict[tuple[str, int], int]:
    """POSIX and STDIO bytes per path and rank."""
    totals: dict[tuple[str, int], int] = defaultdict(int)
    files = log.files
    columns = (files.rank, files.posix_bytes_written, files.stdio_bytes_written)
    for path, rank, posix, stdio in zip(files.path.tolist(), *(column.tolist() for column in columns), strict=True):
        if rank == -1:
            for each, count in _posix_by_rank(log, path, rank, posix):
                totals[path, each] += count
        else:
            totals[path, rank] += posix
        if stdio:
            totals[path, rank] += stdio
    return totals


def _posix_by_rank(log: DarshanLog, path: str, rank: int, posix: int) -> Iterator[tuple[int, int]]:
    """A record of rank -1 is divided by DXT, provided that DXT has all of its bytes."""
    parts = [(each, n) for (name, each), n in log.segments.totals.items() if name == path]
    if parts and sum(n for _, n in parts) == posix:
        yield from parts
    else:
        yield rank, posix


def _renames(files: Files) -> dict[str, str]:
    """Each renamed file or directory and what it became.

    A name that became several (one temporary name for every generation) is left out and keeps its
    bytes: which of them went where is a matter of time, not of names.
    """
    targets: dict[str, set[str]] = defaultdict(set)
    for path, source in zip(files.path, files.renamed_from, strict=True):
        if source:
            targets[source].add(path)
    return {source: paths.pop() for source, paths in targets.items() if len(paths) == 1}


def _final_name(path: str, renames: Mapping[str, str]) -> str:
    """The last name of a file through any number of renames, of itself or of a directory above it."""
    seen: set[str] = set()
    while renames and path not in seen:
        seen.add(path)
        above = (path, *map(str, PurePosixPath(path).parents))
        moved = next((name for name in above if name in renames), None)
        path = path if moved is None else renames[moved] + path[len(moved) :]
    return path


def _unseen(
    log: DarshanLog,
    renames: Mapping[str, str],
    by_final: Mapping[tuple[str, int], int],
    sizes: Mapping[str, int],
) -> list[str]:
    """Warnings of files that hold more than was traced. Files made from an ambiguous name are passed over."""
    traced: dict[str, int] = defaultdict(int)
    for (path, _), count in by_final.items():
        traced[path] += count
    mapped = set(log.files.path[log.files.mmaps > 0])
    sources = zip(log.files.path, log.files.renamed_from, strict=True)
    ambiguous = {path for path, source in sources if source and source not in renames}
    return [
        f"unseen-bytes: {path}: {traced[path]} of {size} bytes on disk were traced; "
        + ("it was mapped into memory" if path in mapped else "mmap, copy_file_range, sendfile or io_uring?")
        for path, size in sizes.items()
        if path in traced and path not in ambiguous and traced[path] < _SEEN_AT_LEAST * size
    ]


@dataclass(frozen=True)
class Zero:
    """Where a log's time zero lies on the clock that its rank read around the beacon writes."""

    ns: int
    """At the first beacon."""
    error_ns: int
    """Half of the widest interval around a beacon write."""
    drift_ns: int | None
    """By how much the zero moved from the first to the last beacon; None (not measured) with one beacon."""
    first_s: float
    last_s: float
    """The beacons' times in the log."""

    def on_clock(self, seconds: Column) -> Column:
        """Log times on the rank's clock in nanoseconds, linear between the beacons."""
        span = self.last_s - self.first_s
        share = np.clip((seconds - self.first_s) / span, 0, 1) if span > 0 else 0.0
        moved = np.round(seconds * 1e9 + share * (self.drift_ns or 0))
        return np.asarray(moved, np.int64) + self.ns


def zero_ns(log: DarshanLog, beacons: Sequence[tuple[str, int, int]]) -> Zero:
    """The log's zero from beacon marks (path, clock before, clock after a one-byte write to it).

    Several marks of one path are its one-byte writes in their order. Raises TraceError when the
    log holds none of the beacons.
    """
    seen: dict[str, int] = defaultdict(int)
    found = []
    for path, before_ns, after_ns in sorted(beacons, key=lambda mark: mark[1]):
        middles = _one_byte_writes(log, path)
        if seen[path] < len(middles):
            middle_s = middles[seen[path]]
            found.append(
                (middle_s, (before_ns + after_ns) // 2 - round(middle_s * 1e9), after_ns - before_ns)
            )
        seen[path] += 1
    if not found:
        raise TraceError(
            f"{log.source}: none of the {len(beacons)} beacon writes is in the log, so its times cannot be "
            "placed; check that the beacons lie below the traced directory and that DXT was on"
        )
    (first_s, first_zero, _), (last_s, last_zero, _) = found[0], found[-1]
    drift = last_zero - first_zero if len(found) > 1 else None
    return Zero(first_zero, max(width for *_, width in found) // 2, drift, first_s, last_s)


def _one_byte_writes(log: DarshanLog, path: str) -> list[float]:
    """The middles of the one-byte writes to a path, in their order."""
    found: list[tuple[float, float]] = []
    for record in log.segments.records:
        if record.path == path:
            chosen = log.segments.length[record.part] == 1
            start, end = log.segments.start_s[record.part][chosen], log.segments.end_s[record.part][chosen]
            found += zip(start.tolist(), end.tolist(), strict=True)
    return [(start + end) / 2 for start, end in sorted(found)]
