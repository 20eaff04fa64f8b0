"""A checkpoint from its ranks' columns: stall, phases, who was last, who was slow, what was written.

Pure: the columns of `analysis.rank_saves` in, rows of the table `saves` out.
The stall is the maximum over ranks. Phases shown for a checkpoint are those of its slowest rank,
the one with the most own work; they add up to that rank's own stall, and with `release_s`, the
scatter of the ranks at the two barriers, to the stall.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from analysis.concurrency import Intervals, load
from analysis.rank_leg import Ns
from analysis.rank_saves import NO_CLOCKS, Bools, RankSaves
from analysis.tables import PHASE_COLUMNS
from hpcckpt.records import BACKGROUND, WAIT_AFTER, WAIT_INSIDE

Row = dict[str, Any]

UNATTRIBUTED_SHARE = 0.01
UNATTRIBUTED_NS = 1_000_000


def save_rows(found: RankSaves) -> list[Row]:
    """The rows of `saves`, one per generation."""
    writing = _writing(found)
    errors = [clock.error_ns for leg in found.legs for clock in leg.clocks]
    return [
        _Checkpoint(found, number, max(errors, default=None)).row() | writing[number]
        for number in range(len(found.generations))
    ]


class _Checkpoint:
    """One generation: its part of each column, and its slowest rank."""

    def __init__(self, found: RankSaves, number: int, clock_error_ns: int | None) -> None:
        self.found, self.number, self.clock_error_ns = found, number, clock_error_ns
        self.part = found.of(number)
        self.own = found.own[self.part]
        self.slowest = int(np.argmax(self.own))
        self.others = np.arange(len(found.legs)) != self.slowest
        self.idle: Ns = (found.phase(WAIT_INSIDE) + found.phase(WAIT_AFTER))[self.part]

    def row(self) -> Row:
        found, part, entry = self.found, self.part, self.part.start + self.slowest
        save, stalls = found.saves[part.start], found.stall[part]
        stall = int(stalls.max())
        size = int(found.disk_bytes[part].sum()) if found.bytes_reasons[self.number] is None else None
        unattributed = found.unattributed[part]
        return {
            "run": found.run,
            "generation": found.generations[self.number],
            "step": save.step,
            "stall_s": stall / 1e9,
            "wait_before_s": int(found.wait_before[part].max()) / 1e9,
            **self._arrival(),
            "slowest": found.legs[self.slowest].rank,
            "slower_by_s": self._slower_by(),
            **{column: self._phase(phase, entry) for phase, column in PHASE_COLUMNS.items()},
            "unattributed_s": int(unattributed[self.slowest]) / 1e9,
            "split": found.split[entry],
            "release_s": (stall - int(stalls[self.slowest])) / 1e9,
            "others_wait_inside_s": self._others_mean(WAIT_INSIDE),
            "others_wait_after_s": self._others_mean(WAIT_AFTER),
            "idle_rank_s": int(self.idle.sum()) / 1e9,
            "others_idle_rank_s": int(self.idle.sum() - self.idle[self._main_writer()]) / 1e9,
            "background_s": int(found.phase(BACKGROUND)[part].max()) / 1e9,
            "unattributed_max_s": int(unattributed[np.argmax(np.abs(unattributed))]) / 1e9,
            "unattributed_ok": bool(attributed(unattributed, stalls).all()),
            **self._writers(),
            "checkpoint_bytes": size,
            "bytes_reason": found.bytes_reasons[self.number],
            "effective_gb_per_s": size / stall if size is not None and stall > 0 else None,
            **self._coverages(),
            "state_bytes": save.state_bytes,
        }

    def _phase(self, phase: str, entry: int) -> float | None:
        found = self.found
        return None if found.unseen(phase)[entry] else int(found.phase(phase)[entry]) / 1e9

    def _others_mean(self, phase: str) -> float | None:
        values = self.found.phase(phase)[self.part][self.others]
        return int(values.sum()) / len(values) / 1e9 if len(values) else None

    def _main_writer(self) -> int:
        """The rank that was given most bytes; of equals the slowest, else the first."""
        planned = self.found.planned[self.part]
        return self.slowest if planned[self.slowest] == planned.max() else int(np.argmax(planned))

    def _slower_by(self) -> float | None:
        """Lead over the next of its peers. A writer's peers are writers: that it works longer is its task."""
        planned = self.found.planned[self.part]
        peers = self.own[self.others & (planned > 0) if planned[self.slowest] else self.others]
        return int(self.own[self.slowest] - peers.max()) / 1e9 if len(peers) else None

    def _arrival(self) -> Row:
        names = ("last_to_arrive", "late_by_s", "clock_error_s", "clock_reason")
        found = self.found
        if len(found.legs) < 2:
            return dict(zip(names, (found.legs[0].rank, None, 0.0, "one rank waits for nobody"), strict=True))
        if self.clock_error_ns is None or not found.on_common_clock[self.part].all():
            return dict(zip(names, (None, None, None, NO_CLOCKS), strict=True))
        arrive = (found.begin - found.wait_before + found.offset)[self.part]
        before, last = np.argsort(arrive, kind="stable")[-2:].tolist()
        late, error = int(arrive[last] - arrive[before]) / 1e9, self.clock_error_ns / 1e9
        return dict(zip(names, (found.legs[last].rank, late, error, None), strict=True))

    def _writers(self) -> Row:
        found, part = self.found, self.part
        unseen = np.flatnonzero(~found.is_traced[part])
        reason = None
        if len(unseen):
            reason = f"rank {found.legs[unseen[0]].rank}: {found.trace_reason[part.start + unseen[0]]}"
        return {
            "writers_seen": None if reason else int((found.traced_bytes[part] > 0).sum()),
            "writers_declared": int((found.planned[part] > 0).sum()),
            "trace_reason": reason,
        }

    def _coverages(self) -> Row:
        """Over the ranks with files on disk; one without coverage leaves law 1 undecided, unless it is broken."""
        found, part = self.found, self.part
        known = found.has_coverage[part]
        unknown = np.flatnonzero(~known & ((found.disk_bytes[part] > 0) | ~found.bytes_known[part]))
        values, kept = found.coverage[part][known], bool(found.coverage_ok[part][known].all())
        reason = None if len(values) else "no rank has anything on disk"
        if len(unknown):
            reason = f"rank {found.legs[unknown[0]].rank}: {found.coverage_reason(part.start + int(unknown[0]))}"
        return {
            "coverage_min": float(values.min()) if len(values) else None,
            "coverage_max": float(values.max()) if len(values) else None,
            "coverage_ok": False if not kept else None if reason else True,
            "coverage_reason": reason,
        }


