"""Restarts as figures: a map of what repeats, restarts and is carried, and where the time of a restart went.

Colours and words only: verdicts are those of the tables in `analysis.restart_show`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from analysis.charts import LARGEST, Panel, bars, sheet
from analysis.figures import COLOURS
from analysis.view import Drawing
from hpcckpt.records import RESTART_PARTS, STATE_KINDS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = dict[str, Any]
Maps = Mapping[str, Mapping[str, Sequence[str]]]
"""Place -> label of a row -> its cells, one per column of the map."""
Times = Mapping[str, Mapping[str, Row]]
"""Place -> label -> the row with the parts of the time."""
HEADS = ("run to run", "restart", "other ranks", *(kind.replace("_", " ") for kind in STATE_KINDS))
WIDTH = 11.0
"""Of a figure, in inches."""
LETTERS_AN_INCH = 8.5
"""Of a panel's heading, beside labels that take a third of the width."""
OWN_PARTS = tuple(part for part in RESTART_PARTS if part != "suite")
"""Of a restart; the suite's own work is none."""
SHADES = {
    "exact": "#BFDDF0", "saved": "#BFDDF0", "trains exactly": "#D9F0E6", "same anyway": "#F2F2F2", "partly": "#F6D7A8",
    "altered": "#F0B49A", "missing": "#F0B49A", "differs": "#F0B49A",
}  # fmt: skip
"""By the word that a cell begins with; the word stands in the cell, so colours say nothing alone."""
PART_COLOURS = dict(
    zip(
        OWN_PARTS,
        (COLOURS[name] for name in ("sync", "commit", "wait_inside", "gather", "write", "serialize", "background")),
        strict=True,
    )
)
MAP = "What repeats, what restarts exactly, and what the checkpoint carries"
TIMES = "Where the time of a restart goes"
UNDER_MAP = (
    "exact n/n: all bits equal in n of n legs. saved: the restore brought back what a fresh start has otherwise, on "
    "every rank. missing: as a fresh start has it; altered: neither that nor as saved. same anyway: a fresh start has "
    "the same values. n.m.: not measured; -: no such state."
)
UNDER_TIMES = (
    "Median over runs; each part ends when the last rank is through. Without a death there is nothing to detect. The "
    "suite's own work between two legs is left out."
)


def drawings(maps: Maps, times: Times) -> list[Drawing]:
    """A map of each place, and its times."""
    drawn = _of_places("map", MAP, UNDER_MAP, maps, _map, 0.3)
    return drawn + _of_places("times", TIMES, UNDER_TIMES, times, _times, 0.27)


def _of_places(
    name: str, title: str, under: str, places: Mapping[str, Mapping[str, Any]], panel: Callable[..., Panel], row: float
) -> list[Drawing]:  # fmt: skip
    """A figure for each place; `row`: inches of one of its rows."""
    found = []
    for number, (place, rows) in enumerate(_legible(places), start=1):
        figure = sheet(title, under, [panel(rows, _heading(place))], [0.9 + row * len(rows)], width=WIDTH)
        which = name if number == 1 else f"{name}-{number}"
        found.append(Drawing(name=which, caption=f"{title}: {place}", figure=figure))
    return found


def _legible(places: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    """Place and its rows, no more of them than one figure can hold."""
    found = []
    for place, rows in places.items():
        items = list(rows.items())
        found += [(place, dict(items[at : at + LARGEST])) for at in range(0, len(items), LARGEST)]
    return found


def _map(cells: Mapping[str, Sequence[str]], title: str) -> Panel:
    def draw(place: Axes) -> None:
        for y, line in enumerate(cells.values()):
            for x, text in enumerate(line):
                place.barh([y], [0.96], 0.86, left=[x - 0.48], color=_shade(text))
                place.text(x, y, text.replace("trains ", "trains\n"), ha="center", va="center", fontsize=7)
        place.set_yticks(range(len(cells)), list(cells), fontsize=8)
        place.set_ylim(len(cells) - 0.4, -0.6)
        place.set_xticks(range(len(HEADS)), HEADS, fontsize=8)
        place.set_xlim(-0.5, len(HEADS) - 0.5)
        place.xaxis.tick_top()
        place.tick_params(length=0)
        place.grid(visible=False)
        place.spines[:].set_visible(False)
        place.set_title(title, fontsize=9, loc="left")

    return draw


def _shade(text: str) -> str:
    words = text.partition(": ")[2] or text  # other ranks stand before their verdict
    if " / " in words:
        return SHADES["partly"]  # runs that disagree
    return next((shade for word, shade in SHADES.items() if words.startswith(word)), "#FFFFFF")


def _times(rows: Mapping[str, Row], title: str) -> Panel:
    parts = {part: [row[f"{part}_s"] or 0.0 for row in rows.values()] for part in OWN_PARTS}
    return bars(list(rows), parts, "seconds", title, PART_COLOURS)


def _heading(place: str) -> str:
    return textwrap.fill(place, round(WIDTH * LETTERS_AN_INCH))
