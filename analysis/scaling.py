"""How does a checkpoint's cost grow with nodes? Rows, figure and words of `python -m analysis.scaling`.

The numbers come from `analysis.pooling`, the verdicts from `analysis.scaling_claims`; only what this
question shows of them, and how, is here.
"""

from __future__ import annotations

from collections import Counter
from itertools import chain

import msgspec

from analysis import laws
from analysis.charts import LARGEST
from analysis.cli import Answer, Question, main
from analysis.figures import BESIDE_PHASES, MECHANISM, PANELS, Bars, stacked, strips
from analysis.finding import counted
from analysis.in_short import Measure
from analysis.pooling import Group, Pool, Row, pool, writers
from analysis.scaling_claims import findings
from analysis.scaling_ranks import with_ranks
from analysis.scaling_show import views
from analysis.scaling_words import commit_note, paragraph
from analysis.stats import Interval
from analysis.tables import PHASE_COLUMNS, Tables
from analysis.view import Drawing, View


class Metric(msgspec.Struct, frozen=True):
    """One number of a row: `name` and `unit` make its keys, `column` and `reason` its source."""

    name: str
    unit: str
    table: str
    column: str
    reason: str | None = None


PARTS = {**PHASE_COLUMNS, **{part: f"{part}_s" for part in BESIDE_PHASES}}
"""All that a stall is made of."""
_SPLIT = ("serialize_s", "write_s", "sync_s")
METRICS = (
    Metric("stall", "s", "saves", "stall_s"),
    *(
        Metric(column.removesuffix("_s"), "s", "saves", column, "split" if column in _SPLIT else None)
        for column in PHASE_COLUMNS.values()
    ),
    Metric("unattributed", "s", "saves", "unattributed_s"),
    Metric("unattributed_max", "s", "saves", "unattributed_max_s"),
    Metric("release", "s", "saves", "release_s"),
    Metric("others_wait_inside", "s", "saves", "others_wait_inside_s"),
    Metric("others_wait_after", "s", "saves", "others_wait_after_s"),
    Metric("wait_before", "s", "saves", "wait_before_s"),
    Metric("idle_rank", "s", "saves", "idle_rank_s"),
    Metric("checkpoint", "bytes", "saves", "checkpoint_bytes", "bytes_reason"),
    Metric("effective", "gb_per_s", "saves", "effective_gb_per_s", "bytes_reason"),
    Metric("overhead_per_checkpoint", "s", "runs", "overhead_per_checkpoint_s", "overhead_reason"),
    Metric("overhead", "fraction", "runs", "overhead_fraction", "overhead_reason"),
    Metric("interval", "s", "runs", "interval_s", "overhead_reason"),
    Metric("deferred", "s", "runs", "deferred_s", "deferred_reason"),
)


class Scaling(Question):
    """Stall, phases, waiting and overhead over nodes."""

    name = "scaling"
    asks = "How do the stall of a checkpoint, its phases and its overhead change with nodes and ranks?"
    measures = (
        Measure(column="stall_s", words="the stall of a checkpoint is", unit="s"),
        Measure(column="overhead_per_checkpoint_s", words="its overhead against the control is", unit="s"),
        Measure(column="idle_rank_s", words="ranks idle in it for", unit="rank-s"),
    )

    def answer(self, tables: Tables, pool_commits: bool = False) -> Answer:
        groups = pool(with_ranks(tables), pool_commits)
        return Answer(
            question=self.name,
            rows=[_row(group, each) for group in groups for each in group.pools],
            findings=[finding for group in groups for finding in findings(group)],
            left_out=list(tables.left_out.iter_rows(named=True)),
            notes=[*commit_note(tables, pool_commits), *(paragraph(group) for group in groups)],
        )

    def views(self, answer: Answer) -> list[View]:
        return views(answer.rows)

    def drawings(self, answer: Answer) -> list[Drawing]:
        titles = dict.fromkeys(row["group"] for row in answer.rows)
        panels = [_bars([row for row in answer.rows if row["group"] == title]) for title in titles]
        panels = [panel for panel in panels if any(item.value is not None for item in panel.stall)]
        subtitle = _common([row["setting"] for row in answer.rows]) if panels else ""
        grown = [panel for panel in panels if len(panel.labels) > 1]
        alone = [panel for panel in panels if len(panel.labels) == 1]
        return [*_over_nodes(grown, len(alone), subtitle), *_single_points(alone, subtitle)]


