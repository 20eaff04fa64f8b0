"""Charts that several questions draw, in the style of `analysis.figures`: bars by kind, points with lines, maps.

What is drawn and its words come from the question; no arithmetic on measurements here. matplotlib is
imported inside functions, so that tables come without it.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from analysis.figures import COLOURS, STYLE
from analysis.stats import Interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KIND_COLOURS: dict[str, str] = {
    "parameter": COLOURS["background"],
    "optimizer": COLOURS["gather"],
    "buffer": COLOURS["commit"],
    "rng": COLOURS["sync"],
    "data_position": COLOURS["write+sync"],
    "other": COLOURS["wait_inside"],
    "container": COLOURS["wait_after"],
    "copies": COLOURS["write"],
    "kept once": COLOURS["background"],
    "fullest rank": COLOURS["write"],
    "all others": COLOURS["background"],
}
"""One colour per kind of state everywhere, out of the phases' palette."""
_LINES = ("background", "write", "commit", "serialize", "write+sync", "gather")
SERIES = (*(COLOURS[name] for name in _LINES), "#222222")
MARKERS = "osD^vPX*"
INCHES_A_LETTER = 0.075
"""Of a legend, on average."""
TOLD_APART = 64
"""Ranks that a map shows one by one."""
LARGEST = 24
"""Labels that one chart holds legibly; a question that has more says what it left out."""

Panel = Callable[["Axes"], None]


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """Points of one group, one per run, and the ends of the line through them where there is one."""

    label: str
    x: list[float]
    y: list[float]
    line: list[tuple[float, float]] = []


def sheet(title: str, subtitle: str, panels: Sequence[Panel], heights: Sequence[float], width: float = 9.0) -> Figure:
    """Panels one under the other, of these heights in inches, under one heading, with one legend."""
    import matplotlib

    with matplotlib.rc_context(STYLE):
        from matplotlib.figure import Figure

        figure = Figure(figsize=(width, sum(heights)), layout="constrained")
        places = figure.subplots(len(panels), 1, squeeze=False, height_ratios=list(heights)).flat
        for place, panel in zip(places, panels, strict=True):
            panel(place)
        under = [line for part in subtitle.split("\n") for line in textwrap.wrap(part, round(15 * width))]
        height = sum(heights) + 1.1 + 0.2 * (len(under) + _legend(figure, width))
        figure.set_figheight(height)
        room = "\n\u00a0" * (len(under) + 1)  # the layout does not know of the subtitle
        figure.suptitle(title + room, fontsize=12, fontweight="bold", x=0.01, ha="left")
        style: dict[str, Any] = {"fontsize": 9, "color": "#555555", "va": "top", "linespacing": 1.35}
        figure.text(0.01, 0.98 - 0.27 / height, "\n".join(under), **style)
    return figure


def _legend(figure: Figure, width: float) -> int:
    """One legend below for all panels, in as many columns as fit; returns its lines."""
    found: dict[str, Any] = {}
    for place in figure.axes:
        for handle, label in zip(*place.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    if not found:
        return 0
    columns = max(1, int(width / (INCHES_A_LETTER * max(map(len, found)) + 0.6)))
    style: dict[str, Any] = {"loc": "outside lower center", "ncols": columns, "frameon": False, "fontsize": 9}
    figure.legend(found.values(), found.keys(), **style)
    return -(-len(found) // columns)


def bars(
    labels: Sequence[str], parts: Mapping[str, Sequence[float]], x_label: str, title: str = "",
    colours: Mapping[str, str] = KIND_COLOURS,
) -> Panel:  # fmt: skip
    """Stacked horizontal bars, one per label, the first on top: labels are long."""

    def draw(place: Axes) -> None:
        base = [0.0] * len(labels)
        for part, widths in parts.items():
            if any(widths):
                style: dict[str, Any] = {"color": colours.get(part, "#555555"), "label": part.replace("_", " ")}
                place.barh(range(len(labels)), list(widths), 0.7, left=base, **style)
                base = [left + width for left, width in zip(base, widths, strict=True)]
        _rows(place, labels, x_label, title)
        place.set_xlim(left=0)

    return draw


def intervals(labels: Sequence[str], items: Sequence[Interval], x_label: str, title: str, mark: float | None) -> Panel:
    """A median with its interval per label; `mark` is the value to compare with."""

    def draw(place: Axes) -> None:
        for y, item in enumerate(items):
            if item.value is not None:
                low, high = item.low or item.value, item.high or item.value
                style: dict[str, Any] = {"color": SERIES[0], "capsize": 3, "markersize": 5, "elinewidth": 1.2}
                place.errorbar([item.value], [y], xerr=[[item.value - low], [high - item.value]], fmt="o", **style)
        if mark is not None:
            place.axvline(mark, color="#222222", linewidth=1.0, linestyle="--")
        _rows(place, labels, x_label, title)

    return draw


def points(series: Sequence[Series], x_label: str, y_label: str, title: str = "") -> Panel:
    """One mark per run, and a line where one was fitted."""

    def draw(place: Axes) -> None:
        for number, each in enumerate(series):
            colour, marker = SERIES[number % len(SERIES)], MARKERS[number % len(MARKERS)]
            if each.x:
                place.plot(each.x, each.y, marker, color=colour, markersize=5, alpha=0.8, label=each.label)
            if each.line:
                ends, label = zip(*each.line, strict=True), None if each.x else each.label
                place.plot(*ends, "--", color=colour if each.x else "#222222", linewidth=1.2, label=label)
        place.set_title(title, fontsize=10, loc="left")
        place.set_xlabel(x_label)
        place.set_ylabel(y_label)
        place.set_xlim(left=0)
        place.set_ylim(bottom=0)

    return draw


def holders(labels: Sequence[str], held: Sequence[set[int]], ranks: int, colours: Sequence[str], title: str) -> Panel:
    """A map of ranks over sets of contents: a cell is filled where the rank's files hold the set."""
    gap = 0.05 if ranks <= TOLD_APART else 0.0

    def draw(place: Axes) -> None:
        for y, (those, colour) in enumerate(zip(held, colours, strict=True)):
            place.broken_barh(_stretches(sorted(those), gap), (y - 0.35, 0.7), color=colour, linewidth=0)
        _rows(place, labels, "rank", title)
        place.set_xlim(-0.6, ranks - 0.4)
        place.xaxis.get_major_locator().set_params(integer=True)  # type: ignore[call-arg]

    return draw


def _stretches(those: Sequence[int], gap: float) -> list[tuple[float, float]]:
    """Begin and length of what is filled; neighbours are one stretch where no gap tells them apart."""
    if gap:
        return [(rank - 0.5 + gap, 1 - 2 * gap) for rank in those]
    found: list[tuple[float, float]] = []
    for rank in those:
        if found and sum(found[-1]) == rank - 0.5:
            found[-1] = (found[-1][0], found[-1][1] + 1)
        else:
            found.append((rank - 0.5, 1.0))
    return found


def _rows(place: Axes, labels: Sequence[str], x_label: str, title: str) -> None:
    """Labels down the left side, the first on top."""
    place.set_yticks(range(len(labels)), list(labels), fontsize=8)
    place.set_ylim(len(labels) - 0.4, -0.6)
    place.set_xlabel(x_label)
    place.set_title(title, fontsize=10, loc="left")
    place.grid(visible=True, axis="x")
    place.grid(visible=False, axis="y")
