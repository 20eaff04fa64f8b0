"""A Darshan log as values: its facts, one row per file and rank, one row per traced write.

Built from the records that darshan_layout hands out; what the numbers mean together (coverage,
disagreement, clocks) is said elsewhere. In every column -1 means not measured.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from analysis.readers.darshan_layout import COUNTERS, DXT_SEGMENTS, SEGMENT, RawLog
from hpcckpt.errors import TraceError

Column = np.ndarray[Any, Any]
_NO_WRITES = np.empty(0, SEGMENT)
_COLUMNS = ("offset", "length", "start_s", "end_s")


@dataclass(frozen=True)
class Files:
    """One entry per file and rank; rank -1 stands for all ranks of a log that reduced them to one record."""

    path: Column
    rank: Column
    posix_bytes_written: Column
    stdio_bytes_written: Column
    writes: Column
    opens: Column
    """Without Darshan's own counting of fileno, dup and fdopen as opens."""
    fsyncs: Column
    """fsync and fdatasync calls."""
    write_time_s: Column
    """Includes fsync, as in Darshan."""
    meta_time_s: Column
    renamed_from: Column
    """Path of the first file that was renamed to this one, "" for none."""
    mmaps: Column
    mpiio_bytes_written: Column

    def __len__(self) -> int:
        return len(self.path)


class FileSegments(NamedTuple):
    """Whose segments a record of the log holds; they lie side by side in the columns of `Segments`."""

    path: str
    rank: int
    hostname: str
    first: int
    end: int
    """Its segments are those from `first` up to, without, `end`."""
    bytes: int

    @property
    def part(self) -> slice:
        return slice(self.first, self.end)


@dataclass(frozen=True)
class Segments:
    """One entry per traced write, times in seconds from the log's zero; offset -1 is unknown."""

    records: tuple[FileSegments, ...]
    """What does not differ from write to write, once per record: a log may hold millions of writes."""
    offset: Column
    length: Column
    start_s: Column
    end_s: Column

    def __len__(self) -> int:
        return len(self.length)

    @property
    def path(self) -> Column:
        """Path of each write, made anew: for looking at a log, not for large ones."""
        return self._each(_objects(record.path for record in self.records))

    @property
    def rank(self) -> Column:
        """Rank of each write, made anew."""
        return self._each(np.array([record.rank for record in self.records], np.int64))

    @property
    def hostname(self) -> Column:
        """Host of each write, made anew."""
        return self._each(_objects(record.hostname for record in self.records))

    def _each(self, values: Column) -> Column:
        return np.repeat(values, [record.end - record.first for record in self.records])

    @cached_property
    def totals(self) -> Mapping[tuple[str, int], int]:
        """Bytes per path and rank."""
        found: dict[tuple[str, int], int] = defaultdict(int)
        for record in self.records:
            found[record.path, record.rank] += record.bytes
        return dict(found)

    @property
    def hosts(self) -> frozenset[str]:
        """All hosts that wrote."""
        return frozenset(record.hostname for record in self.records)


@dataclass(frozen=True)
class DarshanLog:
    """A log read whole."""

    source: Path
    nprocs: int
    jobid: int
    pid: int
    """From the file's name; -1 when it doesn't say (one log of several ranks has none)."""
    lib_ver: str
    tracer: str
    """`darshan`, or what a recorder that writes such logs calls itself."""
    hostname: str
    """Empty when no record says, several joined by commas."""
    exe: str
    run_time_s: float
    metadata: Mapping[str, str]
    files: Files
    segments: Segments
    """POSIX writes; in the recorder's logs (`dxt=posix+stdio` in the metadata) the fwrite calls too."""
    mpiio_segments: Segments
    warnings: list[str] = field(default_factory=list)


def _read_counters(raw: RawLog, module: str, only_rank: int | None) -> dict[str, Column] | None:
    """The columns of a module; None when the log hasn't got it."""
    region = raw.modules.get(module)
    if region is None or (module == "MPI-IO" and region.version != COUNTERS[module].version):
        return None
    if region.version != COUNTERS[module].version:
        raise TraceError(
            f"{raw.path}: module {module} version {region.version}, only {COUNTERS[module].version} is read; "
            "rewrite the log with darshan-convert of darshan-util 3.5.0"
        )
    columns = raw.counters(module)
    if only_rank is not None:
        columns["rank"] = np.full(len(columns["id"]), only_rank, np.int64)
    return columns


