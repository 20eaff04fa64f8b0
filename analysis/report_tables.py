"""Views as the page shows them: columns with their kind, cells with their tone, long ones cut with a note.

Cutting is never silent: what is cut lies whole in a CSV file beside the page. No HTML here.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import msgspec

from analysis.view import View

SHOWN_ROWS = 500
"""Rows of a table, and lines under it, in the page; the rest is in the files beside it."""
FOLDED_LINES = 8
"""Lines under a table from which they are folded away."""
TONES = {"kept": "good", "equal": "good", "broken": "bad", "-": "missing", "not verified": "missing"}


class Cell(msgspec.Struct, frozen=True):
    """What stands in a cell and how it is to be seen: good, bad, missing, or empty for plain."""

    text: str
    tone: str


class Column(msgspec.Struct, frozen=True):
    """A heading in its lines, and whether numbers stand under it."""

    lines: list[str]
    kind: str
    """number or text."""


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """A view in the page."""

    anchor: str
    title: str
    """Empty where it goes on under the title of the table before."""
    label: str
    """For those who do not see where it stands."""
    columns: list[Column]
    rows: list[list[Cell]]
    total: int
    above: list[str]
    below: list[str]
    below_total: int
    file: str | None
    """Where all rows are, if not here."""


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """A title with the tables under it."""

    title: str
    tables: list[Table]


def blocks(found: Sequence[Table]) -> list[Block]:
    """Every table that has a title, with those that go on under it."""
    made: list[Block] = []
    for table in found:
        if table.title or not made:
            made.append(Block(title=table.title, tables=[]))
        made[-1].tables.append(table)
    return made


def tables(views: Sequence[View], prefix: str, folder: Path | None = None, link: str = "") -> list[Table]:
    """The views as tables; `folder` takes the whole of those that are cut, which `link` reaches."""
    found: list[Table] = []
    label = prefix
    for number, view in enumerate(views, start=1):
        label = view.title or label
        anchor = f"{prefix}-{number}"
        whole = write_csv(view, folder / f"{anchor}.csv") if folder and _too_long(view) else None
        found.append(_table(view, anchor, label, f"{link}{whole.name}" if whole else None))
    return found


def write_csv(view: View, path: Path) -> Path:
    """Everything that the view says, as CSV: its lines above and below behind its rows, in the first column."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file)
        out.writerow([" ".join(heading.split()) for heading in view.columns])
        out.writerows(zip(*view.columns.values(), strict=True))
        out.writerows([line] for line in (*view.above, *view.below))
    return path


def _too_long(view: View) -> bool:
    return max(_height(view), len(view.below)) > SHOWN_ROWS


def _height(view: View) -> int:
    return len(next(iter(view.columns.values()), []))


def _table(view: View, anchor: str, label: str, file: str | None) -> Table:
    rows = islice(zip(*view.columns.values(), strict=True), SHOWN_ROWS)
    return Table(
        anchor=anchor,
        title=view.title,
        label=label,
        columns=[_column(heading, view) for heading in view.columns],
        rows=[[Cell(text, tone(text)) for text in row] for row in rows],
        total=_height(view),
        above=view.above,
        below=view.below[:SHOWN_ROWS],
        below_total=len(view.below),
        file=file,
    )


def _column(heading: str, view: View) -> Column:
    return Column(heading.strip("\n").split("\n"), "text" if heading in view.left else "number")


def tone(text: str) -> str:
    """How a cell is to be seen: what is missing steps back, what is broken steps forward."""
    if text.startswith(("n.m.", "not verified", "not measured")):
        return "missing"
    return "bad" if text.startswith(("differs", "broken")) else TONES.get(text, "")
