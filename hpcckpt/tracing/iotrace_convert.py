"""Events of the preload recorder -> the records of a Darshan log.

POSIX and STDIO are counted apart, as Darshan does. Two things differ from Darshan and are said in
the log's metadata: DXT_POSIX also holds the fwrite segments (`dxt=posix+stdio`), and bytes moved
by copy_file_range and sendfile count as POSIX writes (`copies=posix`). Counters that the recorder
doesn't measure are -1. As in Darshan, time in fsync is part of the write time.
"""

from __future__ import annotations

import csv
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpcckpt.tracing import darshan_log
from hpcckpt.tracing.iotrace_events import Events, Op

TRACER = "hpcckpt-iotrace"

_WRITES = (Op.WRITE, Op.COPY)
_STREAM = (Op.STREAM_OPEN, Op.STREAM_FDOPEN, Op.STREAM_WRITE, Op.STREAM_FLUSH, Op.STREAM_CLOSE)
_POSIX_META = (Op.OPEN, Op.CLOSE, Op.DUP, Op.TRUNCATE, Op.UNLINK, Op.RENAME, Op.MMAP)
_SIZE_LIMITS = (100, 2**10, 10 * 2**10, 100 * 2**10, 2**20, 4 * 2**20, 10 * 2**20, 100 * 2**20, 2**30)
"""The largest size in each of Darshan's ten buckets but the last."""

Table = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class _Group:
    """Successful calls of some operations, with the row of the record that each belongs to."""

    row: Table
    table: Table
    rows: int
    zero_ns: int

    def count(self) -> Table:
        return np.bincount(self.row, minlength=self.rows)

    def sum_bytes(self) -> Table:
        """An integer sum: a float one loses bytes beyond 2**53."""
        total = np.zeros(self.rows, np.int64)
        np.add.at(total, self.row, self.table["length"])
        return total

    def time_s(self) -> Table:
        return np.bincount(self.row, (self.table["end_ns"] - self.table["start_ns"]) / 1e9, self.rows)

    def longest_s(self) -> Table:
        longest = np.zeros(self.rows)
        np.maximum.at(longest, self.row, (self.table["end_ns"] - self.table["start_ns"]) / 1e9)
        return longest

    def highest_byte(self) -> Table:
        """-1 where no write's offset is known."""
        known = self.table["offset"] >= 0
        highest = np.full(self.rows, -1, np.int64)
        ends = (self.table["offset"] + self.table["length"] - 1)[known]
        np.maximum.at(highest, self.row[known], ends)
        return highest

    def first_s(self, column: str) -> Table:
        """Seconds from the log's zero; 0 where there was no such call, as in Darshan."""
        first = np.full(self.rows, np.inf)
        np.minimum.at(first, self.row, (self.table[column] - self.zero_ns) / 1e9)
        return np.where(np.isinf(first), 0.0, first)

    def last_s(self, column: str) -> Table:
        last = np.zeros(self.rows)
        np.maximum.at(last, self.row, (self.table[column] - self.zero_ns) / 1e9)
        return last


@dataclass(frozen=True)
class _Files:
    """The files of one module: their numbers in rising order, one record each."""

    numbers: Table
    events: Events

    def group(self, *operations: Op) -> _Group:
        table = self.events.table
        table = table[_one_of(table, operations) & (table["error"] == 0) & (table["file"] != 0)]
        row = np.searchsorted(self.numbers, table["file"])
        return _Group(row, table, len(self.numbers), self.events.monotonic_ns)

    def ids(self) -> Table:
        return np.array([record_id(self.events.names[int(number)]) for number in self.numbers], np.uint64)


def record_id(path: str) -> int:
    """Darshan wants one 64-bit number per path, the same on every rank."""
    return int.from_bytes(
        hashlib.blake2b(path.encode("utf-8", "surrogateescape"), digest_size=8).digest(), "little"
    )


