"""Processes, files and times of a set of Darshan logs that no run directory explains. Pure arithmetic on read logs.

A log of one process calls itself rank 0; its rank is that of a directory `rankNNNN` above it, if there
is one. Contents are not in a log: what is said of copies and shares rests on names and sizes, and says so.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from analysis.concurrency import Intervals, load, united
from analysis.readers.darshan import DarshanLog, read_log, traced_bytes
from analysis.readers.darshan_layout import read_raw
from hpcckpt.errors import TraceError

Row = dict[str, Any]
WRITER_SHARE = 0.01
"""A process with less than this share of the fullest one's bytes (a marker, a log) is no writer."""
SAME_SIZE = 0.01
"""Sizes that differ by less count as the same."""
APART_S, TOGETHER_S = 0.041, 0.017
"""By how much the times of two logs, and of two ranks in one, were seen to be apart: their zeros are not aligned."""
TIMED_SHARE = 0.99
"""Below it the calls with times are not all calls, so who wrote at once is not known."""
_RANK = re.compile(r"rank[-_.]?0*(\d+)$")
_PART = re.compile(r"(\d+)[-_.]?of[-_.]?0*(\d+)", re.IGNORECASE)


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """One writing program: a log of its own, or a rank of a shared log."""

    name: str
    host: str
    log: str
    written_bytes: int
    files: int
    calls: int
    """-1: not counted by process (a shared record)."""
    write_s: float | None
    """Sum over its files, fsync included, as Darshan counts."""
    writer: bool


class WriterFile(msgspec.Struct, frozen=True, kw_only=True):
    """What one process wrote to one file, under its last name."""

    process: str
    path: str
    written_bytes: int


def read_all(paths: Sequence[Path]) -> tuple[list[DarshanLog], list[tuple[Path, str]]]:
    """The logs that can be read, and the others with the reason."""
    logs, bad = [], []
    for path in paths:
        try:
            logs.append(read_log(path))
        except (TraceError, OSError) as error:
            bad.append((path, str(error).removeprefix(f"{path}: ")))
    return logs, bad


def name_of(log: DarshanLog, rank: int, root: Path, alone: bool) -> str:
    """How a process is called: by rank where that is known, else by its log."""
    if log.nprocs > 1:
        job = "" if alone else f"job {log.jobid} "
        return f"{job}rank {rank}" if rank >= 0 else f"{job}ranks together"
    above = [match[1] for part in log.source.parent.parts if (match := _RANK.search(part))]
    if above:
        # Programs that a rank started leave their logs beside its own.
        several = len(list(log.source.parent.glob("*.darshan"))) > 1
        return f"rank {above[-1]}" + (f" process {log.pid}" if several else "")
    return str(log.source.relative_to(root)) if root.is_dir() else log.source.name


def processes(logs: Sequence[DarshanLog], root: Path, below: str) -> tuple[list[Process], list[WriterFile]]:
    """All processes, also those that wrote nothing, and what each wrote where."""
    rows: list[tuple[str, DarshanLog, int, dict[str, int]]] = []
    for log in logs:
        written = traced_bytes(log, below).by_final_name
        ranks = sorted({rank for _, rank in written if rank < 0} | set(range(max(log.nprocs, 1))))
        for rank in ranks:
            mine = {path: count for (path, each), count in written.items() if each == rank and count}
            rows.append((name_of(log, rank, root, len(logs) == 1), log, rank, mine))
    counts = Counter(name for name, *_ in rows)
    rows = [
        # Two jobs in one tree have a rank 0 each.
        (name if counts[name] == 1 else f"{log.source.relative_to(root)} {name}", log, rank, mine)
        for name, log, rank, mine in rows
    ]
    most = max((sum(mine.values()) for *_, mine in rows), default=0)
    found = [_process(name, log, rank, mine, most, below) for name, log, rank, mine in rows]
    files = [
        WriterFile(process=name, path=path, written_bytes=count)
        for name, _, _, mine in rows
        for path, count in sorted(mine.items())
    ]
    return found, files


