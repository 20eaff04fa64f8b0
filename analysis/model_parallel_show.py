"""The rows on model parallelism as a person sees them. Presentation only: rounding, no arithmetic on measurements."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.rows import Row, places
from analysis.view import TEXTS, Reasons, View, mega, number, told_apart

LEFT = ["framework", "strategy", "format", "model", "read back", "other sizes", *TEXTS]
_ELASTIC = {True: "declared", False: "same number only", None: "not known"}


def views(rows: Sequence[Row]) -> list[View]:
    """One table per place, and what is impossible."""
    saved = [row for row in rows if row["about"] == "saved"]
    found = [_table(place, [row for row in saved if row["place"] == place]) for place in places(saved)]
    impossible = [
        f"{row['framework']} {row['strategy']} {row['format']}: {row['reason']}"
        for row in rows
        if row["about"] == "impossible"
    ]
    return [*found, *([View(title="Not possible", below=impossible)] if impossible else [])]


def _table(place: str, rows: Sequence[Row]) -> View:
    reasons = Reasons()

    def cells(texts: Sequence[str | None], reason: str) -> list[str]:
        return [reasons.cell(text, row[reason]) for text, row in zip(texts, rows, strict=True)]

    shares = [None if row["fullest_share"] is None else 100 * row["fullest_share"] for row in rows]
    stalls = [None if row["stall_s"] is None else 1e3 * row["stall_s"] for row in rows]
    plain = "nothing was planned"
    columns = {
        **told_apart(("framework", "strategy", "format", "model"), rows),
        "runs": [str(row["runs"]) for row in rows],
        "state\nMB": [reasons.cell(mega(row["state_bytes"]), "no checkpoints") for row in rows],
        "on disk\nMB": cells([mega(row["checkpoint_bytes"]) for row in rows], "checkpoint_reason"),
        "writers\nseen/plan": [_writers(row, reasons) for row in rows],
        "fullest rank\nMB": [reasons.cell(mega(row["planned_most_bytes"]), plain) for row in rows],
        "% of\nstate": [reasons.cell(number(share), plain) for share in shares],
        "over\nmean": [reasons.cell(number(row["spread"]), plain) for row in rows],
        "stall\nms": cells([number(stall) for stall in stalls], "stall_reason"),
        "read back": [_read_back(row, reasons) for row in rows],
        "other sizes": [_ELASTIC[row["elastic"]] for row in rows],
    }
    legend = "fullest rank: by the plan; other sizes: restoring on other numbers of ranks, declared, not measured here"
    return View(title=place, columns=columns, left=LEFT, below=[legend, *reasons.lines()])


def _writers(row: Row, reasons: Reasons) -> str:
    seen = None if row["writers_seen_max"] is None else str(row["writers_seen_max"])
    return f"{reasons.cell(seen, row['writers_seen_reason'])}/{row['writers_declared_max']}"


def _read_back(row: Row, reasons: Reasons) -> str:
    if row["read_back"] is None:
        return reasons.cell(None, row["read_back_reason"])
    return "equal" if row["read_back"] else f"differs: {row['read_back_reason']}"
