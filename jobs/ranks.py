"""What the ranks' own files say about how a leg ended: which rank failed, where, and by what.

Reads JSONL and the launcher's message; starts, stops and writes nothing.
"""

from __future__ import annotations

import re
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from hpcckpt.errors import TraceError
from hpcckpt.experiment import Job, Run
from hpcckpt.records import GATHER, WAIT_AFTER, WAIT_BEFORE, WAIT_INSIDE, End, Save, Start, Step, decode
from hpcckpt.restart.spec import dies
from hpcckpt.rundir import LegDir, RunDir

WAITS = {WAIT_BEFORE, WAIT_INSIDE, WAIT_AFTER}
COLLECTIVE = {GATHER, "step"}
"""A rank in one of these may wait for another one."""
KILLED = re.compile(
    r"process\s+rank\s+(\d+)\s+with\s+PID\s+\d+\s+on\s+node\s+(\S+)\s+exited\s+on\s+signal\s+(\d+)"
)
EXITED = re.compile(r"Process name: \[.*?,\s*(\d+)\]\s+Exit code:\s+(\d+)")
ABORTED = re.compile(r"process\s+rank\s+(\d+)\s+with\s+PID\s+\d+\s+on\s+node\s+(\S+)\s+calling\s+\"abort\"")
"""What a rank does whose connection to another one broke: the one that broke it said nothing."""
LOST = re.compile(r"Remote daemon:\s+\[.*\]\s+on\s+node\s+(\S+)|srun: error: Node failure on (\S+)")
NODE_LOST = "node lost"
"""Cause of an end that the run is not to blame for: it can go on elsewhere."""
OUTPUT_BYTES = 1 << 20
"""Read from the end of the launcher's output; ranks may print much before it."""
LAST_BYTES = 1 << 12
"""Read from the end of a rank's file; the closing line of a rank that is done is short."""


@dataclass(frozen=True)
class Ending:
    """Why a leg did not end well."""

    reason: str
    rank: int | None = None
    node: str | None = None
    cause: str | None = None


@dataclass(frozen=True)
class RankView:
    """One rank's file, as far as it goes."""

    rank: int
    start: Start | None
    end: End | None
    records: int
    last_step: int | None
    last_generation: int | None

    @property
    def ok(self) -> bool:
        return self.end is not None and self.end.status == "ok"

    @property
    def where(self) -> str:
        """What the rank was doing when its file ends, in words."""
        if self.end is not None and self.end.inside:
            return "inside " + " > ".join(self.end.inside)
        if self.last_generation is not None:
            return f"after checkpoint {self.last_generation}"
        return "before its first step" if self.last_step is None else f"after step {self.last_step}"


def view(path: Path, rank: int) -> RankView:
    """Read a rank's file up to the first line that is no record."""
    start: Start | None = None
    end: End | None = None
    count, step, generation = 0, None, None
    for line in _lines(path):
        try:
            record = decode(line)
        except TraceError:
            break
        count += 1
        if isinstance(record, Start):
            start = record
        elif isinstance(record, End):
            end = record
        elif isinstance(record, Step):
            step = record.index
        elif isinstance(record, Save):
            generation = record.generation
    return RankView(rank, start, end, count, step, generation)


def _lines(path: Path) -> list[bytes]:
    try:
        return path.read_bytes().splitlines()
    except OSError:
        return []


def introduction(path: Path) -> Start | None:
    """A rank's first line; None before it is written whole."""
    try:
        with path.open("rb") as stream:
            record = decode(stream.readline())
    except (OSError, TraceError):
        return None
    return record if isinstance(record, Start) else None


def closed(run_dir: RunDir, run: Run) -> bool:
    """Whether every rank's file of every leg ends with the closing line of a rank that is done."""
    wanted = [name for name in run.legs if not dies(run.settings.restart, name)]
    return all(leg_closed(run_dir.leg(name), run.ranks) for name in wanted)


