"""Which of a set of Darshan logs belong to one job. Nothing is counted here.

A log of several processes is a job. Logs of one process each belong together where they lie in the
`rankNNNN` directories of one directory, or share a job id, or else have one program and ran at the same
time: outside of a batch system Darshan takes the process's own number for a job id.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from analysis.readers.darshan import DarshanLog
from analysis.readers.darshan_layout import read_raw

RANK = re.compile(r"rank[-_.]?0*(\d+)$")
SHOWN_EXE = 60
"""Letters of a program's command line in a job's name."""


def split(logs: Sequence[DarshanLog], root: Path) -> dict[str, list[DarshanLog]]:
    """Name -> logs of every job, in the order of their first logs."""
    shared = Counter((log.exe, log.jobid) for log in logs if log.nprocs == 1)
    found: dict[tuple[str, ...], list[DarshanLog]] = {}
    loose: dict[str, list[DarshanLog]] = {}
    for log in logs:
        if log.nprocs > 1:
            found[_by_id(log), str(log.source)] = [log]
        elif RANK.search(log.source.parent.name):
            found.setdefault((_beside(log.source.parent.parent, root),), []).append(log)
        elif shared[log.exe, log.jobid] > 1:
            found.setdefault((_by_id(log),), []).append(log)
        else:
            loose.setdefault(log.exe, []).append(log)
    for mine in loose.values():
        for part in _at_once(mine):
            name = _by_id(part[0]) if len(part) == 1 else f"{_exe(part[0])}, from {_when(part[0])}"
            found[name, str(part[0].source)] = part
    return _named(found)


def _named(found: dict[tuple[str, ...], list[DarshanLog]]) -> dict[str, list[DarshanLog]]:
    """Short names where these are enough, else with the first log's."""
    short = Counter(key[0] for key in found)
    order = sorted(found.items(), key=lambda item: str(item[1][0].source))
    return {key[0] if short[key[0]] == 1 else ", ".join(key): mine for key, mine in order}


def _beside(directory: Path, root: Path) -> str:
    return str(directory.relative_to(root)) if directory != root and directory.is_relative_to(root) else directory.name


def _by_id(log: DarshanLog) -> str:
    return f"job {log.jobid}, {_exe(log)}"


def _exe(log: DarshanLog) -> str:
    exe = log.exe or "unknown program"
    return exe if len(exe) <= SHOWN_EXE else f"{exe[:SHOWN_EXE]}…"


def _span(log: DarshanLog) -> tuple[float, float]:
    start_s, start_ns, end_s, end_ns = read_raw(log.source).job[1:5]
    return start_s + start_ns / 1e9, end_s + end_ns / 1e9


def _when(log: DarshanLog) -> str:
    start = _span(log)[0]
    return f"{datetime.fromtimestamp(start, UTC):%Y-%m-%d %H:%M:%S} UTC" if 0 <= start < 2**33 else "an unknown time"


def _at_once(logs: Sequence[DarshanLog]) -> list[list[DarshanLog]]:
    """Logs whose times overlap, directly or through others."""
    spans = sorted(((*_span(log), number) for number, log in enumerate(logs)))
    parts: list[list[DarshanLog]] = []
    until = float("-inf")
    for begin, end, number in spans:
        if begin > until:
            parts.append([])
        parts[-1].append(logs[number])
        until = max(until, end)
    return parts
