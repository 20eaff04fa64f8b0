"""Every rank's part of every checkpoint of a run, a column at a time: phases, bytes, coverage, when it wrote.

Pure: records, trace and inventory in, columns out. What a checkpoint is as a whole, and the tables,
`analysis.checkpoints` says. There may be a thousand ranks, so nothing here loops over them but to
take their records apart and to put reasons in words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from analysis.concurrency import Intervals, clipped, covered, united
from analysis.rank_leg import Disk, Expected, Ns, RankLeg, offsets_ns
from analysis.readers.trace import Traced, no_calls
from analysis.tables import PHASE_COLUMNS, RANK_SAVES
from hpcckpt.records import BACKGROUND, SERIALIZE, SERIALIZE_WRITE, SYNC, WAIT_INSIDE, WRITE, WRITE_SYNC, Save, Span

Bools = npt.NDArray[np.bool_]
Reasons = list[str | None]

NOT_MEASURED = "not measured: "
RECORDED, TRACED = "recorded", "traced"
"""How phases were had; else NOT_MEASURED and the reason why a composite stays."""
NOTHING_TRACED = "the trace holds nothing of this generation"
NO_CLOCKS = "clocks of the hosts were not compared"

_PHASES = {phase: number for number, phase in enumerate((*PHASE_COLUMNS, BACKGROUND))}
_OTHER = len(_PHASES)
_FROM_SAVE = (
    "rss_before_bytes",
    "rss_peak_bytes",
    "rss_reason",
    "write_chars_bytes",
    "storage_bytes",
    "io_reason",
)


class RankSaves:
    """Columns with one entry per generation and rank, generation by generation."""

    def __init__(
        self, run: str, legs: Sequence[RankLeg], generations: Sequence[int], disk: Disk, expected: Expected
    ) -> None:
        self.run, self.legs, self.generations = run, legs, generations
        self.disk, self.expected = disk, expected
        self.saves: list[Save] = [leg.saves[generation] for generation in generations for leg in legs]
        self.begin, self.end = self._whole("begin_ns"), self._whole("end_ns")
        self.planned = self._whole("planned_bytes")
        self.stall = self.end - self.begin
        self.wait_before = self.begin - self._whole("arrive_ns")
        self._take_trace()
        self._take_disk()
        self._take_phases()
        self.own: Ns = self._whole("done_ns") - self.begin - self.phase(WAIT_INSIDE)
        self.offset, self.on_common_clock = self._offsets()

    def of(self, generation: int) -> slice:
        """Where the entries of the generation with this number in `generations` lie."""
        return slice(generation * len(self.legs), (generation + 1) * len(self.legs))

    def phase(self, phase: str) -> Ns:
        """Nanoseconds that each rank spent in a phase; meaningless where `unseen(phase)`."""
        found: Ns = self._totals[_PHASES[phase]]
        return found

    def unseen(self, phase: str) -> Bools:
        """Where a phase cannot be told: it is within a composite."""
        composite = {SERIALIZE: (SERIALIZE_WRITE,), WRITE: (SERIALIZE_WRITE, WRITE_SYNC), SYNC: (WRITE_SYNC,)}
        found = np.zeros(len(self.saves), dtype=bool)
        for name in composite.get(phase, ()):
            found |= self.phase(name) > 0
        return found

    def _whole(self, name: str) -> Ns:
        return np.fromiter(map(attrgetter(name), self.saves), np.int64, len(self.saves))

    def _each_leg(self, value: Callable[[RankLeg], Any]) -> list[Any]:
        """A fact of the rank, for each of its entries."""
        return [value(leg) for leg in self.legs] * len(self.generations)

    # ---- what was traced

    def _take_trace(self) -> None:
        legs = self.legs
        self.traced: list[Traced | None] = [
            None if leg.trace.reason else leg.trace.generations.get(generation)
            for generation in self.generations
            for leg in legs
        ]
        self.is_traced = np.array([traced is not None for traced in self.traced], dtype=bool)
        self.traced_bytes = np.array([0 if traced is None else traced.bytes for traced in self.traced], np.int64)
        self.trace_reason: Reasons = [
            reason or (None if traced else NOTHING_TRACED)
            for reason, traced in zip(self._each_leg(lambda leg: leg.trace.reason), self.traced, strict=True)
        ]
        none = no_calls()
        calls = [none if traced is None or traced.calls is None else traced.calls for traced in self.traced]
        self.has_calls = np.array([traced is not None and traced.calls is not None for traced in self.traced], bool)
        self.calls_made = np.array([len(each.begin_ns) for each in calls], np.int64)
        lane = np.repeat(np.arange(len(calls)), self.calls_made)
        begin, end, length = (
            np.concatenate([np.empty(0, np.int64), *(getattr(each, name) for each in calls)])
            for name in ("begin_ns", "end_ns", "length")
        )
        self.calls_bytes = np.zeros(len(calls), np.int64)
        np.add.at(self.calls_bytes, lane, length)
        self.first_call, self.last_call = self.end.copy(), self.begin.copy()
        written = self.calls_made > 0
        starts = (np.cumsum(self.calls_made) - self.calls_made)[written]
        if len(starts):
            self.first_call[written] = np.minimum.reduceat(begin, starts)
            self.last_call[written] = np.maximum.reduceat(end, starts)
        self.writing = united(clipped(Intervals(lane, begin, end), self.begin, self.end))
        """When each rank wrote, within its stall, on its own clock."""
        self.write = np.zeros(len(calls), np.int64)
        np.add.at(self.write, self.writing.lane, self.writing.end - self.writing.begin)

    def _take_disk(self) -> None:
        ranks = [leg.rank for leg in self.legs]
        self.bytes_reasons = [self.disk.why(generation) for generation in self.generations]
        self.disk_bytes = np.array(
            [self.disk.of(generation, rank) or 0 for generation in self.generations for rank in ranks], np.int64
        )
        self.bytes_known = np.repeat([reason is None for reason in self.bytes_reasons], len(ranks)).astype(bool)
        self.has_coverage = self.is_traced & self.bytes_known & (self.disk_bytes > 0)
        self.coverage = self.traced_bytes / np.maximum(self.disk_bytes, 1)
        self.coverage_ok = (self.expected.low <= self.coverage) & (self.coverage <= self.expected.high)

    def coverage_reason(self, entry: int) -> str | None:
        if self.has_coverage[entry]:
            return None
        if self.is_traced[entry] and self.bytes_known[entry]:
            return "the rank has nothing on disk"
        return self.trace_reason[entry] or self.bytes_reasons[entry // len(self.legs)]

    # ---- phases

    def _take_phases(self) -> None:
        spans: list[Span] = []
        counts: list[int] = []
        for generation in self.generations:
            for leg in self.legs:
                mine = leg.spans.get(generation, [])
                spans += mine
                counts.append(len(mine))
        lane = np.repeat(np.arange(len(counts)), counts)
        code = np.fromiter((_PHASES.get(span.phase, _OTHER) for span in spans), np.int64, len(spans))
        begin = np.fromiter(map(attrgetter("begin_ns"), spans), np.int64, len(spans))
        end = np.fromiter(map(attrgetter("end_ns"), spans), np.int64, len(spans))
        self._totals = np.zeros((_OTHER + 1, len(counts)), np.int64)
        np.add.at(self._totals, (code, lane), end - begin)
        self.unattributed = self.stall - sum(self.phase(phase) for phase in PHASE_COLUMNS)
        composite = code == _PHASES[SERIALIZE_WRITE]
        self._split(Intervals(lane[composite], begin[composite], end[composite]))

    def _split(self, composite: Intervals) -> None:
        """Take the write calls out of what was serialised and written at once, where they are all known."""
        self.cannot_split = [self._cannot_split(entry) for entry in range(len(self.saves))]
        has_composite = self.phase(SERIALIZE_WRITE) > 0
        possible = has_composite & np.array([reason is None for reason in self.cannot_split], bool)
        write = np.zeros(len(self.saves), np.int64)
        np.add.at(write, composite.lane, covered(self.writing, *composite))
        for phase, more in (
            (SERIALIZE, self.phase(SERIALIZE_WRITE) - write),
            (WRITE, write),
            (SERIALIZE_WRITE, -self.phase(SERIALIZE_WRITE)),
        ):
            self.phase(phase)[possible] += more[possible]
        self.split = [
            RECORDED if not composed else TRACED if reason is None else NOT_MEASURED + reason
            for composed, reason in zip(has_composite.tolist(), self.cannot_split, strict=True)
        ]

    def _cannot_split(self, entry: int) -> str | None:
        """Why the write calls of a rank cannot stand for all of its writing; None where they can."""
        traced = self.traced[entry]
        if traced is None:
            return self.trace_reason[entry]
        if traced.calls is None:
            return traced.calls_reason or "calls without times"
        length, needed = int(self.calls_bytes[entry]), max(traced.bytes, int(self.disk_bytes[entry]))
        if length < self.expected.low * needed:
            return f"the calls with times hold {length} of {needed} bytes"
        return None

    def _offsets(self) -> tuple[Ns, Bools]:
        """What to add to a rank's own times, and whether that is known."""
        shape = (len(self.generations), len(self.legs))
        arrive = self._whole("arrive_ns").reshape(shape)
        found, known = np.zeros(shape, np.int64), np.zeros(shape, bool)
        for column, leg in enumerate(self.legs):
            offsets = offsets_ns(leg.clocks, arrive[:, column])
            if offsets is not None:
                found[:, column], known[:, column] = offsets, True
        return found.ravel(), known.ravel()

    # ---- the tables

    def frame(self) -> pl.DataFrame:
        """The table `rank_saves`."""
        nothing = self.calls_made == 0
        arrive = self._whole("arrive_ns")
        columns: dict[str, Any] = {
            "run": [self.run] * len(self.saves),
            "generation": np.repeat(np.array(self.generations, np.int64), len(self.legs)),
            "rank": self._each_leg(lambda leg: leg.rank),
            "node": self._each_leg(lambda leg: leg.node),
            "arrive_ns": _known(arrive + self.offset, self.on_common_clock),
            "begin_ns": _known(self.begin + self.offset, self.on_common_clock),
            "wait_before_s": self.wait_before / 1e9,
            "stall_s": self.stall / 1e9,
            "own_s": self.own / 1e9,
            **{column: _known(self.phase(phase) / 1e9, ~self.unseen(phase)) for phase, column in PHASE_COLUMNS.items()},
            "unattributed_s": self.unattributed / 1e9,
            "split": self.split,
            "background_s": self.phase(BACKGROUND) / 1e9,
            "planned_bytes": self.planned,
            "traced_bytes": _known(self.traced_bytes, self.is_traced),
            "trace_reason": self.trace_reason,
            "disk_bytes": _known(self.disk_bytes, self.bytes_known),
            "bytes_reason": [reason for reason in self.bytes_reasons for _ in self.legs],
            "coverage": _known(self.coverage, self.has_coverage),
            "coverage_reason": [self.coverage_reason(entry) for entry in range(len(self.saves))],
            "coverage_ok": _known(self.coverage_ok, self.has_coverage),
            "write_calls": _known(self.calls_made, self.has_calls),
            "fsync_calls": [traced.fsyncs if traced else None for traced in self.traced],
            "first_write_s": _known((self.first_call - self.begin) / 1e9, ~nothing),
            "last_write_s": _known((self.last_call - self.begin) / 1e9, ~nothing),
            **{name: list(map(attrgetter(name), self.saves)) for name in _FROM_SAVE},
            "cpu_s": [None if save.cpu_ns is None else save.cpu_ns / 1e9 for save in self.saves],
            **self._gpu(),
        }
        schema = {column: kind for column, (kind, _) in RANK_SAVES.items()}
        return pl.DataFrame({column: columns[column] for column in schema}, schema=schema)

    def _gpu(self) -> dict[str, list[Any]]:
        found: list[tuple[float | None, str | None]] = []
        samples = [_samples(leg) for leg in self.legs]
        for entry, save in enumerate(self.saves):
            times, busy, reason = samples[entry % len(self.legs)]
            inside = busy[slice(*np.searchsorted(times, [save.begin_ns, save.end_ns + 1]))] if len(times) else busy
            found.append((float(inside.mean()), None) if len(inside) else (None, reason))
        busy_, reasons = zip(*found, strict=True) if found else ((), ())
        return {"gpu_busy": list(busy_), "gpu_reason": list(reasons)}

    def writers(self, table: pl.DataFrame) -> pl.DataFrame:
        """The table `writers`, from the table `rank_saves`: entries with planned, traced or stored bytes."""
        names = ["run", "generation", "rank", "node", "planned_bytes", "traced_bytes", "disk_bytes", "trace_reason"]
        rows = (self.planned > 0) | (self.traced_bytes > 0) | (self.disk_bytes > 0)
        write = _known(self.write / 1e9, self.has_calls).alias("write_s")
        return table.select(names).with_columns(write).filter(rows)


def _known(values: npt.NDArray[Any], known: Bools) -> pl.Series:
    """The values, null where they are not known."""
    found = pl.DataFrame({"value": values, "known": known})
    return found.select(pl.when("known").then("value").alias("value")).to_series()


def _samples(leg: RankLeg) -> tuple[Ns, npt.NDArray[np.float64], str]:
    """Times and values of the rank's GPU samples in order, and why a stall may hold none."""
    if leg.gpu is None:
        return np.empty(0, np.int64), np.empty(0), "no GPU samples in this trace"
    times = np.array(leg.gpu.t_ns, np.int64)
    order = np.argsort(times, kind="stable")
    reason = leg.gpu.reason or "no GPU sample fell into the stall"
    return times[order], np.array(leg.gpu.busy, float)[order], reason