def leg_closed(leg: LegDir, ranks: int) -> bool:
    """The same for one leg."""
    return all(_ends_well(leg.rank_file(rank)) for rank in range(ranks))


def _ends_well(path: Path) -> bool:
    """Reads the last line only."""
    try:
        with path.open("rb") as stream:
            stream.seek(max(0, path.stat().st_size - LAST_BYTES))
            record = decode(stream.read().rstrip(b"\n").rpartition(b"\n")[2])
    except (OSError, TraceError):
        return False
    return isinstance(record, End) and record.status == "ok"


def views(leg: LegDir, ranks: int) -> list[RankView]:
    """Every rank's file, by rank."""
    return [view(leg.rank_file(rank), rank) for rank in range(ranks)]


def node_of(job: Job, seen: RankView) -> str | None:
    """The node as the tables name it; None where the rank died before it said so."""
    if seen.start is not None:
        return seen.start.node
    return f"virtual{seen.rank // job.run.point.ranks_per_node:03d}" if job.virtual_nodes else None


def failure(job: Job, leg: LegDir, status: int, overdue: bool) -> Ending | None:
    """How a leg failed that ended with the launcher's exit `status`; None if every rank is done."""
    seen = views(leg, job.run.ranks)
    if overdue:
        return _hung(job, leg, seen)
    by_exception = [v for v in seen if v.end is not None and v.end.status == "failed"]
    if by_exception:
        first = min(by_exception, key=lambda v: v.end.t_ns if v.end else 0)  # the others follow from it
        return _raised(job, leg, first)
    if status == 0 and all(v.ok for v in seen):
        return None
    return _died(job, leg, seen, status)


def _raised(job: Job, leg: LegDir, seen: RankView) -> Ending:
    error = (seen.end.error if seen.end else None) or "no error text"
    node = node_of(job, seen)
    reason = f"{_who(seen.rank, node)} failed in leg {leg.name}, {seen.where}: {error}"
    return Ending(reason, seen.rank, node, error.partition(":")[0])


def _died(job: Job, leg: LegDir, seen: list[RankView], status: int) -> Ending:
    said = _tail(leg.output)
    if lost := LOST.search(said):
        node = lost[1] or lost[2]
        reason = f"node {node} was lost in leg {leg.name}: the launcher cannot reach it any more"
        return Ending(reason, node=node, cause=NODE_LOST)
    if killed := KILLED.search(said):
        rank, host, name = int(killed[1]), killed[2], _signal_name(int(killed[3]))
        node = node_of(job, seen[rank]) or host
        return _ended_by(leg, seen[rank], node, f"was killed by {name}", name)
    if exited := EXITED.search(said):
        first, code = seen[int(exited[1])], int(exited[2])
        return _ended_by(leg, first, node_of(job, first), f"left with exit status {code}", f"exit {code}")
    if aborted := ABORTED.search(said):
        return _broken(job, leg, seen, int(aborted[1]), aborted[2])
    silent = [v for v in seen if v.end is None] or [v for v in seen if not v.ok]
    begun = any(v.records for v in seen)
    if not silent or not begun:
        when = "ended" if begun else "gave up before any rank began"
        words = _last_words(said) if begun else f"{_first_words(said)}; its output is in {leg.output}"
        reason = f"the launcher {when} leg {leg.name} with status {status}{words}"
        return Ending(reason, cause=f"exit {status}")
    first = silent[0]
    vanished = first.end is None
    what = f"left no closing line (the launcher's status is {status})" if vanished else "did not finish"
    return _ended_by(leg, first, node_of(job, first), what, "vanished" if vanished else "terminated")


def _broken(job: Job, leg: LegDir, seen: list[RankView], witness: int, host: str) -> Ending:
    """A rank died and the launcher names only one that noticed: the silent ones are all that can be said."""
    silent = [v for v in seen if v.end is None and v.rank != witness]
    first = silent[0] if len(silent) == 1 else None
    which = ", ".join(str(v.rank) for v in silent) or "none"
    reason = (
        f"a rank died in leg {leg.name}: {_who(witness, node_of(job, seen[witness]) or host)} "
        f"saw its connection break; ranks without a closing line: {which}"
    )
    return Ending(reason, first.rank if first else None, node_of(job, first) if first else None, "vanished")


