"""The findings MM01 to MM04 of the question on memory, from its rows.

Thresholds stand here with their reasons; nothing is counted or shown.
"""

from __future__ import annotations

from analysis.finding import Finding, counted, not_measured
from analysis.rows import Row

COPY = 0.5
"""Copies of the planned bytes from which a save makes another one: buffers are a few per cent, a copy is 1."""
NOTICED = 0.1
"""Share of the state from which memory is more than an allocator's noise."""
_LEAVE = (
    "Leave so much memory free on the writer. Ask model_size whether it grows with the model: a buffer of fixed size "
    "looks like a copy of a small one."
)
UNEVEN = 1.5
"""Largest over mean extra memory from which one rank decides how much a node must have."""


def findings(row: Row) -> list[Finding]:
    """All findings of a row."""
    return [claim(row) for claim in (copy, others, one_rank, grows)]


def copy(row: Row) -> Finding:
    """MM01: a writer needs extra memory like another copy of what it writes."""
    code, claim = "MM01", "a writer needs extra memory like another copy of what it writes"
    value = row["extra_over_planned_ratio"]
    if value is None:
        return not_measured(code, claim, row["group"], row["extra_over_planned_reason"], row["evidence"])
    copies = value >= COPY
    return Finding(
        code=code, claim=claim, group=row["group"], value=value, unit="copies", evidence=row["evidence"],
        low=row["extra_over_planned_low_ratio"], high=row["extra_over_planned_high_ratio"],
        verdict="supports" if copies else "contradicts", level="warning" if copies else "ok",
        sentence=f"in its fullest save rank {row['main_writer']}, the main writer in {row['main_writer_runs']} of "
        f"{counted(row['runs'], 'run')}, grows by {row['main_writer_extra_bytes'] / 1e6:.4g} MB, {value:.2f} times the "
        f"{row['main_writer_planned_bytes'] / 1e6:.4g} MB that it was given; any writer by up to "
        f"{row['extra_writers_bytes'] / 1e6:.4g} MB, of a job whose state has {row['state_bytes'] / 1e6:.4g} MB",
        recommendation=_LEAVE if copies else None,
        for_developers="Stream tensor by tensor from the training's own memory." if copies else None,
    )  # fmt: skip


def others(row: Row) -> Finding:
    """MM02: ranks that write nothing need extra memory too."""
    code, claim, value = "MM02", "ranks that write nothing need extra memory for a save", row["extra_others_bytes"]
    if value is None or not row["state_bytes"]:
        reason = row["extra_others_reason"] or "the state is empty"
        return not_measured(code, claim, row["group"], reason, row["evidence"])
    much = value >= NOTICED * row["state_bytes"]
    return Finding(
        code=code, claim=claim, group=row["group"], value=value, unit="bytes", evidence=row["evidence"],
        low=row["extra_others_low_bytes"], high=row["extra_others_high_bytes"],
        verdict="supports" if much else "contradicts", level="info" if much else "ok",
        sentence=f"on ranks that write nothing, resident memory grows by up to {value / 1e6:.4g} MB in a save, "
        f"{100 * value / row['state_bytes']:.1f} % of the state",
        for_developers="Don't copy to the host on ranks that will not write." if much else None,
    )  # fmt: skip


def one_rank(row: Row) -> Finding:
    """MM03: one rank needs much more extra memory than the others."""
    code, claim, value = "MM03", "one rank needs much more extra memory than the others", row["spread"]
    if row["ranks"] < 2 or value is None or row["extra_bytes"] is None:
        reason = "one rank has no others" if row["ranks"] < 2 else row["extra_reason"] or "no rank needs any"
        return not_measured(code, claim, row["group"], reason, row["evidence"])
    much = row["extra_bytes"] >= NOTICED * (row["state_bytes"] or 0)
    uneven = value >= UNEVEN and much
    return Finding(
        code=code, claim=claim, group=row["group"], value=value, unit="largest/mean", evidence=row["evidence"],
        verdict="supports" if uneven else "contradicts", level="info" if uneven else "ok",
        sentence=f"the fullest rank has {value:.2f} times the mean, {row['extra_bytes'] / 1e6:.4g} MB extra"
        f"{'' if much else ', which is little'}; it is rank {row['fullest_rank']} in {row['fullest_runs']} of "
        f"{counted(row['runs'], 'run')}",
        recommendation="Place that rank where memory is free, or let all ranks write a part." if uneven else None,
    )  # fmt: skip


def grows(row: Row) -> Finding:
    """MM04: memory stays resident from save to save."""
    code, claim, value = "MM04", "memory stays resident from save to save", row["growth_bytes"]
    if value is None or not row["state_bytes"]:
        return not_measured(code, claim, row["group"], row["growth_reason"] or "the state is empty", row["evidence"])
    much = value >= NOTICED * row["state_bytes"]
    return Finding(
        code=code, claim=claim, group=row["group"], value=value, unit="bytes", evidence=row["evidence"],
        low=row["growth_low_bytes"], high=row["growth_high_bytes"],
        verdict="supports" if much else "contradicts", level="warning" if much else "ok",
        sentence=f"before the last save {value / 1e6:.4g} MB more are resident than before the second one, on the rank "
        "that grew most",
        recommendation="Compare with the control's steps before blaming the save." if much else None,
    )  # fmt: skip