def _written(log: DarshanLog, below: str) -> set[str]:
    """Names, at the time of the write, of the files that count."""
    return {path for path, _ in traced_bytes(log, below).by_written_name}


def _among(paths: Any, names: set[str]) -> Any:
    return np.array([path in names for path in paths.tolist()], bool)


def _process(name: str, log: DarshanLog, rank: int, mine: dict[str, int], most: int, below: str) -> Process:
    total, names = sum(mine.values()), _written(log, below)
    here = _among(log.files.path, names) & ((log.files.rank == rank) | (log.nprocs == 1))
    counted = log.nprocs > 1 and np.any(log.files.rank == -1)
    segments = (log.segments.rank == rank) & _among(log.segments.path, names)
    hosts = set(log.segments.hostname[segments].tolist()) if log.nprocs > 1 else {log.hostname}
    writes, seconds = log.files.writes[here], log.files.write_time_s[here]
    calls = int(segments.sum()) if counted else int(writes.sum()) if not np.any(writes < 0) else -1
    return Process(
        name=name,
        host=",".join(sorted(filter(None, hosts))),
        log=str(log.source),
        written_bytes=total,
        files=len(mine),
        calls=calls,
        write_s=None if counted or np.any(seconds < 0) else float(seconds.sum()),
        writer=total > 0 and total >= WRITER_SHARE * most,
    )


def contents(files: Sequence[WriterFile], writers: set[str], state_bytes: int | None) -> Row:
    """Whether the writers' files are shares of one state, copies of it, or one file: as far as names and sizes tell."""
    mine = [file for file in files if file.process in writers]
    owners: dict[str, set[str]] = defaultdict(set)
    for file in mine:
        owners[file.path].add(file.process)
    shared = sorted(path for path, who in owners.items() if len(who) > 1)
    basis, content, copies = _judged(mine, writers, bool(shared), state_bytes)
    return {"shared_files": len(shared), "shared_file": shared[0] if shared else None,
            "content": content, "content_basis": basis, "copies": copies}  # fmt: skip


def _judged(
    mine: Sequence[WriterFile], writers: set[str], shared: bool, state_bytes: int | None
) -> tuple[str, str, float | None]:
    """(what it rests on, verdict, copies' worth of bytes): one_writer, shared_file, disjoint, copies or unknown."""
    if len(writers) < 2:
        return "one process wrote", "one_writer", None
    if shared:
        return "several processes wrote one path", "shared_file", None
    per_writer: dict[str, list[int]] = defaultdict(list)
    for file in mine:
        per_writer[file.process].append(file.written_bytes)
    largest = max(max(sizes) for sizes in per_writer.values())
    least = WRITER_SHARE * largest
    sizes = sorted(tuple(sorted(size for size in each if size >= least)) for each in per_writer.values())
    rounds = len(sizes[0])
    if state_bytes:
        worth = sum(map(sum, sizes)) / (state_bytes * max(rounds, 1))
        verdict = "copies" if worth >= 1.5 else "disjoint"
        return f"a state of {state_bytes} bytes, {rounds} checkpoints by the number of files", verdict, worth
    parts = [_PART.search(Path(file.path).name) for file in mine if file.written_bytes >= least]
    if parts and all(match and int(match[2]) >= len(writers) for match in parts):
        return "the files' names say that each is a part of a whole", "disjoint", 1.0
    if all(_alike(each, sizes[0]) for each in sizes):
        return "each writer wrote as many files of the same sizes", "copies", float(len(writers))
    return "names and sizes do not tell", "unknown", None


def _alike(left: Sequence[int], right: Sequence[int]) -> bool:
    """As many files of the same sizes; compressed copies differ by what their headers and clocks hold."""
    pairs = zip(left, right, strict=False)
    return len(left) == len(right) and all(abs(a - b) <= SAME_SIZE * max(a, b) for a, b in pairs)