def _ended_by(leg: LegDir, seen: RankView, node: str | None, what: str, cause: str | None) -> Ending:
    return Ending(f"{_who(seen.rank, node)} {what} in leg {leg.name}, {seen.where}", seen.rank, node, cause)


def _hung(job: Job, leg: LegDir, seen: list[RankView]) -> Ending:
    limit = job.run.settings.leg_limit_s
    if all(v.end is not None and v.end.status in ("ok", "stopped") for v in seen):
        reason = f"leg {leg.name} took longer than its limit of {limit:g} s; every rank was still at work"
        return Ending(reason, cause="time limit")
    suspects = suspected(seen)
    first = suspects[0]
    node = node_of(job, first)
    others = f" (and {len(suspects) - 1} more)" if len(suspects) > 1 else ""
    closing = "" if first.end else ", without a closing line"
    reason = f"{_who(first.rank, node)}{others} hung in leg {leg.name}, {first.where}{closing}"
    return Ending(f"{reason}; the limit of a leg is {limit:g} s", first.rank, node, "hung")


def suspected(seen: list[RankView]) -> list[RankView]:
    """Of ranks that were stopped, those that the others waited for; never empty.

    Each rule narrows the choice where it can: no closing line, not in a wait, in another place than
    most, least far.
    """
    chosen = [v for v in seen if not v.ok] or seen
    places = Counter(_place(v) for v in chosen)
    rules: list[Callable[[RankView], int]] = [
        lambda v: v.end is not None,
        _patience,
        lambda v: places[_place(v)],
        lambda v: v.records,
    ]
    for rule in rules:
        least = min(map(rule, chosen))
        chosen = [v for v in chosen if rule(v) == least]
    return chosen


def _place(seen: RankView) -> tuple[str, ...] | None:
    return tuple(seen.end.inside) if seen.end else None


def _patience(seen: RankView) -> int:
    """0 for a rank that waits for nobody, 1 for one in a collective, 2 for one in a barrier."""
    inside = set(seen.end.inside if seen.end else [])
    return 2 if inside & WAITS else 1 if inside & COLLECTIVE else 0


def _who(rank: int, node: str | None) -> str:
    return f"rank {rank} on {node}" if node else f"rank {rank}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            stream.seek(max(0, path.stat().st_size - OUTPUT_BYTES))
            return stream.read().decode(errors="replace")
    except OSError:
        return ""


def last_line(path: Path) -> str | None:
    """The last line of an output that holds anything; None where there is none."""
    return next((line.strip() for line in reversed(_tail(path).splitlines()) if line.strip()), None)


def _last_words(said: str) -> str:
    """The last line with a word in it: launchers frame their messages with dashes."""
    return "".join(f": {line}" for line in _worded(said)[-1:])


def _first_words(said: str) -> str:
    """The first such line: a launcher that starts nothing says why and then much else."""
    lines = _worded(said)
    count = 2 if lines and lines[0].endswith(":") else 1  # what it is about stands on a line of its own
    return f": {' '.join(lines[:count])}" if lines else ""


def _worded(said: str) -> list[str]:
    return [line.strip()[:300] for line in said.splitlines() if re.search(r"\w", line)]


def processes(seen: list[RankView], host: str) -> list[psutil.Process]:
    """The ranks' processes of this host that still run, each checked by its start time."""
    found = []
    offset = time.time() - time.monotonic()
    for start in (v.start for v in seen if v.start is not None and v.start.host == host):
        try:
            process = psutil.Process(start.pid)
            if (
                process.create_time() <= start.t_ns / 1e9 + offset + 1
            ):  # it began before it wrote its first line
                found.append(process)
        except psutil.Error:
            continue
    return found
