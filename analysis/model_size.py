"""What do size and shape of a model do to time, bytes and memory? `python -m analysis.model_size`.

Rows are about a model at a point of the other axes, and about lines over the number of parameters
through the runs of all models there. Verdicts: `analysis.model_size_claims`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import polars as pl

from analysis import charts
from analysis.cli import Answer, Question, main
from analysis.in_short import Measure
from analysis.model_size_claims import findings
from analysis.model_size_show import views
from analysis.pooling import Group, Pool, pool
from analysis.rows import Row, fullest_extra, head, numbers, of, over, over_saves, ratio
from analysis.stats import Fit, fit_line, lack_of_fit
from analysis.tables import Tables
from analysis.view import Drawing, View

METRICS = {"stall": "s", "checkpoint": "bytes", "extra": "bytes"}
"""What is laid over the number of parameters, with its unit in the rows."""
SHOWN = {"stall": ("stall, s", 1.0), "checkpoint": ("checkpoint, MB", 1e-6), "extra": ("extra memory, MB", 1e-6)}
METHOD = (
    "Each run is a point: the median of its checkpoints over the model's parameters. No line through fewer than 3 "
    "different sizes. Extra memory: resident peak of a run's fullest save less what was resident before, fullest rank."
)


class ModelSize(Question):
    """Stall, bytes and memory over parameters and architecture."""

    name = "model_size"
    asks = "How do the stall, the bytes and the memory of a checkpoint depend on the model's size and architecture?"
    measures = (
        Measure(column="stall_s", words="the stall is", unit="s", about="model"),
        Measure(column="checkpoint_per_parameter", words="bytes on disk a parameter are", unit="ratio", about="model"),
    )

    def answer(self, tables: Tables, pool_commits: bool = False) -> Answer:
        pairs = [(group, each) for group in pool(tables, pool_commits) for each in group.pools]
        models = [_model(tables, group, each) for group, each in pairs]
        several = [rows for rows in _series(models).values() if len({row["model"] for row in rows}) > 1]
        fits = [row for rows in several for row in _fits(rows)]
        return Answer(
            question=self.name,
            rows=[*models, *fits],
            findings=findings(_series(models), fits),
            left_out=list(tables.left_out.iter_rows(named=True)),
            notes=[METHOD],
        )

    def views(self, answer: Answer) -> list[View]:
        return views(answer.rows)

    def drawings(self, answer: Answer) -> list[Drawing]:
        models = [row for row in answer.rows if row["about"] == "model"]
        fits = {(row["series"], row["metric"]): row for row in answer.rows if row["about"] == "fit"}
        several = {title: rows for title, rows in _series(models).items() if len(rows) > 1}
        panels = [_panel(several, fits, metric) for metric in METRICS if _measured(several, metric)]
        if not panels:
            return []
        title = "Time, bytes and memory of a checkpoint over the model's parameters"
        under = "one mark per run, dashed: least squares through at least 3 sizes"
        figure = charts.sheet(title, under, panels, [3.2] * len(panels))
        return [Drawing(name="parameters", caption=title, figure=figure)]


def _model(tables: Tables, group: Group, each: Pool) -> Row:
    extra, reason = _extra(tables, each)
    row = head(group, each) | {"about": "model", "series": _title(group, each)}
    row |= numbers("stall", "s", each.over_saves("stall_s"))
    row |= numbers("checkpoint", "bytes", over_saves(tables, each, "checkpoint_bytes"))
    row |= numbers("extra", "bytes", over(each, extra, "extra", reason))
    values = {
        "stall": {} if each.reason else each.per_run("stall_s"),
        "checkpoint": each.per_run("checkpoint_bytes"),
        "extra": dict(extra.drop_nulls().select("run", "extra").rows()),
    }
    points = {f"{metric}_points": [float(found[run]) for run in sorted(found)] for metric, found in values.items()}
    size, state = row["parameters"], over_saves(tables, each, "state_bytes").value
    per = {f"{metric}_per_parameter": ratio(row[f"{metric}_{unit}"], size) for metric, unit in METRICS.items()}
    return row | points | per | {"per_state": ratio(row["checkpoint_bytes"], state)}


def _extra(tables: Tables, each: Pool) -> tuple[pl.DataFrame, str]:
    """Per run, extra memory of its fullest save's fullest rank; and why it would not be known."""
    ranks = of(tables.rank_saves, each)
    reason = next(iter(ranks["rss_reason"].drop_nulls()), "no checkpoints")
    return fullest_extra(ranks), reason


