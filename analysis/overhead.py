"""What do checkpoints cost a training as a whole? `python -m analysis.overhead`.

Stall, phases and waiting over nodes and ranks; the overhead added up from phases and against the
control side by side, with what explains their difference; CPU and GPU around the save. Arithmetic is
in `overhead_parts`, verdicts in `overhead_claims`, tables in `overhead_show`.
"""

from __future__ import annotations

from typing import Any

from analysis.cli import Answer, Question, main
from analysis.in_short import Measure
from analysis.overhead_claims import findings
from analysis.overhead_parts import per_run, serializing
from analysis.overhead_show import drawings, notes, views
from analysis.own import compresses
from analysis.pooling import Group, Pool, Row, pool, writers
from analysis.stats import Interval, median_interval
from analysis.tables import PHASE_COLUMNS, Tables
from analysis.view import Drawing, View

PHASES = tuple(PHASE_COLUMNS.values())
ALIKE = ("framework", "strategy", "model", "durable", "interval_steps", "faults", "site", "nodes", "ranks_per_node")
"""What two rows share that differ in the format only."""
COMPRESSES = 1.02
"""A format whose files are by so much smaller than their tensors, for any model, compresses."""
OLD = "the trace is older than this number"
METRICS: dict[str, str | None] = {
    "stall_s": None,
    "stall_max_s": None,
    "wait_before_s": None,
    "idle_rank_s": None,
    "idle_share": None,
    "background_s": None,
    "phases_fraction": "overhead_reason",
    "control_s": "overhead_reason",
    "control_fraction": "overhead_reason",
    "interval_s": "overhead_reason",
    "slower_steps_s": "overhead_reason",
    "phases_s": None,
    "apart_s": "overhead_reason",
    "rest_s": "overhead_reason",
    "before_more_s": None,
    "cpu_saving": OLD,
    "cpu_writers": OLD,
    "cpu_others": OLD,
    "cpu_training": OLD,
    "cpu_ratio": OLD,
    "gpu_saving": "gpu_reason",
    "serialize_s": "split_reason",
    "write_s": "split_reason",
    "compression": None,
}
"""Value of a run -> the one that says why it may be missing, or the reason itself."""


class Overhead(Question):
    """The cost of checkpoints, two ways."""

    name = "overhead"
    asks = "What do checkpoints cost the training: by phases and against a control, in waiting, CPU and GPU?"
    measures = (
        Measure(column="control_s", words="against the control a checkpoint costs", unit="s"),
        Measure(column="phases_s", words="its phases add up to", unit="s"),
        Measure(column="idle_share", words="of the stall the ranks idle", unit="share"),
    )

    def answer(self, tables: Tables, pool_commits: bool = False) -> Answer:
        runs, split = per_run(tables), serializing(tables)
        runs = {name: row | split.get(name, dict.fromkeys(("serialize_s", "write_s"))) for name, row in runs.items()}
        groups = pool(tables, pool_commits)
        rows = _beside_others([_row(group, each, runs) for group in groups for each in group.pools])
        return Answer(
            question=self.name,
            rows=rows,
            findings=[found for title in _titles(rows) for found in findings(title, rows)],
            left_out=list(tables.left_out.iter_rows(named=True)),
            notes=notes(rows),
        )

    def views(self, answer: Answer) -> list[View]:
        return views(answer.rows)

    def drawings(self, answer: Answer) -> list[Drawing]:
        return drawings(answer.rows)


def _titles(rows: list[Row]) -> list[str]:
    return list(dict.fromkeys(row["group"] for row in rows))


def _row(group: Group, each: Pool, runs: dict[str, Row]) -> Row:
    mine = [] if each.reason else [runs[name] for name in each.evidence]
    row: Row = {
        "group": group.title,
        **group.key,
        "place": each.place,
        "nodes": each.nodes,
        "ranks_per_node": each.ranks_per_node,
        "ranks": each.ranks,
        "virtual_nodes": any(run["virtual_nodes"] for run in each.runs),
        "ranks_per_core": max((run["ranks_per_core"] for run in each.runs), default=None),
        "barrier": each.runs[0]["barrier"] if each.runs else None,
        "runs": len(each.runs),
        "checkpoints": len(each.checkpoints()),
        **writers(each),
        "evidence": each.evidence,
    }
    for name, reason in METRICS.items():
        row |= _numbers(name, median_interval(_known(name, mine), reason=each.reason or _why(name, reason, mine)))
    row["idle_per_run"] = _known("idle_rank_s", mine)
    for column in PHASES:
        split = "split" if column in ("serialize_s", "write_s", "sync_s") else None
        item = each.over_saves(column, split)
        row |= {f"phase_{column}": item.value, f"phase_{column.removesuffix('_s')}_reason": item.reason}
    return row


def _beside_others(rows: list[Row]) -> list[Row]:
    """Each row with whether its format compresses, and what the same state takes uncompressed, where that was run."""
    smaller = {
        (row["framework"], row["format"]) for row in rows if row["compression"] and row["compression"] >= COMPRESSES
    }
    known = [row | {"compresses": (row["framework"], row["format"]) in smaller or compresses(row["format"])}
             for row in rows]  # fmt: skip
    return [row | _uncompressed(row, known) for row in known]


def _uncompressed(row: Row, rows: list[Row]) -> Row:
    """The quickest uncompressed sibling of a row of compressed files."""
    alike = [each for each in rows if all(each[name] == row[name] for name in ALIKE) and not each["compresses"]]
    plain = [each for each in alike if row["compresses"] and each["serialize_s"] is not None]
    best = min(plain, key=lambda each: each["serialize_s"], default=None)
    return {
        "uncompressed_s": best["serialize_s"] if best else None,
        "uncompressed_format": best["format"] if best else None,
    }


def _known(name: str, runs: list[Row]) -> list[float]:
    return [run[name] for run in runs if run.get(name) is not None]


def _why(name: str, reason: str | None, runs: list[Row]) -> str:
    """Why no run has the number."""
    if not runs:
        return "no trusted run"
    said: Any = next((run[reason] for run in runs if reason and run.get(reason)), None)
    if said:
        return str(said).removeprefix("not measured: ")
    if name == "cpu_others":
        return "every rank writes" if _known("cpu_saving", runs) else OLD
    return OLD if reason == OLD else "no step times of both legs" if name == "slower_steps_s" else "no checkpoints"


def _numbers(name: str, item: Interval) -> Row:
    stem, unit = (name.removesuffix("_s"), "_s") if name.endswith("_s") else (name, "")
    bounds = {f"{stem}_low{unit}": item.low, f"{stem}_high{unit}": item.high}
    return {name: item.value, **bounds, f"{stem}_reason": item.reason, f"{stem}_runs": item.n}


if __name__ == "__main__":
    raise SystemExit(main(Overhead()))