def _one_of(table: Table, operations: tuple[Op, ...]) -> Table:
    """Which events are of these operations; a table look-up is a tenth of np.isin's time."""
    chosen = np.zeros(len(Op) + 1, bool)
    chosen[list(operations)] = True
    return np.take(chosen, table["op"])


def _files(events: Events, operations: tuple[Op, ...]) -> _Files:
    table = events.table
    table = table[_one_of(table, operations)]
    renamed_to = table["other"][table["op"] == Op.RENAME]
    numbers = np.unique(np.concatenate([table["file"], renamed_to]))
    return _Files(numbers[numbers != 0], events)


def _fill_times(records: Table, prefix: str, kind: str, group: _Group) -> None:
    """First start and last end of a kind of call, under Darshan's names."""
    records[f"{prefix}_F_{kind}_START_TIMESTAMP"] = group.first_s("start_ns")
    records[f"{prefix}_F_{kind}_END_TIMESTAMP"] = group.last_s("end_ns")


def _fill_sizes(records: Table, writes: _Group) -> None:
    names = [name for name in records.dtype.names or () if name.startswith("POSIX_SIZE_WRITE_")]
    bucket = np.searchsorted(_SIZE_LIMITS, writes.table["length"])
    for index, name in enumerate(names):
        records[name] = np.bincount(writes.row[bucket == index], minlength=writes.rows)


def _fill_renames(records: Table, files: _Files) -> None:
    """Counts on both sides, and the first source under each target (an id kept in a signed counter)."""
    table = files.events.table
    renames = table[(table["op"] == Op.RENAME) & (table["error"] == 0)]
    for column, name in (("file", "POSIX_RENAME_SOURCES"), ("other", "POSIX_RENAME_TARGETS")):
        numbers = renames[column][renames[column] != 0]
        records[name] = np.bincount(np.searchsorted(files.numbers, numbers), minlength=len(records))
    records["POSIX_RENAMED_FROM"] = 0
    both = renames[(renames["file"] != 0) & (renames["other"] != 0)][::-1]  # the first one is stored last
    sources = files.ids()[np.searchsorted(files.numbers, both["file"])]
    records["POSIX_RENAMED_FROM"][np.searchsorted(files.numbers, both["other"])] = sources.view(np.int64)


def posix_records(events: Events) -> Table:
    """One POSIX record per file that a descriptor call, a rename or an unlink named."""
    files = _files(events, tuple(op for op in Op if op not in _STREAM))
    records = darshan_log.unmeasured(darshan_log.load().posix, len(files.numbers))
    writes, opens, syncs = files.group(*_WRITES), files.group(Op.OPEN), files.group(Op.FSYNC, Op.FDATASYNC)
    records["id"] = files.ids()
    records["POSIX_DUPS"] = files.group(Op.DUP).count()
    records["POSIX_OPENS"] = opens.count() + records["POSIX_DUPS"]  # Darshan counts them in
    records["POSIX_FILENOS"] = 0
    records["POSIX_WRITES"] = writes.count()
    records["POSIX_BYTES_WRITTEN"] = writes.sum_bytes()
    records["POSIX_MAX_BYTE_WRITTEN"] = writes.highest_byte()
    records["POSIX_FSYNCS"] = files.group(Op.FSYNC).count()
    records["POSIX_FDSYNCS"] = files.group(Op.FDATASYNC).count()
    records["POSIX_MMAPS"] = files.group(Op.MMAP).count()
    records["POSIX_F_WRITE_TIME"] = writes.time_s() + syncs.time_s()
    records["POSIX_F_MAX_WRITE_TIME"] = writes.longest_s()
    records["POSIX_F_META_TIME"] = files.group(*_POSIX_META).time_s()
    for kind, group in (("OPEN", opens), ("WRITE", writes), ("CLOSE", files.group(Op.CLOSE))):
        _fill_times(records, "POSIX", kind, group)
    _fill_sizes(records, writes)
    _fill_renames(records, files)
    return records


