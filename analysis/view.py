"""What a person sees of an answer, as plain data: tables of texts, and drawings with their captions.

A question makes them from its rows; the terminal and the report show the same ones. Rounding is done
by whoever makes a view, so a cell reads alike everywhere. Nothing is printed or written here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class View(msgspec.Struct, frozen=True, kw_only=True):
    """One table as it is shown. A cell that holds no number says why: `n.m. (1)`, explained in `below`."""

    title: str
    columns: dict[str, list[str]] = {}
    """Heading (its lines joined by a newline) -> cells; all columns are equally long."""
    left: list[str] = []
    """Headings of columns that are set flush left; the others hold numbers."""
    above: list[str] = []
    """Lines between title and table: what all its rows have in common."""
    below: list[str] = []
    """Lines under the table: reasons, flags, what is not possible."""


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """A figure with the words that stand for it where it cannot be seen."""

    name: str
    """Short and unique within the answer: part of file names and anchors."""
    caption: str
    figure: Figure


class Reasons:
    """Numbers the reasons why cells of a view hold no number."""

    def __init__(self) -> None:
        self._known: list[str] = []

    def cell(self, text: str | None, reason: str | None) -> str:
        """The text, or a mark that points to the reason."""
        if text is not None:
            return text
        why = reason or "no reason recorded"
        if why not in self._known:
            self._known.append(why)
        return f"n.m. ({self._known.index(why) + 1})"

    def lines(self) -> list[str]:
        """One line per reason, for `View.below`."""
        return [f"({index}) not measured: {reason}" for index, reason in enumerate(self._known, start=1)]


def number(value: float | None, digits: int = 3) -> str | None:
    """A number with so many significant digits, at most four decimals and never an exponent."""
    if value is None:
        return None
    if value == 0:
        return "0"
    if abs(value) < 0.0005:
        return "<0.001" if value > 0 else ">-0.001"
    text = f"{value:#.{digits}g}".removesuffix(".")
    return f"{value:.0f}" if "e+" in text else (text if len(text.partition(".")[2]) <= 4 else f"{value:.4f}")


def mega(value: float | None) -> str | None:
    """Bytes as MB (10^6), with three digits."""
    return number(None if value is None else value / 1e6)


APART = {
    "interval_steps": "every\nsteps",
    "faults": "planted faults",
    "site": "site",
    "campaigns": "campaign",
    "conditions": "conditions",
    "commit": "code",
}
"""Column -> heading: in what rows of equal names may differ, what a reader knows best first."""
TEXTS = [heading for column, heading in APART.items() if column != "interval_steps"]


def told_apart(names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Columns that name rows, and where rows have equal names those of `APART` in which they differ."""
    found = {name: [str(row[name]) for row in rows] for name in names}
    keys = [tuple(row[name] for name in names) for row in rows]
    for column, heading in APART.items():
        seen: dict[tuple[Any, ...], set[str]] = {}
        for key, row in zip(keys, rows, strict=True):
            seen.setdefault(key, set()).add(str(row.get(column, "")))
        if any(len(values) > 1 for values in seen.values()):
            found[heading] = [str(row.get(column) or "-") for row in rows]
            keys = [(*key, row.get(column)) for key, row in zip(keys, rows, strict=True)]
    return found
