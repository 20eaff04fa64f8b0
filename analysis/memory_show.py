"""The rows on memory as a person sees them. Presentation only: rounding, no arithmetic on measurements."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.rows import Row, places
from analysis.view import TEXTS, Reasons, View, mega, number, told_apart

NAMES = ("framework", "strategy", "format", "model")
LEFT = [*NAMES, *TEXTS]
LEGEND = [
    "median over runs; extra: resident peak of the fullest save less what was resident before, of the fullest rank",
    "later: median of the saves behind the first; copies: the main writer's extra over the bytes given to it",
    "not writing: most on a rank that was given nothing; fullest: rank with most extra, in so many runs",
]


def views(rows: Sequence[Row]) -> list[View]:
    """One table per place."""
    return [_table(place, [row for row in rows if row["place"] == place]) for place in places(rows)]


def _table(place: str, rows: Sequence[Row]) -> View:
    reasons = Reasons()

    def cells(name: str) -> list[str]:
        return [reasons.cell(mega(row[f"{name}_bytes"]), row[f"{name}_reason"]) for row in rows]

    copies = [reasons.cell(number(r["extra_over_planned_ratio"]), r["extra_over_planned_reason"]) for r in rows]
    columns = {
        **told_apart(NAMES, rows),
        "runs": [str(row["runs"]) for row in rows],
        "state\nMB": [reasons.cell(mega(row["state_bytes"]), "no checkpoints") for row in rows],
        "planned\nMB a rank": [reasons.cell(mega(row["planned_bytes"]), "no checkpoints") for row in rows],
        "extra\nMB": cells("extra"),
        "later\nMB": cells("later"),
        "copies": copies,
        "extra over\nstate": [reasons.cell(number(row["extra_over_state"]), row["extra_reason"]) for row in rows],
        "not writing\nMB": cells("extra_others"),
        "all ranks\nMB": cells("extra_total"),
        "peak\nMB": cells("peak"),
        "fullest\nrank": [_fullest(row, reasons) for row in rows],
    }
    return View(title=place, columns=columns, left=LEFT, below=[*LEGEND, *reasons.lines()])


def _fullest(row: Row, reasons: Reasons) -> str:
    if row["fullest_rank"] is None:
        return reasons.cell(None, row["extra_reason"])
    return f"{row['fullest_rank']} ({row['fullest_runs']}/{row['runs']})"