def stdio_records(events: Events) -> Table:
    """One STDIO record per file that was opened or written as a FILE."""
    files = _files(events, _STREAM)
    records = darshan_log.unmeasured(darshan_log.load().stdio, len(files.numbers))
    writes, flushes = files.group(Op.STREAM_WRITE), files.group(Op.STREAM_FLUSH)
    opens, closes = files.group(Op.STREAM_OPEN, Op.STREAM_FDOPEN), files.group(Op.STREAM_CLOSE)
    records["id"] = files.ids()
    records["STDIO_OPENS"] = opens.count()
    records["STDIO_FDOPENS"] = files.group(Op.STREAM_FDOPEN).count()
    records["STDIO_WRITES"] = writes.count()
    records["STDIO_FLUSHES"] = flushes.count()
    records["STDIO_BYTES_WRITTEN"] = writes.sum_bytes()
    records["STDIO_MAX_BYTE_WRITTEN"] = writes.highest_byte()
    records["STDIO_F_WRITE_TIME"] = writes.time_s() + flushes.time_s()
    records["STDIO_F_META_TIME"] = opens.time_s() + closes.time_s()
    for kind, group in (("OPEN", opens), ("WRITE", writes), ("CLOSE", closes)):
        _fill_times(records, "STDIO", kind, group)
    return records


def dxt_records(events: Events) -> bytes:
    """The write segments of every written file, in the order of their start."""
    files = _files(events, (*_WRITES, Op.STREAM_WRITE))
    group = files.group(*_WRITES, Op.STREAM_WRITE)
    order = np.lexsort((group.table["start_ns"], group.row))
    table, row = group.table[order], group.row[order]
    segments = np.zeros(len(table), darshan_log.SEGMENT)
    segments["offset"], segments["length"] = table["offset"], table["length"]
    segments["start_s"] = (table["start_ns"] - events.monotonic_ns) / 1e9
    segments["end_s"] = (table["end_ns"] - events.monotonic_ns) / 1e9
    starts = np.searchsorted(row, np.arange(len(files.numbers) + 1))
    return b"".join(
        darshan_log.dxt_record(int(file_id), events.host, segments[starts[index] : starts[index + 1]])
        for index, file_id in enumerate(files.ids())
    )


def _job(events: Events, rank: int) -> darshan_log.Job:
    last_ns = int(events.table["end_ns"].max()) if len(events.table) else events.monotonic_ns
    return darshan_log.Job(
        start_ns=events.realtime_ns,
        end_ns=events.realtime_ns + last_ns - events.monotonic_ns,
        jobid=events.pid,
        exe=events.program,
        metadata={
            "lib_ver": TRACER,
            "tracer": TRACER,
            "rank": str(rank),
            "hostname": events.host,
            "boot_id": events.boot_id,
            "monotonic_zero_ns": str(events.monotonic_ns),
            "dxt": "posix+stdio",
            "copies": "posix",
            "dropped": str(events.dropped),
            "unnamed": str(events.unnamed),
        },
    )


def convert(events: Events, path: Path, rank: int) -> None:
    """Writes the log of one process. Its time zero is the start of the recorder in that process.

    Dropped or unfinished events set the partial flag of every module. Raises TraceError when the
    log cannot be written.
    """
    modules = {
        darshan_log.POSIX: posix_records(events).tobytes(),
        darshan_log.STDIO: stdio_records(events).tobytes(),
        darshan_log.DXT_POSIX: dxt_records(events),
    }
    names = {record_id(name): name for name in events.names.values()}
    darshan_log.write_log(path, _job(events, rank), names, modules, partial=bool(events.notes()))


def write_fsyncs(events: Events, path: Path) -> None:
    """Each fsync on its own, as CSV: a Darshan log has their number, and their time within the write time."""
    table = events.table[_one_of(events.table, (Op.FSYNC, Op.FDATASYNC))]
    if not len(table):
        return
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["call", "path", "start_ns", "end_ns", "errno"])
        for event in table:
            call, name = Op(int(event["op"])).name.lower(), events.names[int(event["file"])]
            writer.writerow([call, name, event["start_ns"], event["end_ns"], event["error"]])
