"""How figures look: one colour per phase everywhere, and SVG that is the same byte for byte each time.

Questions say what is drawn; colours, fonts, error bars and the file are decided here. matplotlib is
imported inside functions, so that tables come without it.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from analysis.stats import Interval
from analysis.tables import PHASE_COLUMNS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which colour-blind eyes tell apart; waiting is grey, a composite is hatched.
COLOURS: dict[str, str] = {
    "gather": "#56B4E9",
    "serialize": "#F0B441",
    "serialize+write": "#E07B1A",
    "write": "#D55E00",
    "write+sync": "#CC79A7",
    "sync": "#AA4499",
    "commit": "#009E73",
    "wait_inside": "#7F8FA6",
    "wait_after": "#C3CAD6",
    "wait_before": "#E4E7EC",
    "background": "#0072B2",
}
BESIDE_PHASES: dict[str, str] = {"unattributed": "#555555", "release": "#F3F3F3"}
"""What a stall holds beside phases: time that no span explains, and the ranks' scatter at the barriers."""
HATCHES = {"serialize+write": "xxx", "write+sync": "\\\\\\", "wait_before": "||", "release": ".."}
PANELS = 6
"""Panels of one figure: what a screen shows without much scrolling, its legend included."""
MECHANISM = "one machine: mechanism, not scaling"

STYLE: Any = {
    "svg.hashsalt": "hpcckpt",
    "svg.fonttype": "none",  # text stays text: searchable, small, read aloud
    "font.family": ["DejaVu Sans", "sans-serif"],
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": "#E3E3E3",
    "grid.linewidth": 0.7,
    "hatch.linewidth": 0.5,
    "hatch.color": "#666666",
    "axes.edgecolor": "#666666",
    "text.color": "#222222",
    "axes.labelcolor": "#222222",
    "xtick.color": "#222222",
    "ytick.color": "#222222",
}


class Bars(msgspec.Struct, frozen=True, kw_only=True):
    """One panel of stacked phases, one position per label."""

    title: str
    labels: list[str]
    phases: dict[str, list[float]]
    """Phase -> seconds per label, of the slowest rank."""
    waiting: list[float | None]
    """Mean wait of the other ranks."""
    stall: list[Interval]
    ideal: list[float | None]


def save_svg(figure: Figure, path: Path) -> None:
    """Write the figure so that equal data give equal bytes: no date, fixed identities."""
    import matplotlib

    path.parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(STYLE):
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": "hpcckpt"})