def _over_nodes(panels: list[Bars], alone: int, subtitle: str) -> list[Drawing]:
    """A panel per group with several points, the largest stall first; as many figures as they need."""
    title = "Stall of a checkpoint over nodes: phases of the slowest rank, and how long the others wait"
    left = f"\n{counted(alone, 'group')} with one point only: in a figure of single points" if alone else ""
    found = []
    for number, part in enumerate(_parts(panels, PANELS), start=1):
        figure = stacked(part, title, subtitle + left, "nodes x ranks per node")
        name = "stall" if number == 1 else f"stall-{number}"
        found.append(Drawing(name=name, caption=_part_of(title, number, panels, PANELS), figure=figure))
    return found


def _single_points(panels: list[Bars], subtitle: str) -> list[Drawing]:
    """Groups that were measured at one point show no growth: a bar each, in one chart."""
    title = "Stall of a checkpoint where there is one point only: phases of the slowest rank"
    found = []
    for number, part in enumerate(_parts(panels, LARGEST), start=1):
        caption = _part_of(title, number, panels, LARGEST)
        found.append(Drawing(name=f"points-{number}", caption=caption, figure=strips(part, title, subtitle)))
    return found


def _parts(panels: list[Bars], most: int) -> list[list[Bars]]:
    ordered = sorted(panels, key=lambda panel: -max(item.value or 0.0 for item in panel.stall))
    return [ordered[at : at + most] for at in range(0, len(ordered), most)]


