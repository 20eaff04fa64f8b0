"""One checkpoint as a figure: ranks down, time across, phases coloured, write calls as dark bars on top.

Up to FEW ranks are drawn as bars; more become an image, a line of pixels for each rank or for a few
of them, so that a thousand ranks stay readable and the file small. What happened when, `analysis.timeline` says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from analysis.figures import COLOURS, HATCHES, MECHANISM, STYLE
from hpcckpt.records import PHASES, WAIT_AFTER, WAIT_BEFORE, WAIT_INSIDE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from analysis.timeline import Timeline

FEW = 48
"""Ranks that are drawn as bars of their own, with a label each."""
PIXELS = 1600
"""Columns of the image: finer than a screen, and a call between two of them still marks one."""
LINES = 256
"""Lines of the image; where there are more ranks, one stands for several and shows who works among them."""
WAITS = (WAIT_BEFORE, WAIT_INSIDE, WAIT_AFTER)
CALL = "#111111"
BACKGROUND_COLOUR = "#FFFFFF"


def drawn(lines: Timeline, title: str, subtitle: str, virtual: bool) -> Figure:
    """The figure of one checkpoint."""
    import matplotlib

    with matplotlib.rc_context({**STYLE, "axes.grid.axis": "x"}):
        from matplotlib.figure import Figure

        ranks = lines.spans["rank"].unique().sort().to_list()
        bars = len(ranks) <= FEW
        figure = Figure(figsize=(9.0, 2.6 + min(0.28 * len(ranks), 6.0)), layout="constrained")
        figure.suptitle(_wrapped(title), fontsize=11, fontweight="bold", x=0.01, ha="left")
        place = figure.subplots()
        (_bars if bars else _image)(place, lines, ranks)
        parts = [MECHANISM] if virtual else []
        parts += [subtitle, *([f"a line: {-(-len(ranks) // LINES)} ranks, who works"] if len(ranks) > LINES else [])]
        place.set_title(_wrapped("; ".join(parts)), fontsize=9, loc="left", color="#555555")
        place.set_xlabel("seconds after the first rank left the barrier before the save")
        place.set_ylabel("rank" if not bars or len(ranks) > 1 else "")
        figure.legend(handles=_legend(lines), loc="outside lower center", ncols=6, frameon=False, fontsize=9)
    return figure


def _wrapped(title: str) -> str:
    import textwrap

    return "\n".join(textwrap.wrap(title, 95))


def _legend(lines: Timeline) -> list[Any]:
    """Phases that occur, in their order, and the calls."""
    from matplotlib.patches import Patch

    there = set(lines.spans["phase"].unique())
    style: dict[str, Any] = {"linewidth": 0}
    found: list[Any] = [
        Patch(facecolor=COLOURS[phase], hatch=HATCHES.get(phase), label=phase.replace("_", " "), **style)
        for phase in PHASES
        if phase in there and phase in COLOURS
    ]
    return found + ([Patch(facecolor=CALL, label="write calls", **style)] if lines.calls.height else [])


def _bars(place: Axes, lines: Timeline, ranks: list[int]) -> None:
    """One bar per span; calls inside it as a thinner bar. One collection per phase, not one per span."""
    row = {rank: position for position, rank in enumerate(ranks)}
    width = lines.spans["end_s"].max()
    least = float(width if isinstance(width, float) else 1.0) / PIXELS
    for (phase,), part in sorted(lines.spans.group_by("phase"), key=lambda item: str(item[0][0])):
        style = {"color": COLOURS.get(str(phase), "#555555"), "hatch": HATCHES.get(str(phase))}
        _collection(place, part, row, 0.4, 0.0, style)
    _collection(place, lines.calls, row, 0.16, least, {"color": CALL, "hatch": None})
    nodes = dict(lines.spans.select("rank", "node").unique().iter_rows())
    place.set_yticks(range(len(ranks)), [f"{rank}  {nodes[rank]}" for rank in ranks], fontsize=8)
    place.set_ylim(len(ranks) - 0.5, -0.5)
    place.autoscale_view(scalex=True, scaley=False)


def _collection(place: Axes, part: pl.DataFrame, row: dict[int, int], half: float, least: float, style: Any) -> None:
    from matplotlib.collections import PolyCollection

    if not part.height:
        return
    middle = np.array([row[rank] for rank in part["rank"]], float)
    begin, end = part["begin_s"].to_numpy(), part["end_s"].to_numpy()
    end = np.maximum(end, begin + least)  # a call of microseconds would be invisible
    low, high = middle - half, middle + half
    corners = [np.column_stack(pair) for pair in ((begin, low), (begin, high), (end, high), (end, low))]
    look: Any = {"facecolor": style["color"], "hatch": style["hatch"], "edgecolor": "#666666", "linewidth": 0}
    boxes = PolyCollection(list(np.stack(corners, axis=1)), **look)
    place.add_collection(boxes)


def _image(place: Axes, lines: Timeline, ranks: list[int]) -> None:
    """The same as pixels. Who waits is painted first, so that a lone worker never vanishes among its neighbours."""
    place.grid(visible=False)
    spans = lines.spans.with_columns(order=pl.col("phase").is_in(WAITS).not_()).sort("order", maintain_order=True)
    low = min(float(spans["begin_s"].min()), 0.0)  # type: ignore[arg-type]
    high = float(spans["end_s"].max())  # type: ignore[arg-type]
    step, count = max(high - low, 1e-9) / PIXELS, min(len(ranks), LINES)
    canvas = np.empty((3 * count, PIXELS, 3), np.uint8)
    canvas[:] = _rgb(BACKGROUND_COLOUR)
    row = {rank: 3 * (position * count // len(ranks)) for position, rank in enumerate(ranks)}
    for rank, phase, begin, end in spans.select("rank", "phase", "begin_s", "end_s").iter_rows():
        first, last = _columns(begin - low, end - low, step)
        canvas[row[rank] : row[rank] + 3, first:last] = _rgb(COLOURS.get(phase, "#555555"))
    for rank, begin, end in lines.calls.select("rank", "begin_s", "end_s").iter_rows():
        first, last = _columns(begin - low, end - low, step)
        canvas[row[rank] + 1 : row[rank] + 3, first : max(last, first + 1)] = _rgb(CALL)
    extent = (low, high, ranks[-1] + 0.5, ranks[0] - 0.5)
    place.imshow(canvas, aspect="auto", interpolation="nearest", extent=extent)


def _columns(begin: float, end: float, step: float) -> tuple[int, int]:
    return min(max(round(begin / step), 0), PIXELS - 1), min(round(end / step), PIXELS)


def _rgb(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)