def attributed(unattributed: Ns, stall: Ns) -> Bools:
    """Law 2, rank by rank: what no phase explains is at most 1 % of its stall or 1 ms."""
    return np.asarray(np.abs(unattributed) <= np.maximum(UNATTRIBUTED_SHARE * stall, UNATTRIBUTED_NS))


def _writing(found: RankSaves) -> list[Row]:
    """When ranks wrote: the columns of `saves` that need the calls of all ranks on one clock."""
    names = ("writing_s", "writers_at_once_max", "writers_at_once_mean", "writing_reason")
    ranks, generations = len(found.legs), len(found.generations)
    lane, begin, end = found.writing
    shift = found.offset[lane]
    busy = load(Intervals(lane // ranks, begin + shift, end + shift), generations)
    rows: list[Row] = []
    for number in range(generations):
        covered, total, most = int(busy.covered[number]), int(busy.total[number]), int(busy.most[number])
        if reason := _no_writing(found, number):
            rows.append(dict(zip(names, (None, None, None, reason), strict=True)))
        elif not covered:
            rows.append(dict(zip(names, (0.0, 0, None, "no write call inside the stalls"), strict=True)))
        else:
            rows.append(dict(zip(names, (covered / 1e9, most, total / covered, None), strict=True)))
    return rows


def _no_writing(found: RankSaves, number: int) -> str | None:
    """Why it is not known when all ranks wrote: the first rank whose calls or clock are missing."""
    part = found.of(number)
    for leg, why, clock in zip(found.legs, found.cannot_split[part], found.on_common_clock[part].tolist(), strict=True):
        if why or not clock:
            return f"rank {leg.rank}: {why or NO_CLOCKS}"
    return None
