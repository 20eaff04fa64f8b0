"""The scaling rows as a person sees them: three tables per group, reasons as footnotes under them.

Presentation only: every number comes from the rows; here they are put into seconds or milliseconds
and rounded to three digits. Nothing is ever cut off.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from analysis.stats import Interval, interval_words
from analysis.tables import PHASE_COLUMNS
from analysis.view import Reasons, View, number

Row = dict[str, Any]

MILLISECONDS_BELOW_S = 0.5
"""A group whose stalls all lie below is printed in milliseconds: 0.00097 s is hard to read."""
SHOWN_SHARE = 0.01
"""A phase that is less than this share of every row's stall has no column of its own."""
_HEADINGS = {
    "serialize+write": "serialize\n+ write",
    "write+sync": "write\n+ sync",
    "wait_inside": "wait\ninside",
    "wait_after": "wait\nafter",
}


class _Group:
    """The rows of one group, their unit of time, and the reasons why cells hold no number."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows
        highest = max((row["stall_high_s"] for row in rows if row["stall_high_s"] is not None), default=1.0)
        self.factor, self.unit = (1000.0, "ms") if highest < MILLISECONDS_BELOW_S else (1.0, "s")
        self.reasons = Reasons()
        self.cell = self.reasons.cell

    def time(self, seconds: float | None) -> str | None:
        """Seconds in the group's unit."""
        return number(None if seconds is None else seconds * self.factor)

    def times(self, column: str, reason: str) -> list[str]:
        """A column of seconds."""
        return [self.cell(self.time(row[column]), row[reason]) for row in self.rows]

    def brackets(self, name: str) -> list[str]:
        """Median and bounds of seconds; the bounds only where there is more than one run."""
        return [self._bracket(row, name) for row in self.rows]

    def _bracket(self, row: Row, name: str) -> str:
        value, low, high = (self.time(row[f"{name}_{part}s"]) for part in ("", "low_", "high_"))
        if value is None or row[f"{name}_runs"] < 2:
            return self.cell(value, row[f"{name}_reason"])
        return f"{value} [{low}, {high}]"


def views(rows: Sequence[Row]) -> list[View]:
    """Three tables for every group of rows: the stall, who did what, the overhead."""
    found = []
    for title in dict.fromkeys(row["group"] for row in rows):
        group = _Group([row for row in rows if row["group"] == title])
        tables = [_stall_columns(group), _who_columns(group), _overhead_columns(group)]
        above = [
            *dict.fromkeys(row["setting"] for row in group.rows),
            f"brackets: {_brackets(group.rows)}; a run counts by the median of its checkpoints",
            "phases: of the slowest rank; those below 1 % of the stall are not shown",
        ]
        below = [*group.reasons.lines(), *_flags(group)]
        found += [
            View(title=title, above=above, columns=tables[0]),
            View(title="", columns=tables[1]),
            View(title="", columns=tables[2], below=below),
        ]
    return found


def _flags(group: _Group) -> list[str]:
    return [f"! {row['nodes']} x {row['ranks_per_node']}: {flag}" for row in group.rows for flag in row["flags"]]


def _brackets(rows: Sequence[Row]) -> str:
    names = {"value": "stall_s", "n": "stall_runs", "kind": "stall_kind", "coverage": "stall_coverage"}
    return interval_words([Interval(**{field: row[key] for field, key in names.items()}) for row in rows])


def _points(group: _Group) -> dict[str, list[str]]:
    return {"nodes\nx ranks": [f"{row['nodes']} x {row['ranks_per_node']}" for row in group.rows]}


def _stall_columns(group: _Group) -> dict[str, list[str]]:
    columns = _points(group) | {"\nruns": [str(row["runs"]) for row in group.rows]}
    columns[f"stall {group.unit}\nmedian [low, high]"] = group.brackets("stall")
    for phase, column in PHASE_COLUMNS.items():
        if any(_shown(row, column) for row in group.rows):
            heading = _HEADINGS.get(phase, f"\n{phase}")
            columns[heading] = group.times(column, f"{column.removesuffix('_s')}_reason")
    for part, heading in (("unattributed", "no\nphase"), ("release", "barrier\nscatter")):
        if any(_shown(row, f"{part}_s") for row in group.rows):
            columns[heading] = group.times(f"{part}_s", f"{part}_reason")
    return columns


def _shown(row: Row, column: str) -> bool:
    return row[column] is None or row["stall_s"] is None or row[column] >= SHOWN_SHARE * row["stall_s"]


def _others(row: Row, group: _Group) -> str:
    if row["ranks"] == 1:
        return "-"
    after, inside = row["others_wait_after_s"], row["others_wait_inside_s"]
    known = None if after is None or inside is None else after + inside
    return group.cell(group.time(known), row["others_wait_after_reason"])


def _cells(group: _Group, name: str, unit: str, factor: float = 1.0) -> list[str]:
    values = [row[f"{name}_{unit}"] for row in group.rows]
    texts = [number(None if value is None else value * factor) for value in values]
    return [group.cell(text, row[f"{name}_reason"]) for text, row in zip(texts, group.rows, strict=True)]


def _who_columns(group: _Group) -> dict[str, list[str]]:
    unit = group.unit
    coverages = [group.cell(number(row["coverage_min"], 4), row["coverage_reason"]) for row in group.rows]
    return _points(group) | {
        f"wait before\n{unit}, longest": group.times("wait_before_s", "wait_before_reason"),
        f"others wait\n{unit}, mean": [_others(row, group) for row in group.rows],
        "idle\nrank-s": _cells(group, "idle_rank", "s"),
        "writers\nseen/declared": [_writers(row, group) for row in group.rows],
        "on disk\nMB": _cells(group, "checkpoint", "bytes", 1e-6),
        "effective\nGB/s": _cells(group, "effective", "gb_per_s"),
        "coverage\nmin": coverages,
    }


def _overhead_columns(group: _Group) -> dict[str, list[str]]:
    steps, unit = group.rows[0]["interval_steps"], group.unit
    return _points(group) | {
        f"overhead {unit}/checkpoint\nmedian [low, high]": group.brackets("overhead_per_checkpoint"),
        f"overhead % at a checkpoint\nper {steps} steps ({unit})": [_percent(row, group) for row in group.rows],
        "deferred s\nafter last save": _cells(group, "deferred", "s"),
    }


def _writers(row: Row, group: _Group) -> str:
    def span(low: int | None, high: int | None) -> str | None:
        return None if low is None else (str(low) if low == high else f"{low}-{high}")

    seen = group.cell(span(row["writers_seen_min"], row["writers_seen_max"]), row["writers_seen_reason"])
    return f"{seen}/{span(row['writers_declared_min'], row['writers_declared_max'])}"


def _percent(row: Row, group: _Group) -> str:
    """A percentage means nothing without its interval: steps, and the time of the control's steps."""
    if row["overhead_fraction"] is None:
        return group.cell(None, row["overhead_reason"])
    return f"{100 * row['overhead_fraction']:.1f} ({group.time(row['interval_s'])})"