def _part_of(title: str, number: int, panels: list[Bars], most: int) -> str:
    parts = -(-len(panels) // most)
    return f"{title}, {number} of {parts}" if parts > 1 else title


def key(metric: Metric, part: str = "") -> str:
    """Name of a metric's number in a row: stall_s, stall_low_s, stall_high_s; stall_reason."""
    if part in ("reason", "runs", "kind", "coverage"):
        return f"{metric.name}_{part}"
    return f"{metric.name}_{part}_{metric.unit}" if part else f"{metric.name}_{metric.unit}"


def _row(group: Group, each: Pool) -> Row:
    row: Row = {
        "group": group.title,
        "setting": setting(group),
        **group.key,
        "virtual_nodes": bool(group.first["virtual_nodes"]),
        "nodes": each.nodes,
        "ranks_per_node": each.ranks_per_node,
        "ranks": each.ranks,
        "runs": len(each.runs),
        "runs_untrusted": each.untrusted,
        "checkpoints": len(each.checkpoints()),
    }
    for metric in METRICS:
        over = each.over_saves if metric.table == "saves" else each.over_runs
        row |= _numbers(metric, over(metric.column, metric.reason))
    return row | writers(each) | _coverage(each) | {"flags": flags(each), "evidence": each.evidence}


def _numbers(metric: Metric, item: Interval) -> Row:
    found: Row = {
        key(metric): item.value,
        key(metric, "low"): item.low,
        key(metric, "high"): item.high,
        key(metric, "runs"): item.n,
        key(metric, "reason"): item.reason,
    }
    if metric.name == "stall":
        found |= {key(metric, "kind"): item.kind, key(metric, "coverage"): item.coverage}
    return found


def _coverage(each: Pool) -> Row:
    saves = each.checkpoints()
    low = [save["coverage_min"] for save in saves if save["coverage_min"] is not None]
    high = [save["coverage_max"] for save in saves if save["coverage_max"] is not None]
    reason = next((save["coverage_reason"] for save in saves if save["coverage_reason"]), None)
    return {
        "coverage_min": min(low, default=None),
        "coverage_max": max(high, default=None),
        "coverage_reason": None if low else reason or "no checkpoints",
    }


def flags(each: Pool) -> list[str]:
    """What is to be known of a row: checkpoints that break law 1 or 2, flags of runs, runs in no number."""
    saves = each.checkpoints()
    found = [
        f"{words} in {broken} of {len(saves)} checkpoints"
        for column, words in (
            ("coverage_ok", "coverage outside the format's interval"),
            ("unattributed_ok", "unattributed time above 1 % and 1 ms"),
        )
        if (broken := sum(save[column] is False for save in saves))
    ]
    heads = Counter(head for run in each.runs for head in _run_flags(run))
    found += [f"{head} in {count} of {len(each.runs)} runs" for head, count in sorted(heads.items())]
    return found + ([f"{each.untrusted} runs left out: law broken"] if each.untrusted else [])


def _run_flags(run: Row) -> set[str]:
    """Kinds of flags that a run has; those of single checkpoints are counted by checkpoint."""
    heads = {flag.partition(":")[0].partition(" with ")[0] for flag in run["flags"]}
    cut = {"drain cut short"} if run["deferred_s"] is not None and run["deferred_reason"] else set()
    return (heads - {laws.COVERAGE, laws.UNATTRIBUTED}) | cut


def setting(group: Group) -> str:
    """What stands over every table: site, machine, data, model."""
    run = group.first
    parts = [f"site {run['site']}"]
    if run["virtual_nodes"]:
        loads = sorted({run["ranks_per_core"] for each in group.pools for run in each.runs})
        span = f"{loads[0]:g}" if len(loads) == 1 else f"{loads[0]:g} to {loads[-1]:g}"
        parts.append(f"{MECHANISM}: virtual nodes, {span} ranks per core")
    if run["barrier"] != "poll":
        parts.append(f"barriers: {run['barrier']}")
    parts.append(f"data: {run['data']}")
    parts.append(f"model {run['model']}, {run['parameters']:,} parameters")
    return "; ".join(parts)


def _common(settings: list[str]) -> str:
    """What all settings say, in the first one's order; that it is one machine is said in any case."""
    parts = [setting.split("; ") for setting in settings]
    virtual = any(part.startswith(MECHANISM) for part in chain(*parts))
    shared = [part for part in parts[0] if all(part in other for other in parts)]
    return "; ".join(([MECHANISM] if virtual else []) + [p for p in shared if not p.startswith(MECHANISM)])


def _bars(rows: list[Row]) -> Bars:
    smallest = rows[0]
    same = [row for row in rows if row["ranks_per_node"] == smallest["ranks_per_node"] and row["stall_s"] is not None]
    # Virtual nodes share one disk: there is no N-th of the time to hope for.
    hope = smallest["stall_s"] is not None and not smallest["virtual_nodes"]
    ideal = {row["nodes"]: smallest["stall_s"] * smallest["nodes"] / row["nodes"] for row in same if hope}
    return Bars(
        title=_panel_title(smallest),
        labels=[f"{row['nodes']} x {row['ranks_per_node']}" for row in rows],
        phases={part: [max(row[column] or 0.0, 0.0) for row in rows] for part, column in PARTS.items()},
        waiting=[_sum(row["others_wait_after_s"], row["others_wait_inside_s"]) for row in rows],
        stall=[Interval(value=row["stall_s"], low=row["stall_low_s"], high=row["stall_high_s"]) for row in rows],
        ideal=[ideal.get(row["nodes"]) if row in same else None for row in rows],
    )


def _panel_title(row: Row) -> str:
    """The group's title in lines that fit a panel."""
    words, lines = row["group"].split(", "), [""]
    for word in words:
        if lines[-1] and len(lines[-1]) + len(word) > 50:
            lines.append("")
        lines[-1] += f", {word}" if lines[-1] else word
    return "\n".join(lines)


def _sum(*values: float | None) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


if __name__ == "__main__":
    raise SystemExit(main(Scaling()))