def stacked(panels: Sequence[Bars], title: str, subtitle: str, x_label: str) -> Figure:
    """A figure of panels side by side, at most two in a row, with one legend for all."""
    import matplotlib

    with matplotlib.rc_context(STYLE):
        from matplotlib.figure import Figure

        columns = min(len(panels), 2)
        lines = -(-len(panels) // columns)
        width = max(5.2 * columns, 7.0)
        under = [line for part in subtitle.split("\n") for line in textwrap.wrap(part, round(15 * width))]
        height = 3.5 * lines + 1.6 + 0.2 * len(under)
        figure = Figure(figsize=(width, height), layout="constrained")
        # The empty lines keep room for the subtitle, which the layout does not know of.
        room = "\n\u00a0" * (len(under) + 1)
        figure.suptitle(title + room, fontsize=12, fontweight="bold", x=0.01, ha="left")
        style: dict[str, Any] = {"fontsize": 9, "color": "#555555", "va": "top", "linespacing": 1.35}
        figure.text(0.01, 1 - 0.38 / height, "\n".join(under), **style)
        grid = figure.subplots(lines, columns, squeeze=False)
        widest = max(len(panel.labels) for panel in panels)
        for place, panel in zip(grid.flat, panels, strict=False):
            _panel(place, panel, x_label, widest)
        for place in list(grid.flat)[len(panels) :]:
            place.set_visible(False)
        handles = _legend(grid.flat)
        style = {"loc": "outside lower center", "ncols": 4, "frameon": False, "fontsize": 9}
        figure.legend(handles.values(), handles.keys(), **style)
    return figure


def strips(panels: Sequence[Bars], title: str, subtitle: str) -> Figure:
    """A horizontal bar per panel, which has one label: many of them stay legible in little room."""
    import matplotlib

    with matplotlib.rc_context({**STYLE, "axes.grid.axis": "x"}):
        from matplotlib.figure import Figure

        under = [line for part in subtitle.split("\n") for line in textwrap.wrap(part, 135)]
        height = 0.42 * len(panels) + 1.9 + 0.2 * len(under)
        figure = Figure(figsize=(9.0, height), layout="constrained")
        figure.suptitle(title + "\n\u00a0" * (len(under) + 1), fontsize=12, fontweight="bold", x=0.01, ha="left")
        style: dict[str, Any] = {"fontsize": 9, "color": "#555555", "va": "top", "linespacing": 1.35}
        figure.text(0.01, 1 - 0.38 / height, "\n".join(under), **style)
        place = figure.subplots()
        _strips(place, panels)
        names = [f"{panel.title}, {panel.labels[0]}" for panel in panels]
        place.set_yticks(range(len(panels)), names, fontsize=7.5)
        place.set_ylim(len(panels) - 0.4, -0.6)
        place.set_xlim(left=0)
        place.set_xlabel("seconds per checkpoint")
        handles = _legend([place])
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    return figure


def _strips(place: Axes, panels: Sequence[Bars]) -> None:
    base = [0.0] * len(panels)
    for phase in (*PHASE_COLUMNS, *BESIDE_PHASES):
        widths = [panel.phases.get(phase, [0.0])[0] for panel in panels]
        if any(widths):
            look: dict[str, Any] = {"color": COLOURS.get(phase) or BESIDE_PHASES[phase], "linewidth": 0}
            look |= {"hatch": HATCHES.get(phase), "label": _label(phase)}
            place.barh(range(len(panels)), widths, 0.7, left=base, **look)
            base = [low + width for low, width in zip(base, widths, strict=True)]


def _panel(place: Axes, panel: Bars, x_label: str, widest: int) -> None:
    positions = list(range(len(panel.labels)))
    base = [0.0] * len(positions)
    for phase in (*PHASE_COLUMNS, *BESIDE_PHASES):
        heights = panel.phases.get(phase, [])
        if not any(heights):
            continue
        colour = COLOURS.get(phase) or BESIDE_PHASES[phase]
        style: dict[str, Any] = {"color": colour, "hatch": HATCHES.get(phase), "linewidth": 0}
        left = [position - 0.17 for position in positions]
        place.bar(left, heights, 0.4, bottom=base, label=_label(phase), **style)
        base = [low + height for low, height in zip(base, heights, strict=True)]
    _waiting(place, panel)
    _stalls(place, panel)
    place.set_title(panel.title, fontsize=10, loc="left")
    place.set_xticks(positions, panel.labels)
    place.set_xlim(-0.6, widest - 0.4)  # bars as wide in every panel
    place.set_xlabel(x_label)
    place.set_ylabel("seconds per checkpoint")
    place.set_ylim(bottom=0)


def _waiting(place: Axes, panel: Bars) -> None:
    known = [(x + 0.2, wait) for x, wait in enumerate(panel.waiting) if wait]
    if known:
        places, heights = zip(*known, strict=True)
        style: dict[str, Any] = {
            "facecolor": "#FFFFFF",
            "edgecolor": "#7F8FA6",
            "hatch": "///",
            "linewidth": 0.8,
        }
        place.bar(places, heights, 0.22, label="the others wait (mean)", **style)


def _stalls(place: Axes, panel: Bars) -> None:
    known = [(x - 0.17, item) for x, item in enumerate(panel.stall) if item.value is not None]
    for number, (x, item) in enumerate(known):
        value = item.value or 0.0
        low, high = value - (item.low or value), (item.high or value) - value
        label = "stall: median, interval" if not number else None
        style: dict[str, Any] = {"color": "#222222", "capsize": 3, "markersize": 4, "elinewidth": 1.1}
        place.errorbar([x], [value], yerr=[[low], [high]], fmt="o", label=label, **style)
    ideal = [(x - 0.17, value) for x, value in enumerate(panel.ideal) if value is not None]
    if len(ideal) > 1:
        places, heights = zip(*ideal, strict=True)
        label = "ideal: N equal writers"
        place.plot(places, heights, "--", color="#222222", linewidth=1.2, label=label)


def _legend(places: Any) -> dict[str, Any]:
    """Every label once: phases in their order, then the rest."""
    found: dict[str, Any] = {}
    for place in places:
        for handle, label in zip(*place.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    order = [_label(phase) for phase in (*PHASE_COLUMNS, *BESIDE_PHASES)]
    rank = {label: order.index(label) if label in order else len(order) for label in found}
    return {label: found[label] for label in sorted(found, key=lambda label: rank[label])}


def _label(phase: str) -> str:
    if phase == "release":
        return "scatter at the barriers"
    return phase.replace("_", " ")
