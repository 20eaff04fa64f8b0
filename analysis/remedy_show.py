"""Strategies side by side as a person sees them: tables, a figure of the differences, and what was not measured.

Presentation only: every number is a row's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from analysis import remedy_figure
from analysis.figures import MECHANISM
from analysis.view import Drawing, Reasons, View, mega, number

Row = dict[str, Any]
LEFT = ["strategy", "format", "against"]
LEGEND = [
    "less is better: a difference is this strategy less its base, run by run, median [lowest, highest]",
    "memory: growth of the fullest rank in a run's fullest save; read back: all files, copies too, by one rank",
]
RATED = [
    "lost: wall clock for checkpoints and repeated work, restarts not counted; best: Daly's, with the cost's bounds;",
    "the cost of a checkpoint is its stall, or its overhead against the control where that is surely more",
]


def views(rows: Sequence[Row]) -> list[View]:
    """Three tables for each framework, model and point: stall, what it costs, how often to save."""
    found = []
    for title in dict.fromkeys(map(_title, rows)):
        mine = sorted((row for row in rows if _title(row) == title), key=_order)
        above = [MECHANISM + ": virtual nodes"] if any(row["virtual_nodes"] for row in mine) else []
        for number_, (columns, below) in enumerate(((STALL, LEGEND[:1]), (COST, LEGEND[1:]), (RATE, RATED))):
            reasons = Reasons()
            cells = {heading: [cell(row, reasons) for row in mine] for heading, cell in (LABELS | columns).items()}
            lines = [*reasons.lines(), *below]
            first = {"title": title, "above": above} if not number_ else {"title": "", "above": []}
            found.append(View(columns=cells, left=LEFT, below=lines, **first))  # type: ignore[arg-type]
    return found


def _title(row: Row) -> str:
    kind = "durable" if row["durable"] else "buffered"
    planted = f", planted faults: {row['faults']}" if row["faults"] else ""
    commit = f", commit {row['commit'][:12]}" if row["commit"] else ""
    head = f"{row['framework']}, model {row['model']}, {kind}, every {row['interval_steps']} steps, site {row['site']}"
    return f"{head}{planted}{commit}"


def _order(row: Row) -> tuple[Any, ...]:
    return row["nodes"], row["ranks_per_node"], not row["is_base"], row["strategy"], row["format"], row["group"]


def _value(name: str, reason: str, factor: float = 1.0) -> Any:
    def cell(row: Row, reasons: Reasons) -> str:
        value = row[name]
        return reasons.cell(number(None if value is None else value * factor), row[reason])

    return cell


def _bracket(stem: str, unit: str, reason: str, factor: float, runs: str) -> Any:
    """Median and bounds; the bounds only where more than one run, or pair, is behind them."""

    def cell(row: Row, reasons: Reasons) -> str:
        values = [row[f"{stem}{part}{unit}"] for part in ("", "_low", "_high")]
        if values[0] is None:
            return reasons.cell(None, row[reason])
        texts = [number(value * factor) for value in values]
        return str(texts[0]) if row[runs] < 2 else f"{texts[0]} [{texts[1]}, {texts[2]}]"

    return cell


def _ratio(name: str, reason: str) -> Any:
    def cell(row: Row, reasons: Reasons) -> str:
        return reasons.cell(number(row[name]), row[reason] or "nothing on the other side to divide by")

    return cell


def _mega(name: str, reason: str) -> Any:
    return lambda row, reasons: reasons.cell(mega(row[name]), row[reason])


def _percent(name: str, reason: str) -> Any:
    def cell(row: Row, reasons: Reasons) -> str:
        return reasons.cell(None if row[name] is None else f"{100 * row[name]:.3g} %", row[reason])

    return cell


def _lost(row: Row, reasons: Reasons) -> str:
    if row["lost_share"] is None:
        return reasons.cell(None, row["stall_reason"])
    return f"{100 * row['lost_share']:.3g} % ({number(row['every_s'] / 60)})"


LABELS: dict[str, Any] = {
    "nodes\nx ranks": lambda row, _: f"{row['nodes']} x {row['ranks_per_node']}",
    "strategy": lambda row, _: row["strategy"],
    "format": lambda row, _: row["format"],
}
STALL: dict[str, Any] = {
    "\nruns": lambda row, _: str(row["runs"]),
    "stall ms\nmedian [low, high]": _bracket("stall", "_s", "stall_reason", 1e3, "runs"),
    "behind\nit ms": _value("background_s", "background_reason", 1e3),
    "against": lambda row, _: "-" if row["is_base"] or not row["base"] else row["base"],
    "\npairs": lambda row, _: str(row["pairs"]),
    "stall ms\nmore [low, high]": _bracket("stall_more", "_s", "stall_more_reason", 1e3, "stall_more_runs"),
    "times\nits stall": _ratio("stall_ratio", "stall_more_reason"),
    "overhead ms/\ncheckpoint more": _value(
        "overhead_per_checkpoint_more_s", "overhead_per_checkpoint_more_reason", 1e3
    ),
}
COST: dict[str, Any] = {
    "MB\non disk": _mega("checkpoint_bytes", "checkpoint_reason"),
    "times\nits bytes": _ratio("checkpoint_ratio", "checkpoint_more_reason"),
    "\nfiles": _value("files", "files_reason"),
    "memory\nMB": _mega("memory_bytes", "memory_reason"),
    "memory MB\nmore": _mega("memory_more_bytes", "memory_more_reason"),
    "read\nback ms": _value("read_s", "read_reason", 1e3),
    "of it in\nmemory": _percent("cached", "cached_reason"),
    "read back\nms more": _value("read_more_s", "read_more_reason", 1e3),
}
RATE: dict[str, Any] = {
    "MTBF\nhours": lambda row, _: number(row["mtbf_s"] / 3600) or "0",
    "lost, every\nstated min": _lost,
    "best interval min\n[low, high]": _bracket("best", "_s", "stall_reason", 1 / 60, "runs"),
    "Young's\nmin": _value("young_s", "stall_reason", 1 / 60),
    "lost at\nthe best": _percent("lost_share_at_best", "stall_reason"),
}


def notes(rows: Sequence[Row], mtbf_s: float, every_s: float) -> list[str]:
    """What the rows have in common, and what is not in them."""
    if not rows:
        return []
    rated = (
        f"Lost shares hold for a failure of the job every {mtbf_s / 3600:g} hours on average and a checkpoint every "
        f"{every_s / 60:g} minutes (--mtbf, --interval). The time to restart is not measured and counts as nothing, "
        "so each share is a lower bound."
    )
    found = [rated]
    if not any(row["base"] and not row["is_base"] for row in rows):
        found.append("Nothing to compare: these runs have one strategy for each framework, model and point.")
    if any(row["cached"] for row in rows):
        found.append("Reads of pages that lay in memory say nothing of the disk: mind the share beside each time.")
    if any(row["asynchronous"] for row in rows):
        found.append(
            "A strategy that writes behind its stall is rated by the stall alone; until the work behind is done, "
            "a failure falls back to the checkpoint before, which is in the lost share."
        )
    if any(not row["durable"] for row in rows):
        found.append("Buffered checkpoints lie in memory when training goes on: a node that fails may take them along.")
    return found


def drawings(rows: Sequence[Row]) -> list[Drawing]:
    """The strategies side by side, for each framework and model."""
    return remedy_figure.drawings({title: [r for r in rows if _title(r) == title] for title in map(_title, rows)})
