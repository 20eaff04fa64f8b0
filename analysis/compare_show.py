"""The rows of a comparison as a person sees them. Presentation only: rounding, no arithmetic on measurements."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.rows import Row
from analysis.view import Reasons, View, number

LEFT = ["framework", "strategy", "format", "model", "verdict"]
_SCALES = {"stall": ("ms", 1e3), "overhead": ("ms", 1e3), "bytes": ("MB", 1e-6)}


def views(rows: Sequence[Row]) -> list[View]:
    """One table per metric, with what both sides have in common and what differs."""
    metrics = dict.fromkeys(row["metric"] for row in rows)
    return [_table(metric, [row for row in rows if row["metric"] == metric]) for metric in metrics]


def label(row: Row) -> str:
    """A point's name in a chart."""
    kind = ", durable" if row["durable"] else ""
    where = f"{row['nodes']} x {row['ranks_per_node']}"
    return f"{row['framework']} {row['strategy']}\n{row['format']} {row['model']}, {where}{kind}"


def _table(metric: str, rows: Sequence[Row]) -> View:
    reasons, (unit, factor) = Reasons(), _SCALES[metric]

    def side(name: str) -> list[str]:
        return [_bracket([row[name], row[f"{name}_low"], row[f"{name}_high"]], factor, row, reasons) for row in rows]

    ratios = [_bracket([row[f"ratio{part}"] for part in ("", "_low", "_high")], 1.0, row, reasons) for row in rows]
    columns = {
        **{name: [str(row[name]) for row in rows] for name in ("framework", "strategy", "format", "model")},
        "nodes\nx ranks": [f"{row['nodes']} x {row['ranks_per_node']}" for row in rows],
        "durable": ["yes" if row["durable"] else "no" for row in rows],
        "runs": [f"{row['base_runs']}/{row['new_runs']}" for row in rows],
        f"BASE {unit}\nmedian [low, high]": side("base"),
        f"NEW {unit}\nmedian [low, high]": side("new"),
        "NEW over BASE\n[low, high]": ratios,
        "coverage\n%": [_percent(row, reasons) for row in rows],
        "verdict": [row["verdict"] if row["reason"] is None else _undecided(row, reasons) for row in rows],
    }
    noted = [f"! {flag}" for flag in dict.fromkeys(flag for row in rows for flag in row["flags"])]
    return View(title=f"{metric}, {_commits(rows)}", columns=columns, left=LEFT, below=[*reasons.lines(), *noted])


def _bracket(numbers: list[float | None], factor: float, row: Row, reasons: Reasons) -> str:
    value, low, high = (number(None if each is None else each * factor, 4) for each in numbers)
    if value is None:
        return reasons.cell(None, row["reason"])
    return value if low is None else f"{value} [{low}, {high}]"


def _percent(row: Row, reasons: Reasons) -> str:
    return reasons.cell(number(None if row["coverage"] is None else 100 * row["coverage"]), row["reason"])


def _undecided(row: Row, reasons: Reasons) -> str:
    return reasons.cell(None, row["reason"]).replace("n.m.", row["verdict"])


def _commits(rows: Sequence[Row]) -> str:
    def of(name: str) -> str:
        found = sorted({commit for row in rows for commit in row[f"{name}_commits"]})
        return ", ".join(commit[:12] for commit in found) or "no runs"

    return f"BASE {of('base')}, NEW {of('new')}"