def _title(group: Group, each: Pool) -> str:
    """What rows share that differ in the model only."""
    key = {**group.key, "model": "*"}
    apart = f", conditions {key['conditions']}" if "conditions" in key else ""
    commit = f", commit {str(key['commit'])[:12]}" if "commit" in key else ""
    kind = "durable" if group.durable else "buffered"
    planted = f", planted faults: {key['faults']}" if key["faults"] else ""
    names = ", ".join(str(key[name]) for name in ("framework", "strategy", "format", "site"))
    return f"{names}, {kind}, every {key['interval_steps']} steps{planted}{commit}{apart}, {each.place}"


def _series(models: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows that differ in the model only, smallest model first."""
    found: dict[str, list[Row]] = defaultdict(list)
    for row in sorted(models, key=lambda row: (row["parameters"], row["model"])):
        found[row["series"]].append(row)
    return dict(found)


def _fits(rows: Sequence[Row]) -> list[Row]:
    return [_fit(rows, metric) for metric in METRICS]


def _fit(rows: Sequence[Row], metric: str) -> Row:
    points = [(row["parameters"] / 1e6, value) for row in rows for value in row[f"{metric}_points"]]
    line = fit_line([x for x, _ in points], [y for _, y in points]) if points else Fit(reason=_why(rows, metric))
    # By model: two of one size are apart by their architecture, not by noise.
    lack = lack_of_fit([(row["parameters"] / 1e6, row[f"{metric}_points"]) for row in rows])
    names = ("framework", "strategy", "format", "durable", "nodes", "ranks_per_node", "place", "series")
    return {
        "about": "fit",
        **{name: rows[0][name] for name in names},
        "models": [row["model"] for row in rows],
        "metric": metric,
        "unit": METRICS[metric],
        "slope_per_million_parameters": line.slope,
        "slope_low": line.slope_low,
        "slope_high": line.slope_high,
        "intercept": line.intercept,
        "r2": line.r2,
        "lack_of_fit_p": lack.p,
        "lack_of_fit_f": lack.f,
        "between_repeats": lack.between_repeats,
        "lack_of_fit_reason": lack.reason,
        "runs": line.n,
        "sizes": line.distinct,
        "reason": line.reason,
        "evidence": [run for row in rows for run in row["evidence"]],
    }


def _why(rows: Sequence[Row], metric: str) -> str:
    return next((row[f"{metric}_reason"] for row in rows if row[f"{metric}_reason"]), "no checkpoints")


def _measured(several: dict[str, list[Row]], metric: str) -> bool:
    return any(row[f"{metric}_points"] for rows in several.values() for row in rows)


def _panel(several: dict[str, list[Row]], fits: dict[tuple[str, str], Row], metric: str) -> charts.Panel:
    words, factor = SHOWN[metric]
    found = [_drawn(rows, fits[title, metric], metric, factor) for title, rows in several.items()]
    return charts.points(found, "million parameters", words)


def _drawn(rows: Sequence[Row], fit: Row, metric: str, factor: float) -> charts.Series:
    points = [(row["parameters"] / 1e6, value * factor) for row in rows for value in row[f"{metric}_points"]]
    line: list[tuple[float, float]] = []
    if fit["slope_per_million_parameters"] is not None:
        ends = (min(x for x, _ in points), max(x for x, _ in points))
        line = [(x, factor * (fit["intercept"] + fit["slope_per_million_parameters"] * x)) for x in ends]
    first = rows[0]
    kind = ", durable" if first["durable"] else ""
    where = f"{first['nodes']} x {first['ranks_per_node']}{kind}"
    label = f"{first['framework']} {first['strategy']} {first['format']}, {where}"
    return charts.Series(label=label, x=[x for x, _ in points], y=[y for _, y in points], line=line)


if __name__ == "__main__":
    raise SystemExit(main(ModelSize()))
