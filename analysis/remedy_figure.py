"""Strategies side by side as a figure: one line each, its stall to the left and its bytes on disk to the right.

Lines instead of points in a plane: names beside points that lie together cover each other. No arithmetic here.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from analysis.figures import COLOURS, MECHANISM, STYLE
from analysis.view import Drawing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = dict[str, Any]
PANELS = 5
"""Points of one figure: what a screen shows without much scrolling."""
CAPTION = "Stall of a checkpoint and its bytes on disk, by strategy; less is better"
_BASE, _BEHIND, _OTHER = "compared with", "writes behind its stall", "another strategy"
_COLOURS = {_BASE: COLOURS["write"], _BEHIND: COLOURS["background"], _OTHER: COLOURS["gather"]}


def drawings(groups: Mapping[str, Sequence[Row]]) -> list[Drawing]:
    """A figure for every few groups; of each, the point where most strategies were measured."""
    panels = {title: _largest(mine) for title, each in groups.items() if (mine := list(filter(_known, each)))}
    panels = {title: mine for title, mine in panels.items() if len({row["strategy"] for row in mine}) > 1}
    titles = list(panels)
    parts = [titles[at : at + PANELS] for at in range(0, len(titles), PANELS)]
    found = []
    for number, part in enumerate(parts, start=1):
        which = f", {number} of {len(parts)}" if len(parts) > 1 else ""
        figure = _figure({title: panels[title] for title in part}, f"{CAPTION}{which}")
        name = "strategies" if number == 1 else f"strategies-{number}"
        found.append(Drawing(name=name, caption=f"{CAPTION}{which}", figure=figure))
    return found


def _known(row: Row) -> bool:
    return row["stall_s"] is not None and bool(row["checkpoint_bytes"])


def _largest(rows: list[Row]) -> list[Row]:
    """The rows at the point where most strategies were measured; of equals, the one with most ranks."""
    points: dict[tuple[int, int, int], list[Row]] = {}
    for row in rows:
        points.setdefault((row["ranks"], row["nodes"], row["ranks_per_node"]), []).append(row)
    mine = max(points.items(), key=lambda item: (len({row["strategy"] for row in item[1]}), item[0]))[1]
    return sorted(mine, key=lambda row: (not row["is_base"], row["stall_s"]))


def _figure(panels: dict[str, list[Row]], title: str) -> Figure:
    import matplotlib

    with matplotlib.rc_context({**STYLE, "axes.grid.axis": "x"}):
        from matplotlib.figure import Figure

        heights = [1.3 + 0.27 * len(mine) for mine in panels.values()]
        figure = Figure(figsize=(9.0, sum(heights) + 0.9), layout="constrained")
        figure.suptitle(title, fontsize=12, fontweight="bold", x=0.01, ha="left")
        shape: Any = {"squeeze": False, "height_ratios": heights, "width_ratios": [3, 2]}
        grid = figure.subplots(len(panels), 2, **shape)
        for (left, right), (head, mine) in zip(grid, panels.items(), strict=True):
            _stalls(left, mine)
            _bytes(right, mine)
            under = mine[0]["place"] + (f"; {MECHANISM}" if mine[0]["virtual_nodes"] else "")
            left.set_title("\n".join([*textwrap.wrap(head, 90), under]), fontsize=8, loc="left")
        _legend(figure, {_kind(row) for mine in panels.values() for row in mine})
    return figure


def _legend(figure: Figure, kinds: set[str]) -> None:
    from matplotlib.patches import Patch

    shown = [Patch(facecolor=colour, label=kind) for kind, colour in _COLOURS.items() if kind in kinds]
    figure.legend(handles=shown, loc="outside lower center", ncols=3, frameon=False, fontsize=9)


def _kind(row: Row) -> str:
    return _BASE if row["is_base"] else _BEHIND if row["asynchronous"] else _OTHER


def _stalls(place: Axes, rows: list[Row]) -> None:
    for y, row in enumerate(rows):
        value, low, high = (row[f"stall_{part}s"] * 1e3 for part in ("", "low_", "high_"))
        style: Any = {"color": _COLOURS[_kind(row)], "fmt": "D" if row["is_base"] else "o", "capsize": 3}
        place.errorbar([value], [y], xerr=[[max(value - low, 0.0)], [max(high - value, 0.0)]], markersize=5, **style)
    names = [f"{row['strategy']}, {row['format']}" for row in rows]
    place.set_yticks(range(len(rows)), names, fontsize=8)
    _lines(place, rows, "stall, ms")


def _bytes(place: Axes, rows: list[Row]) -> None:
    values = [row["checkpoint_bytes"] / 1e6 for row in rows]
    place.barh(range(len(rows)), values, 0.6, color=[_COLOURS[_kind(row)] for row in rows])
    place.set_yticks(range(len(rows)), [""] * len(rows))
    _lines(place, rows, "MB on disk")


def _lines(place: Axes, rows: list[Row], x_label: str) -> None:
    place.set_ylim(len(rows) - 0.4, -0.6)
    place.set_xlim(left=0)
    place.set_xlabel(x_label, fontsize=9)
