"""What can be saved when no rank holds the whole model? `python -m analysis.model_parallel`.

Speaks only of runs of frameworks that declare that no rank holds the whole state, and of what their
campaigns could not run. Verdicts: `analysis.model_parallel_claims`.
"""

from __future__ import annotations

from collections import Counter

import polars as pl

from analysis import charts, laws
from analysis.cli import Answer, Question, main
from analysis.in_short import Measure
from analysis.model_parallel_claims import findings, paper
from analysis.model_parallel_show import views
from analysis.pooling import Group, Pool, pool, writers
from analysis.rows import Row, head, numbers, of, over, over_saves, ratio
from analysis.tables import Tables
from analysis.view import Drawing, View
from hpcckpt import registry
from hpcckpt.errors import HpcCkptError

NOTHING = "No run is of a framework whose ranks hold parts of the model."
METHOD = (
    "Planned bytes are what the strategy gave to each rank. These runs restore on their own number of ranks; whether a "
    "checkpoint can be restored on another number is what framework and strategy declare, and contract tests try it: "
    "saved on all ranks, restored on half of them."
)


class ModelParallel(Question):
    """Saving models that no rank holds whole."""

    name = "model_parallel"
    asks = "What can each framework save when no rank holds the whole model, and who writes how much?"
    measures = (
        Measure(column="fullest_share", words="the fullest rank writes of the bytes", unit="share", about="saved"),
        Measure(column="stall_s", words="the stall is", unit="s", about="saved"),
    )

    def answer(self, tables: Tables, pool_commits: bool = False) -> Answer:
        groups = [group for group in pool(tables, pool_commits) if in_parts(group.key["framework"])]
        rows = [_row(tables, group, each) for group in groups for each in group.pools]
        impossible = [
            {"about": "impossible", **entry}
            for entry in tables.impossible.iter_rows(named=True)
            if in_parts(entry["framework"])
        ]
        return Answer(
            question=self.name,
            rows=[*rows, *impossible],
            findings=[*(finding for row in rows for finding in findings(row)), paper(rows, impossible)],
            left_out=list(tables.left_out.iter_rows(named=True)),
            notes=[METHOD if rows or impossible else NOTHING],
        )

    def views(self, answer: Answer) -> list[View]:
        return views(answer.rows)

    def drawings(self, answer: Answer) -> list[Drawing]:
        rows = [row for row in answer.rows if row["about"] == "saved" and row["planned_bytes"]]
        if not rows:
            return []
        shown = sorted(rows, key=lambda row: (row["framework"], -row["fullest_share"]))[: charts.LARGEST]
        parts = {
            "fullest rank": [row["planned_most_bytes"] / 1e6 for row in shown],
            "all others": [(row["planned_bytes"] - row["planned_most_bytes"]) / 1e6 for row in shown],
        }
        title = "Saving a model that no rank holds whole: bytes of the fullest rank and of all others"
        left = f"; {len(shown)} of {len(rows)} rows" if len(shown) < len(rows) else ""
        panel = charts.bars([_label(row) for row in shown], parts, "MB planned per checkpoint")
        figure = charts.sheet(title, f"median over runs{left}", [panel], [0.42 * len(shown) + 0.6])
        return [Drawing(name="ranks", caption=title, figure=figure)]


def in_parts(framework: str) -> bool:
    """Whether no rank of the framework holds the whole state; a name that this release lacks does not count."""
    try:
        return not registry.load("hpcckpt.frameworks", framework).holds_whole
    except HpcCkptError:
        return False


def elastic(framework: str, strategy: str) -> bool | None:
    """Whether both declare that a checkpoint can be restored on another number of ranks; None: not known."""
    named = (("hpcckpt.frameworks", framework), ("hpcckpt.strategies", strategy))
    try:
        return all(registry.load(package, name).elastic for package, name in named)
    except HpcCkptError:
        return None


def _row(tables: Tables, group: Group, each: Pool) -> Row:
    ranks = of(tables.rank_saves, each)
    planned = ranks.group_by("run", "generation").agg(
        all=pl.col("planned_bytes").sum(),
        most=pl.col("planned_bytes").max(),
        mean=pl.col("planned_bytes").mean(),
        fullest=pl.col("rank").sort_by("planned_bytes", descending=True).first(),
    )
    row = head(group, each) | {"about": "saved"}
    row["state_bytes"] = over_saves(tables, each, "state_bytes").value
    row |= numbers("stall", "s", each.over_saves("stall_s"))
    row |= numbers("checkpoint", "bytes", over_saves(tables, each, "checkpoint_bytes"))
    row["planned_bytes"] = over(each, planned, "all", "no checkpoints").value
    row["planned_most_bytes"] = over(each, planned, "most", "no checkpoints").value
    usual = Counter(planned["fullest"].to_list()).most_common(1)
    row["fullest_rank"] = usual[0][0] if usual else None
    row["spread"] = over(each, planned, pl.col("most") / pl.col("mean"), "nothing was planned").value
    row["fullest_share"] = ratio(row["planned_most_bytes"], row["state_bytes"])
    row |= writers(each) | _read_back(tables, each)
    return row | {"elastic": elastic(group.key["framework"], group.key["strategy"])}


def _read_back(tables: Tables, each: Pool) -> Row:
    mine = of(tables.laws, each).filter(pl.col("law") == laws.READBACK)
    for verdict, said in ((laws.BROKEN, False), (laws.NOT_MEASURED, None)):
        found = mine.filter(pl.col("verdict") == verdict)
        if found.height:
            return {"read_back": said, "read_back_reason": found["detail"][0]}
    return {"read_back": True if mine.height else None, "read_back_reason": None if mine.height else "no trusted run"}


def _label(row: Row) -> str:
    point = f"{row['format']} {row['model']}, {row['nodes']} x {row['ranks_per_node']}"
    return f"{row['framework']} {row['strategy']}\n{point}"


if __name__ == "__main__":
    raise SystemExit(main(ModelParallel()))
