"""Who wrote, as a person sees it: tables, a paragraph in words, and timelines of single checkpoints.

Presentation only: every number is a row's. How a timeline is drawn, `analysis.timeline_figure` says.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from analysis.figures import MECHANISM
from analysis.finding import counted
from analysis.rows import setting_title, telling
from analysis.view import Drawing, Reasons, View, mega, number
from hpcckpt.errors import HpcCkptError

Row = dict[str, Any]
LEFT = ["framework", "strategy", "format", "conditions"]
BELOW = {
    "who": [],
    "waited": [
        "one rank alone: own work of the slowest rank less that of the next one",
        "others idle: of all (ranks - 1) x stall; of the window: of all rank-seconds of training and saving",
    ],
    "rates": [
        "put: write calls and fsync of the slowest writer; writing: time in which any rank is in a write call",
        "with N writers: serializing and writing cut in N shares, everything else as measured",
    ],
}


def views(rows: Sequence[Row]) -> list[View]:
    """Three tables for what was saved alike: who wrote, who waited, and the rates with what follows from them."""
    found = []
    for title in dict.fromkeys(map(setting_title, rows)):
        mine = [row for row in rows if setting_title(row) == title]
        above = [MECHANISM + ": virtual nodes"] if any(row["virtual_nodes"] for row in mine) else []
        for number_, (name, columns) in enumerate(TABLES.items()):
            reasons = Reasons()
            shown = telling(mine) | columns
            cells = {heading: [cell(row, reasons) for row in mine] for heading, cell in shown.items()}
            below = [*reasons.lines(), *BELOW[name]]
            found.append(View(title="" if number_ else title, above=[] if number_ else above, columns=cells,
                              left=LEFT, below=below))  # fmt: skip
    return found


def _seen(row: Row, reasons: Reasons) -> str:
    low, high = row["writers_seen_min"], row["writers_seen_max"]
    text = None if low is None else (str(low) if low == high else f"{low}-{high}")
    return reasons.cell(text, row["writers_seen_reason"]) + f" of {row['ranks']}"


def _percent(column: str) -> Any:
    def cell(row: Row, reasons: Reasons) -> str:
        value = row[column]
        return reasons.cell(None if value is None else f"{100 * value:.0f} %", row[f"{column}_reason"])

    return cell


def _value(column: str, reason: str, factor: float = 1.0, digits: int = 3) -> Any:
    def cell(row: Row, reasons: Reasons) -> str:
        value = row[column]
        return reasons.cell(number(None if value is None else value * factor, digits), row[reason])

    return cell


def _bytes(column: str, reason: str) -> Any:
    return lambda row, reasons: reasons.cell(mega(row[column]), row[reason])


def _text(column: str, reason: str) -> Any:
    def cell(row: Row, reasons: Reasons) -> str:
        why = row[reason] or "no rank in most checkpoints"
        return reasons.cell(None if row[column] is None else str(row[column]), why)

    return cell


WHO: dict[str, Any] = {
    "\nruns": lambda row, _: str(row["runs"]),
    "ranks\nthat wrote": _seen,
    "nodes\nthat wrote": _value("writing_nodes", "writing_nodes_reason"),
    "MB\nwritten": _bytes("written_bytes", "written_reason"),
    "most by\nrank": _text("top_rank", "top_share_reason"),
    "of all\nbytes": _percent("top_share"),
    "of write\nseconds": _percent("top_write_share"),
    "of bytes,\nits node": _percent("top_node_share"),
}
WAITED: dict[str, Any] = {
    "at once\nmean": _value("writers_at_once_mean", "writers_at_once_mean_reason"),
    "one rank alone\nof the stall": _percent("serial_share"),
    "others idle\nrank-s": _value("others_idle_rank_s", "others_idle_reason"),
    "others\nidle": _percent("idle_share"),
    "of the\nwindow": _percent("idle_share_of_window"),
}
RATES: dict[str, Any] = {
    "stall\nms": _value("stall_s", "stall_reason", 1e3),
    "put\nms": _value("put_s", "put_reason", 1e3),
    "writing\nms": _value("writing_s", "writing_reason", 1e3),
    "one writer\nMB/s": _bytes("per_writer_bytes_per_s", "per_writer_reason"),
    "together\nMB/s": _bytes("aggregate_bytes_per_s", "aggregate_reason"),
    "best seen\nMB/s": _bytes("best_bytes_per_s", "limit_reason"),
    "with N\nwriters": _value("n_writers", "n_writers_reason"),
    "stall ms, each\nas fast as one": _value("stall_at_writer_rate_s", "n_writers_reason", 1e3),
    "stall ms, together\nat the best seen": _value("stall_at_best_aggregate_s", "n_writers_reason", 1e3),
    "storage is the limit\nfrom N writers": _value("limit_writers", "limit_reason", digits=2),
}


TABLES = {"who": WHO, "waited": WAITED, "rates": RATES}


def paragraphs(rows: Sequence[Row]) -> list[str]:
    """Per group, at its most ranks: who wrote, who waited, and what more writers would change."""
    found = []
    for title in dict.fromkeys(row["group"] for row in rows):
        mine = [row for row in rows if row["group"] == title]
        row = max(mine, key=lambda each: each["ranks"])
        found.append(" ".join([f"{title}, at {row['place']}:", *_who(row), *_waits(row), *_more(row)]))
    if any(not row["durable"] for row in rows):
        found.append("Rates of buffered checkpoints are those at which memory takes the bytes, not the disk's.")
    if any(row["virtual_nodes"] for row in rows):
        found.append("Nothing is extrapolated from virtual nodes: beyond the most writers measured there is no number.")
    return found


def _who(row: Row) -> list[str]:
    if row["writers_seen_max"] is None:
        return [f"who wrote is not measured ({row['writers_seen_reason']})."]
    if row["top_share"] is None:
        return [f"{row['writers_seen_max']} of {counted(row['ranks'], 'rank')} wrote ({row['top_share_reason']})."]
    who = "the fullest" if row["top_rank"] is None else f"rank {row['top_rank']}"
    nodes = counted(round(row["writing_nodes"]), "node")
    wrote = f"{row['writers_seen_max']} of {counted(row['ranks'], 'rank')} on {nodes} wrote"
    return [f"{wrote} {row['written_bytes'] / 1e6:.4g} MB, {who} {100 * row['top_share']:.0f} % of it."]


def _waits(row: Row) -> list[str]:
    if row["idle_share"] is None or row["serial_share"] is None:
        return []
    alone = f"One rank worked alone for {100 * row['serial_share']:.0f} % of the stall of {row['stall_s']:.4g} s"
    idle = f"the others idled {row['others_idle_rank_s']:.4g} rank-seconds, {100 * row['idle_share']:.0f} %"
    return [f"{alone}; {idle} of their stall."]


def _more(row: Row) -> list[str]:
    if row["n_writers"] is None:
        return [f"A stall with more writers is not predicted: {row['n_writers_reason']}."]
    each, together = row["stall_at_writer_rate_s"], row["stall_at_best_aggregate_s"]
    best = f"{row['best_bytes_per_s'] / 1e6:.4g} MB/s, {row['best_place']}"
    head = f"With {counted(row['n_writers'], 'writer')} the stall would be {each:.4g} s if each were as fast as one is"
    return [f"{head} now, {together:.4g} s if together they got the best rate seen ({best})."]


def drawings(rows: Sequence[Row]) -> list[Drawing]:
    """A timeline per group: the usual checkpoint at its most ranks, telling ones first. A run that is gone has none."""
    from analysis.timeline import timeline
    from analysis.timeline_figure import drawn

    found: list[Drawing] = []
    for row in _told(rows):
        title = row["group"]
        try:
            lines = timeline(Path(row["shown_path"]), row["shown_generation"])
        except (HpcCkptError, OSError):
            continue
        what = f"checkpoint {row['shown_generation']} of {Path(row['shown_path']).name}"
        caption = f"{title}, at {row['place']}: {what}, rank by rank. {' '.join([*_who(row), *_waits(row)])}"
        figure = drawn(lines, f"Who works and who waits: {title}", what, row["virtual_nodes"])
        found.append(Drawing(name=f"timeline-{len(found) + 1}", caption=caption, figure=figure))
    return found


def _told(rows: Sequence[Row]) -> list[Row]:
    """One row per group, at its most ranks. Each framework and strategy comes once before any comes twice;
    of these, most ranks first and then the largest stall: there is most to be seen."""
    groups: dict[str, Row] = {}
    for row in (row for row in rows if row["shown_path"] is not None):
        if row["group"] not in groups or row["ranks"] > groups[row["group"]]["ranks"]:
            groups[row["group"]] = row
    ordered = sorted(groups.values(), key=lambda row: (-row["ranks"], -(row["stall_s"] or 0.0)))
    first: dict[tuple[str, str], Row] = {}
    for row in ordered:
        first.setdefault((row["framework"], row["strategy"]), row)
    return [*first.values(), *(row for row in ordered if row is not first[row["framework"], row["strategy"]])]
