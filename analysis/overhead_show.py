"""The cost of checkpoints as a person sees it: three tables for what was saved alike, notes, and one figure.

Presentation only: every number is a row's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from analysis.charts import LARGEST
from analysis.figures import COLOURS, MECHANISM, STYLE
from analysis.rows import setting_title, telling
from analysis.view import Drawing, Reasons, View, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = dict[str, Any]
LEFT = ["framework", "strategy", "format", "conditions"]
COST_BELOW = [
    "stall: mean of a run's checkpoints, as the overhead is their sum; medians and ranges are over runs",
    "control: (window with checkpoints less the control's) / checkpoints; slower steps: of the median step",
    "left: control less stall less slower steps",
]
PHASES_BELOW = ["phases in ms: of the slowest rank, median checkpoint; those that nobody has are not shown"]
USE_BELOW = [
    "idle: of all rank-seconds of the stall; cores: CPU seconds over wall seconds of a rank, training: the control's",
]


def views(rows: Sequence[Row]) -> list[View]:
    """Overhead two ways, then phases, then what waited and what was busy meanwhile."""
    found = []
    for title in dict.fromkeys(map(setting_title, rows)):
        mine = [row for row in rows if setting_title(row) == title]
        above = [MECHANISM + ": virtual nodes"] if any(row["virtual_nodes"] for row in mine) else []
        tables = ((COST, COST_BELOW), (_phases(mine), PHASES_BELOW), (USE, USE_BELOW))
        for number_, (columns, below) in enumerate(tables):
            reasons = Reasons()
            shown = telling(mine) | columns
            cells = {heading: [cell(row, reasons) for row in mine] for heading, cell in shown.items()}
            lines = [*reasons.lines(), *below]
            found.append(View(title="" if number_ else title, above=[] if number_ else above, columns=cells,
                              left=LEFT, below=lines))  # fmt: skip
    return found


def _ms(stem: str, bracket: bool = False) -> Any:
    """Milliseconds; with bounds where more than one run is behind them."""

    def cell(row: Row, reasons: Reasons) -> str:
        values = [row[f"{stem}{part}_s"] for part in ("", "_low", "_high")] if bracket else [row[f"{stem}_s"]]
        if values[0] is None:
            return reasons.cell(None, row[f"{stem}_reason"])
        texts = [number(value * 1e3) for value in values]
        return f"{texts[0]} [{texts[1]}, {texts[2]}]" if bracket and row[f"{stem}_runs"] > 1 else str(texts[0])

    return cell


def _plain(name: str, form: str) -> Any:
    def cell(row: Row, reasons: Reasons) -> str:
        return reasons.cell(None if row[name] is None else format(row[name], form), row[f"{name}_reason"])

    return cell


def _percent(row: Row, reasons: Reasons) -> str:
    """A percentage means nothing without the time between two checkpoints."""
    if row["control_fraction"] is None or row["interval_s"] is None:
        return reasons.cell(None, row["control_fraction_reason"])
    return f"{100 * row['control_fraction']:.1f} ({number(row['interval_s'] * 1e3)})"


COST: dict[str, Any] = {
    "\nruns": lambda row, _: str(row["runs"]),
    "stall\nms": _ms("stall", bracket=True),
    "slower\nsteps ms": _ms("slower_steps"),
    "by phases\nms": _ms("phases", bracket=True),
    "control\nms": _ms("control", bracket=True),
    "left\nms": _ms("rest", bracket=True),
    "% of training\n(interval ms)": _percent,
}
USE: dict[str, Any] = {
    "wait\nbefore ms": _ms("wait_before"),
    "idle\nrank-s": lambda row, reasons: reasons.cell(number(row["idle_rank_s"]), row["idle_rank_reason"]),
    "\nidle": _plain("idle_share", ".0%"),
    "behind\nms": _ms("background"),
    "cores,\nwriters": _plain("cpu_writers", ".2f"),
    "cores,\nothers": _plain("cpu_others", ".2f"),
    "cores,\ntraining": _plain("cpu_training", ".2f"),
    "GPU busy\nin stall": _plain("gpu_saving", ".0%"),
}


def _phases(rows: Sequence[Row]) -> dict[str, Any]:
    """A column for every phase that some row has."""
    names = [key.removeprefix("phase_") for key in (rows[0] if rows else {}) if key.startswith("phase_")]
    phases = [name.removesuffix("_s") for name in names if name.endswith("_s")]
    shown = [phase for phase in phases if any(row[f"phase_{phase}_s"] != 0 for row in rows)]
    return {"\n".join(phase.split("_", 1)) if "_" in phase else f"\n{phase}": _ms(f"phase_{phase}") for phase in shown}


def notes(rows: Sequence[Row]) -> list[str]:
    """How to read the two ways of counting."""
    if not rows:
        return []
    apart = (
        "The two overheads differ by what no stall holds: steps that are slower beside a save, waiting before it, work "
        "behind it, and the unrest of two runs of the same thing."
    )
    found = [apart]
    if all(row["gpu_saving"] is None for row in rows):
        found.append(f"GPU use is not measured: {rows[0]['gpu_saving_reason']}.")
    loads = [row["ranks_per_core"] for row in rows if row["ranks_per_core"] and row["ranks_per_core"] > 1]
    if loads:
        found.append(f"Up to {max(loads):g} ranks share a core: CPU and waiting seconds hold for such a machine only.")
    return found


def drawings(rows: Sequence[Row]) -> list[Drawing]:
    """Both overheads one under the other, a panel for what was saved alike; as many figures as a screen needs."""
    parts = _parts([row for row in rows if row["stall_s"] is not None])
    caption = "What a checkpoint costs: from stall and slower steps, and against the control"
    found = []
    for at, panels in enumerate(parts, start=1):
        which = f"{caption}, {at} of {len(parts)}" if len(parts) > 1 else caption
        name = "overheads" if at == 1 else f"overheads-{at}"
        found.append(Drawing(name=name, caption=which, figure=_figure(panels, which)))
    return found


def _parts(known: Sequence[Row]) -> list[list[list[Row]]]:
    """Figures of panels of rows: no panel and no figure has more rows than stay legible, the dearest first."""
    panels = []
    for title in dict.fromkeys(map(setting_title, known)):
        mine = sorted((row for row in known if setting_title(row) == title), key=lambda row: -row["stall_s"])
        panels += [mine[at : at + LARGEST] for at in range(0, len(mine), LARGEST)]
    parts: list[list[list[Row]]] = []
    for panel in panels:
        if not parts or sum(map(len, parts[-1])) + len(panel) > LARGEST:
            parts.append([])
        parts[-1].append(panel)
    return parts


def _figure(panels: Sequence[list[Row]], caption: str) -> Figure:
    import matplotlib

    with matplotlib.rc_context({**STYLE, "axes.grid.axis": "x"}):
        from matplotlib.figure import Figure

        heights = [0.34 * len(panel) + 0.4 for panel in panels]
        figure = Figure(figsize=(9.0, sum(heights) + 0.7 * len(panels) + 0.9), layout="constrained")
        figure.suptitle(caption, fontsize=11, fontweight="bold", x=0.01, ha="left")
        places = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights).flat
        for place, panel in zip(places, panels, strict=True):
            _panel(place, setting_title(panel[0]), panel)
        found: dict[str, Any] = {}
        for place in figure.axes:
            for handle, label in zip(*place.get_legend_handles_labels(), strict=True):
                found.setdefault(label, handle)
        figure.legend(found.values(), found.keys(), loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return figure


def _panel(place: Axes, title: str, rows: list[Row]) -> None:
    stall = [row["stall_s"] for row in rows]
    slower = [max(row["slower_steps_s"] or 0.0, 0.0) for row in rows]
    upper, lower = [y - 0.19 for y in range(len(rows))], [y + 0.19 for y in range(len(rows))]
    place.barh(upper, stall, 0.34, color=COLOURS["write"], label="stall")
    place.barh(upper, slower, 0.34, left=stall, color=COLOURS["serialize"], label="slower steps")
    known = [(y, row) for y, row in zip(lower, rows, strict=True) if row["control_s"] is not None]
    if known:
        style: dict[str, Any] = {"color": COLOURS["background"], "label": "against the control, range over runs"}
        bounds = [
            [max(row["control_s"] - row["control_low_s"], 0.0) for _, row in known],
            [max(row["control_high_s"] - row["control_s"], 0.0) for _, row in known],
        ]
        costs = [row["control_s"] for _, row in known]
        place.barh([y for y, _ in known], costs, 0.34, xerr=bounds, capsize=2, **style)
    names = ("framework", "strategy", "format")
    labels = [f"{' '.join(row[name] for name in names)} {row['nodes']} x {row['ranks_per_node']}" for row in rows]
    place.set_yticks(range(len(rows)), labels, fontsize=8)
    place.set_ylim(len(rows) - 0.5, -0.5)
    place.axvline(0, color="#666666", linewidth=0.8)
    where = f"; {MECHANISM}" if rows[0]["virtual_nodes"] else ""
    place.set_title(f"{title}{where}", fontsize=9, loc="left")
    place.set_xlabel("seconds per checkpoint")
