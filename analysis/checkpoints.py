"""A checkpoint from its ranks' records: stall, phases, who was last, who was slow, what was written.

Pure: records, trace and inventory in, rows of the tables `saves`, `rank_saves` and `writers` out.
The stall is the maximum over ranks. Phases shown for a checkpoint are those of its slowest rank,
the one with the most own work; they add up to that rank's own stall, and with `release_s`, the
scatter of the ranks at the two barriers, to the stall.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from analysis.readers.trace import RankTrace, Traced
from analysis.tables import PHASE_COLUMNS
from hpcckpt.records import (
    BACKGROUND,
    SERIALIZE,
    SERIALIZE_WRITE,
    SYNC,
    WAIT_INSIDE,
    WRITE,
    WRITE_SYNC,
    Clock,
    Save,
    Span,
)

Row = dict[str, Any]

UNATTRIBUTED_SHARE = 0.01
UNATTRIBUTED_S = 0.001
NOT_MEASURED = "not measured: "
RECORDED, TRACED = "recorded", "traced"
"""How phases were had; else NOT_MEASURED and the reason why a composite stays."""


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """The format's declared interval of traced over on-disk bytes."""

    low: float = 0.99
    high: float = 1.05


class RankLeg(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's part of a leg with checkpoints."""

    rank: int
    node: str
    clocks: list[Clock]
    saves: dict[int, Save]
    spans: dict[int, list[Span]]
    trace: RankTrace


class Disk(msgspec.Struct, frozen=True, kw_only=True):
    """The inventory's bytes per generation and rank."""

    bytes: dict[tuple[int, int], int] = {}
    reason: str | None = None
    """Why nothing is known of any generation."""
    unknown: dict[int, str] = {}
    """generation -> why its bytes are not known."""

    def why(self, generation: int) -> str | None:
        """Why nothing is known of this generation; None where its bytes are."""
        # Every checkpoint has files: a generation without any was not listed, it does not hold 0 bytes.
        if self.reason or generation in self.unknown:
            return self.reason or self.unknown[generation]
        if any(listed == generation for listed, _ in self.bytes):
            return None
        return f"the inventory lists nothing of generation {generation}"

    def of(self, generation: int, rank: int) -> int | None:
        """Bytes of a rank's files in a generation; None with `why`."""
        return None if self.why(generation) else self.bytes.get((generation, rank), 0)


def seconds(ns: int) -> float:
    """Nanoseconds as seconds."""
    return ns / 1e9


def offset_ns(clocks: Sequence[Clock], t_ns: int) -> int | None:
    """What to add to the rank's own time at `t_ns`: linear between the measurements, constant outside."""
    if not clocks:
        return None
    ordered = sorted(clocks, key=lambda clock: clock.t_ns)
    before = [c for c in ordered if c.t_ns <= t_ns] or ordered[:1]
    after = [c for c in ordered if c.t_ns > t_ns] or ordered[-1:]
    left, right = before[-1], after[0]
    if right.t_ns <= left.t_ns:
        return left.offset_ns
    share = (t_ns - left.t_ns) / (right.t_ns - left.t_ns)
    return left.offset_ns + round(share * (right.offset_ns - left.offset_ns))


def _split(spans: Sequence[Span], traced: Traced | None, reason: str | None) -> tuple[Row, str]:
    """Seconds per phase and how they were had: recorded, traced, or why the composite stays."""
    total = dict.fromkeys(PHASE_COLUMNS, 0)
    for span in spans:
        if span.phase in total:
            total[span.phase] += span.end_ns - span.begin_ns
    how = RECORDED
    if total[SERIALIZE_WRITE]:
        if reason is None and traced is not None and traced.calls is not None:
            composite = [span for span in spans if span.phase == SERIALIZE_WRITE]
            write = sum(traced.calls.union_ns(span.begin_ns, span.end_ns) for span in composite)
            total[SERIALIZE] += total[SERIALIZE_WRITE] - write
            total[WRITE] += write
            total[SERIALIZE_WRITE] = 0
            how = TRACED
        else:
            how = NOT_MEASURED + (
                reason or (traced.calls_reason if traced else None) or "calls without times"
            )
    columns: Row = {column: seconds(total[phase]) for phase, column in PHASE_COLUMNS.items()}
    for composite_phase, parts in ((SERIALIZE_WRITE, (SERIALIZE, WRITE)), (WRITE_SYNC, (WRITE, SYNC))):
        if total[composite_phase]:
            columns |= {PHASE_COLUMNS[part]: None for part in parts}
    return columns, how


def _cannot_split(
    trace: RankTrace, traced: Traced | None, disk: int | None, expected: Expected
) -> str | None:
    """Why the write calls of a rank cannot stand for all of its writing; None where they can."""
    if trace.reason:
        return trace.reason
    if traced is None or traced.calls is None:
        return traced.calls_reason if traced else "the trace holds nothing of this generation"
    length = int(traced.calls.length.sum())
    needed = max(traced.bytes, disk or 0)
    if length < expected.low * needed:
        return f"the calls with times hold {length} of {needed} bytes"
    return None


def _coverage(traced: int | None, trace_reason: str | None, disk: int | None, disk_reason: str | None) -> Row:
    if traced is None or disk is None:
        return {"coverage": None, "coverage_reason": trace_reason or disk_reason}
    if not disk:
        return {"coverage": None, "coverage_reason": "the rank has nothing on disk"}
    return {"coverage": traced / disk, "coverage_reason": None}


def rank_row(run: str, leg: RankLeg, generation: int, disk: Disk, expected: Expected) -> Row:
    """The `rank_saves` row of one rank and generation."""
    save, spans = leg.saves[generation], leg.spans.get(generation, [])
    traced = None if leg.trace.reason else leg.trace.generations.get(generation)
    on_disk = disk.of(generation, leg.rank)
    phases, split = _split(spans, traced, _cannot_split(leg.trace, traced, on_disk, expected))
    stall = seconds(save.end_ns - save.begin_ns)
    attributed = sum(span.end_ns - span.begin_ns for span in spans if span.phase in PHASE_COLUMNS)
    trace_reason = leg.trace.reason or (None if traced else "the trace holds nothing of this generation")
    coverage = _coverage(traced.bytes if traced else None, trace_reason, on_disk, disk.why(generation))
    ratio = coverage["coverage"]
    offset = offset_ns(leg.clocks, save.arrive_ns)
    inside = sum(span.end_ns - span.begin_ns for span in spans if span.phase == WAIT_INSIDE)
    return {
        "run": run,
        "generation": generation,
        "rank": leg.rank,
        "node": leg.node,
        "arrive_ns": None if offset is None else save.arrive_ns + offset,
        "begin_ns": None if offset is None else save.begin_ns + offset,
        "wait_before_s": seconds(save.begin_ns - save.arrive_ns),
        "stall_s": stall,
        "own_s": seconds(save.done_ns - save.begin_ns - inside),
        **phases,
        "unattributed_s": seconds(save.end_ns - save.begin_ns - attributed),
        "split": split,
        "background_s": seconds(sum(s.end_ns - s.begin_ns for s in spans if s.phase == BACKGROUND)),
        "planned_bytes": save.planned_bytes,
        "traced_bytes": traced.bytes if traced else None,
        "trace_reason": trace_reason,
        "disk_bytes": on_disk,
        "bytes_reason": disk.why(generation),
        **coverage,
        "coverage_ok": None if ratio is None else expected.low <= ratio <= expected.high,
        **_calls(traced, save),
        **{name: getattr(save, name) for name in _FROM_SAVE},
    }


_FROM_SAVE = (
    "rss_before_bytes",
    "rss_peak_bytes",
    "rss_reason",
    "write_chars_bytes",
    "storage_bytes",
    "io_reason",
)


def _calls(traced: Traced | None, save: Save) -> Row:
    """Number of write calls, and when the first began and the last ended after the stall's begin."""
    if traced is None or traced.calls is None:
        return {"write_calls": None, "first_write_s": None, "last_write_s": None}
    calls = traced.calls
    if not len(calls.begin_ns):
        return {"write_calls": 0, "first_write_s": None, "last_write_s": None}
    return {
        "write_calls": len(calls.begin_ns),
        "first_write_s": seconds(int(calls.begin_ns.min()) - save.begin_ns),
        "last_write_s": seconds(int(calls.end_ns.max()) - save.begin_ns),
    }


def save_row(step: int, state_bytes: int, ranks: list[Row], clock_error_ns: int | None) -> Row:
    """The `saves` row of one generation from the `rank_saves` rows of all ranks."""
    slowest = max(ranks, key=lambda row: row["own_s"])
    others = [row for row in ranks if row is not slowest]
    stall = max(row["stall_s"] for row in ranks)
    size, bytes_reason = _total(ranks, "disk_bytes", "bytes_reason")
    return {
        "run": slowest["run"],
        "generation": slowest["generation"],
        "step": step,
        "stall_s": stall,
        "wait_before_s": max(row["wait_before_s"] for row in ranks),
        **_arrival(ranks, clock_error_ns),
        "slowest": slowest["rank"],
        "slower_by_s": _slower_by(slowest, others),
        **{name: slowest[name] for name in (*PHASE_COLUMNS.values(), "unattributed_s", "split")},
        "release_s": stall - slowest["stall_s"],
        "others_wait_inside_s": _mean([row["wait_inside_s"] for row in others]),
        "others_wait_after_s": _mean([row["wait_after_s"] for row in others]),
        "idle_rank_s": sum(map(_idle, ranks)),
        "others_idle_rank_s": sum(map(_idle, ranks)) - _idle(_main_writer(ranks, slowest)),
        "background_s": max(row["background_s"] for row in ranks),
        "unattributed_max_s": max((row["unattributed_s"] for row in ranks), key=abs),
        "unattributed_ok": all(attributed(row) for row in ranks),
        **_writers(ranks),
        "checkpoint_bytes": size,
        "bytes_reason": bytes_reason,
        "effective_gb_per_s": size / stall / 1e9 if size is not None and stall > 0 else None,
        **_coverages(ranks),
        "state_bytes": state_bytes,
    }


def _idle(row: Row) -> float:
    return float(row["wait_inside_s"] + row["wait_after_s"])


def _main_writer(ranks: list[Row], slowest: Row) -> Row:
    """The rank that was given most bytes; of equals the slowest, else the first."""
    most = max(row["planned_bytes"] for row in ranks)
    return max(ranks, key=lambda row: (row["planned_bytes"] == most, row is slowest))


def attributed(row: Row) -> bool:
    """Law 2 for one rank: what no phase explains is at most 1 % of its stall or 1 ms."""
    return bool(abs(row["unattributed_s"]) <= max(UNATTRIBUTED_SHARE * row["stall_s"], UNATTRIBUTED_S))


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _total(ranks: list[Row], column: str, reason: str) -> tuple[int | None, str | None]:
    """Sum over ranks, or the first reason why a rank has none."""
    missing = next((row for row in ranks if row[column] is None), None)
    return (None, missing[reason]) if missing else (sum(row[column] for row in ranks), None)


def _arrival(ranks: list[Row], clock_error_ns: int | None) -> Row:
    names = ("last_to_arrive", "late_by_s", "clock_error_s", "clock_reason")
    if len(ranks) < 2:
        return dict(zip(names, (ranks[0]["rank"], None, 0.0, "one rank waits for nobody"), strict=True))
    if clock_error_ns is None or any(row["arrive_ns"] is None for row in ranks):
        return dict(zip(names, (None, None, None, "clocks of the hosts were not compared"), strict=True))
    by_arrival = sorted(ranks, key=lambda row: (row["arrive_ns"], row["rank"]))
    late = seconds(by_arrival[-1]["arrive_ns"] - by_arrival[-2]["arrive_ns"])
    return dict(zip(names, (by_arrival[-1]["rank"], late, seconds(clock_error_ns), None), strict=True))


def _slower_by(slowest: Row, others: list[Row]) -> float | None:
    """Lead over the next of its peers. A writer's peers are writers: that it works longer is its task."""
    peers = [row for row in others if row["planned_bytes"]] if slowest["planned_bytes"] else others
    return slowest["own_s"] - max(row["own_s"] for row in peers) if peers else None


def _writers(ranks: list[Row]) -> Row:
    unseen = [row for row in ranks if row["traced_bytes"] is None]
    reason = f"rank {unseen[0]['rank']}: {unseen[0]['trace_reason']}" if unseen else None
    return {
        "writers_seen": None if unseen else sum(row["traced_bytes"] > 0 for row in ranks),
        "writers_declared": sum(row["planned_bytes"] > 0 for row in ranks),
        "trace_reason": reason,
    }


def _coverages(ranks: list[Row]) -> Row:
    """Over the ranks with files on disk; one without coverage leaves law 1 undecided, unless it is broken."""
    writers = [row for row in ranks if row["disk_bytes"] != 0]
    known = [row["coverage"] for row in writers if row["coverage"] is not None]
    unknown = next((row for row in writers if row["coverage"] is None), None)
    verdicts = [row["coverage_ok"] for row in writers]
    reason = f"rank {unknown['rank']}: {unknown['coverage_reason']}" if unknown else None
    return {
        "coverage_min": min(known, default=None),
        "coverage_max": max(known, default=None),
        "coverage_ok": False if False in verdicts else (None if unknown or not known else True),
        "coverage_reason": reason or (None if known else "no rank has anything on disk"),
    }


def writer_rows(rows: Sequence[Row], legs: dict[int, RankLeg]) -> list[Row]:
    """The `writers` rows of a generation: ranks with planned, traced or stored bytes."""
    writers = [row for row in rows if row["planned_bytes"] or row["traced_bytes"] or row["disk_bytes"]]
    return [_writer_row(row, legs[row["rank"]]) for row in writers]


def _writer_row(row: Row, leg: RankLeg) -> Row:
    save = leg.saves[row["generation"]]
    traced = leg.trace.generations.get(row["generation"])
    known = traced is not None and traced.calls is not None
    names = (
        "run",
        "generation",
        "rank",
        "node",
        "planned_bytes",
        "traced_bytes",
        "disk_bytes",
        "trace_reason",
    )
    write = seconds(traced.calls.union_ns(save.begin_ns, save.end_ns)) if known else None  # type: ignore[union-attr]
    return {**{name: row[name] for name in names}, "write_s": write}