def _join(modules: Sequence[dict[str, Column] | None]) -> tuple[Column, Column, list[Column]]:
    """Ids and ranks of all records of the modules, each once, and per module the row of each record."""
    present = [columns for columns in modules if columns is not None]
    ids = np.concatenate([np.empty(0, np.uint64), *(columns["id"] for columns in present)])
    ranks = np.concatenate([np.empty(0, np.int64), *(columns["rank"] for columns in present)])
    order = np.lexsort((ranks, ids))
    ids, ranks = ids[order], ranks[order]
    first = np.ones(len(ids), bool)
    first[1:] = (ids[1:] != ids[:-1]) | (ranks[1:] != ranks[:-1])
    row = np.empty(len(ids), np.int64)
    row[order] = np.cumsum(first) - 1
    lengths = [0 if columns is None else len(columns["id"]) for columns in modules]
    return ids[first], ranks[first], np.split(row, np.cumsum(lengths)[:-1])


def read_files(raw: RawLog, names: Mapping[int, str], only_rank: int | None) -> Files:
    """The table of files; `only_rank` replaces the rank in a log of one process.

    Raises TraceError for POSIX or STDIO counters of a version that isn't read.
    """
    modules = [_read_counters(raw, name, only_rank) for name in ("POSIX", "STDIO", "MPI-IO")]
    ids, ranks, rows = _join(modules)

    def column(module: int, name: str, absent: float = 0) -> Column:
        out = np.full(len(ids), absent, float if "_F_" in name else np.int64)
        columns = modules[module]
        if columns is not None:
            out[rows[module]] = columns[name]
        return out

    posix_opens = column(0, "POSIX_OPENS") - column(0, "POSIX_FILENOS") - column(0, "POSIX_DUPS")
    stdio_opens = column(1, "STDIO_OPENS") - column(1, "STDIO_FDOPENS")
    sources = column(0, "POSIX_RENAMED_FROM").view(np.uint64)  # an id kept in a signed counter
    return Files(
        path=_objects(_name(names, each) for each in ids.tolist()),
        rank=ranks,
        posix_bytes_written=column(0, "POSIX_BYTES_WRITTEN"),
        stdio_bytes_written=column(1, "STDIO_BYTES_WRITTEN"),
        writes=_sum(column(0, "POSIX_WRITES"), column(1, "STDIO_WRITES")),
        opens=np.maximum(posix_opens, 0) + np.maximum(stdio_opens, 0),
        fsyncs=_sum(column(0, "POSIX_FSYNCS"), column(0, "POSIX_FDSYNCS")),
        write_time_s=_sum(column(0, "POSIX_F_WRITE_TIME"), column(1, "STDIO_F_WRITE_TIME")),
        meta_time_s=_sum(column(0, "POSIX_F_META_TIME"), column(1, "STDIO_F_META_TIME")),
        renamed_from=_objects(_name(names, each) if each else "" for each in sources.tolist()),
        mmaps=column(0, "POSIX_MMAPS"),
        mpiio_bytes_written=column(2, "MPIIO_BYTES_WRITTEN", -1),
    )


def _name(names: Mapping[int, str], file_id: int) -> str:
    return names.get(file_id, f"unknown:{file_id}")


def _objects(items: Iterable[str]) -> Column:
    return np.array(list(items), dtype=object)


def _sum(left: Column, right: Column) -> Column:
    """-1, not measured, on either side stays -1."""
    return np.where((left < 0) | (right < 0), -1, left + right)


def read_segments(raw: RawLog, module: str, names: Mapping[int, str], only_rank: int | None) -> Segments:
    """The write segments of a DXT module; none when it is absent or of an unknown version."""
    region = raw.modules.get(module)
    if region is None or region.version not in DXT_SEGMENTS[module]:
        return Segments((), *(_NO_WRITES[name] for name in _COLUMNS))
    found = list(raw.dxt(module))
    # Joined as bytes: as records each part would be compared with the next, field by field.
    writes = np.frombuffer(b"".join(record.writes for record in found), DXT_SEGMENTS[module][region.version])
    end = np.cumsum([0, *(record.segments for record in found)]).tolist()
    written = np.concatenate(([0], np.cumsum(writes["length"])))[end].tolist()
    records = (
        FileSegments(
            path=_name(names, record.file_id),
            rank=record.rank if only_rank is None else only_rank,
            hostname=record.hostname,
            first=end[row],
            end=end[row + 1],
            bytes=written[row + 1] - written[row],
        )
        for row, record in enumerate(found)
    )
    return Segments(tuple(records), *(np.ascontiguousarray(writes[name]) for name in _COLUMNS))