def at_once(logs: Sequence[DarshanLog], below: str, written_bytes: int) -> Row:
    """How many processes were in a write call at the same time; or why the logs do not tell."""
    found: Row = {"at_once_max": None, "at_once_mean": None, "writing_s": None, "at_once_reason": None}
    calls, timed = _calls(logs, below)
    if timed < TIMED_SHARE * written_bytes or not len(calls.lane):
        return found | {"at_once_reason": f"the calls with times hold {timed} of {written_bytes} bytes"}
    calls = united(calls)  # several calls of one process at once are one writer
    each = load(calls, int(calls.lane.max()) + 1).covered
    together = load(Intervals(np.zeros_like(calls.lane), calls.begin, calls.end), 1)
    found["writing_s"] = float(together.covered[0]) / 1e9
    error, busy = (APART_S if len(logs) > 1 else TOGETHER_S), int(each.max()) / 1e9
    if np.count_nonzero(each) > 1 and busy < 2 * error:
        why = f"a writer writes for {busy:.3g} s in all, and the clocks in the logs may be {error:g} s apart"
        return found | {"at_once_reason": why}
    mean = float(each.sum()) / max(int(together.covered[0]), 1)
    return found | {"at_once_max": int(together.most[0]), "at_once_mean": mean}


def _calls(logs: Sequence[DarshanLog], below: str) -> tuple[Intervals, int]:
    """Writes of all processes on the clock of the logs' start times, one lane each, and their bytes.

    Calls of a hundredth of the longest and less, headers and markers, are in the bytes but no writing.
    """
    starts = [read_raw(log.source).job[1:3] for log in logs]
    chosen = [_among(log.segments.path, _written(log, below)) for log in logs]
    lengths = [log.segments.length[mine] for log, mine in zip(logs, chosen, strict=True)]
    least = WRITER_SHARE * max((int(each.max()) for each in lengths if len(each)), default=0)
    zero, lane, parts = min(second for second, _ in starts), 0, []
    for log, mine, (second, nano) in zip(logs, chosen, starts, strict=True):
        large = mine & (log.segments.length >= least)
        start = (second - zero) * 10**9 + nano
        times = (log.segments.start_s, log.segments.end_s)
        begin, end = (np.round(time[large] * 1e9).astype(np.int64) + start for time in times)
        parts.append(Intervals(log.segments.rank[large] + lane, begin, end))
        lane += max(log.nprocs, 1)
    joined = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Intervals(*joined), sum(int(each.sum()) for each in lengths)


def overlap(logs: Sequence[DarshanLog], below: str) -> int | None:
    """Bytes that more than one process wrote at the same place of the same file; None without offsets."""
    spans: dict[str, list[tuple[int, int, tuple[int, int]]]] = defaultdict(list)
    for index, log in enumerate(logs):
        segments, names = log.segments, _written(log, below)
        if len(segments) and np.any(segments.offset < 0):
            return None
        columns = (segments.rank, segments.offset, segments.length)
        for path, rank, offset, length in zip(segments.path, *(c.tolist() for c in columns), strict=True):
            if path in names:
                spans[path].append((offset, offset + length, (index, rank)))
    return sum(_overlap(each) for each in spans.values() if len({who for *_, who in each}) > 1)


def _overlap(spans: list[tuple[int, int, tuple[int, int]]]) -> int:
    """Bytes of the ranges of each process that others hold too; a process's own rewrites count once."""
    who = {name: number for number, name in enumerate(sorted({name for *_, name in spans}))}
    lanes = np.array([who[name] for *_, name in spans], np.int64)
    begin, end = (np.array([span[i] for span in spans], np.int64) for i in (0, 1))
    each = united(Intervals(lanes, begin, end))
    total = int((each.end - each.begin).sum())
    return total - int(load(Intervals(np.zeros_like(each.lane), each.begin, each.end), 1).covered[0])
