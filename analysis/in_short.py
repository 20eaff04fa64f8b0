"""An answer in one sentence with its numbers: what is usual, what is most, and where that is.

A question names the columns that answer it; reading them is the same for all. No verdicts here, and nothing
is pooled: the middle and the ends of configurations that differ are numbers of three of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from analysis.view import mega, number

Row = Mapping[str, Any]
Unit = Literal["s", "rank-s", "bytes", "share", "ratio", "count", "B/s"]
MILLISECONDS_BELOW_S = 0.5
LEAST_SHARE = 0.001
"""What is less is shown as less than that."""
_NAME = ("framework", "strategy", "format", "model")


class Measure(msgspec.Struct, frozen=True, kw_only=True):
    """A column that answers a question."""

    column: str
    words: str
    """What it is, as a sentence goes on: `the stall is`."""
    unit: Unit
    about: str | None = None
    """Kind of rows, where a question has several."""
    where: str | None = None
    """Column that must be true."""


def in_short(measures: Sequence[Measure], rows: Sequence[Row]) -> str:
    """One sentence; empty where none of the columns holds a number."""
    known = {measure: found for measure in measures if (found := _known(measure, rows))}
    most = max(map(len, known.values()), default=0)
    parts = [_part(measure, found, most) for measure, found in known.items()]
    head = f"Over {most} configurations, " if most > 1 else ""
    text = head + "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _known(measure: Measure, rows: Sequence[Row]) -> list[Row]:
    """The rows that have the number, the least first."""
    return sorted((row for row in rows if _counts(measure, row)), key=lambda row: float(row[measure.column]))


def _part(measure: Measure, known: Sequence[Row], most: int) -> str:
    low, usual, high = (known[at][measure.column] for at in (0, (len(known) - 1) // 2, -1))
    texts = [shown(value, measure.unit) for value in (low, usual, high)]
    name = configuration(known[-1])
    fewer = f" in {len(known)} of them" if 1 < len(known) < most else ""
    if len(known) == 1 or texts[0] == texts[2]:
        return f"{measure.words} {texts[2]}{fewer}" + (f" ({name})" if len(known) == 1 else "")
    spread = f"{texts[0]} to {texts[2]} ({name})"
    if len(known) == 2:
        return f"{measure.words} {spread}{fewer}"
    return f"{measure.words} typically {texts[1]}{fewer}, from {spread}"


def _counts(measure: Measure, row: Row) -> bool:
    """Whether the row has a number; one of planted faults is no answer."""
    if (measure.about and row.get("about") != measure.about) or (measure.where and not row.get(measure.where)):
        return False
    return row.get(measure.column) is not None and not row.get("faults")


def configuration(row: Row) -> str:
    """A row's name in a sentence: `pytorch_ddp replicated torch_zip, vgg16, 4 x 1`."""
    known = [str(row[name]) for name in _NAME if row.get(name)]
    point = f", {row['nodes']} x {row['ranks_per_node']}" if row.get("nodes") else ""
    return f"{' '.join(known[:3])}{', ' + known[3] if len(known) > 3 else ''}{point}"


def shown(value: float, unit: Unit) -> str:
    """The number with its unit, to three digits."""
    if unit == "s":
        return seconds(value)
    if unit == "share":
        return f"{100 * value:.3g} %" if not 0 < abs(value) < LEAST_SHARE else f"< {100 * LEAST_SHARE:g} %"
    if unit == "count":
        return f"{value:,.0f}"
    if unit in ("bytes", "B/s"):
        return f"{mega(value)} MB" + ("/s" if unit == "B/s" else "")
    return f"{number(value)} rank-s" if unit == "rank-s" else f"{number(value)}"


def seconds(value: float) -> str:
    """Seconds, or milliseconds below half a second."""
    return f"{number(value * 1e3)} ms" if abs(value) < MILLISECONDS_BELOW_S else f"{number(value)} s"
