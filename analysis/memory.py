"""How much memory does a save need beside the state? `python -m analysis.memory`.

The extra memory of a rank is its resident peak during a save less what was resident before it.
Rows only here; verdicts: `analysis.memory_claims`.
"""

from __future__ import annotations

from collections import Counter

import polars as pl

from analysis import charts
from analysis.cli import Answer, Question, main
from analysis.in_short import Measure
from analysis.memory_claims import findings
from analysis.memory_show import views
from analysis.pooling import Group, Pool, pool
from analysis.rows import EXTRA, Row, fullest_extra, head, interval, numbers, of, over, over_saves, ratio
from analysis.tables import Tables
from analysis.view import Drawing, View

NAMES = ("extra_total", "extra_writers", "extra_others", "peak")
FEWEST_SAVES = 3
"""Growth is looked for behind the first save, which fills pools that stay."""
METHOD = (
    "Extra memory: a rank's resident peak during its stall less what was resident before; a checkpoint's is its "
    "fullest rank's, a run's its fullest checkpoint's: mostly the first one, whose pools stay. What background work "
    "needs behind the stall is not in it."
)


class Memory(Question):
    """Peak memory per save against the state's size and the rank's own share."""

    name = "memory"
    asks = "How much memory does a save need beside the training state, and on which ranks?"
    measures = (
        Measure(column="extra_bytes", words="on the fullest rank a save needs", unit="bytes"),
        Measure(column="extra_over_state", words="over the state's bytes that is", unit="ratio"),
    )

    def answer(self, tables: Tables, pool_commits: bool = False) -> Answer:
        rows = [_row(tables, group, each) for group in pool(tables, pool_commits) for each in group.pools]
        return Answer(
            question=self.name,
            rows=rows,
            findings=[finding for row in rows for finding in findings(row)],
            left_out=list(tables.left_out.iter_rows(named=True)),
            notes=[METHOD],
        )

    def views(self, answer: Answer) -> list[View]:
        return views(answer.rows)

    def drawings(self, answer: Answer) -> list[Drawing]:
        return [*_ratio_drawing(answer.rows), *_copies_drawing(answer.rows)]


def _row(tables: Tables, group: Group, each: Pool) -> Row:
    ranks = of(tables.rank_saves, each).with_columns(extra=EXTRA)
    reason = next(iter(ranks["rss_reason"].drop_nulls()), "no checkpoints" if each.runs else "no trusted run")
    row = head(group, each) | {"state_bytes": over_saves(tables, each, "state_bytes").value}
    per_save = _per_save(ranks)
    # The first save fills pools that stay: a median over checkpoints would pass over what a node must have.
    whole = [pl.when(pl.col(name).is_not_null().all()).then(pl.col(name).max()).alias(name) for name in NAMES]
    largest = per_save.group_by("run").agg(*whole)
    later = per_save.filter(pl.col("generation") > pl.col("generation").min().over("run"))
    row |= numbers("extra", "bytes", over(each, fullest_extra(ranks), "extra", reason))
    for name in NAMES:
        row |= numbers(name, "bytes", over(each, largest, name, reason))
    if row["extra_others_bytes"] is None and not ranks.filter(pl.col("planned_bytes") == 0).height:
        row["extra_others_reason"] = "every rank writes"
    row |= numbers("later", "bytes", over(each, later, "extra", "one checkpoint only" if later.is_empty() else reason))
    row["planned_bytes"] = over(each, per_save, "planned", "no checkpoints").value
    # Of all writers those with most bytes: a buffer is many times the bytes of a rank that writes next to nothing.
    planned = pl.col("planned_bytes")
    most = planned == planned.max().over("run", "generation")
    own = ranks.filter(most & (planned > 0)).with_columns(share=pl.col("extra") / planned)
    copies = own.group_by("run").agg(pl.when(pl.col("share").is_not_null().all()).then(pl.col("share").max()))
    row |= numbers("extra_over_planned", "ratio", over(each, copies, "share", reason))
    row |= _main_writer(own)
    row["extra_over_state"] = ratio(row["extra_bytes"], row["state_bytes"])
    return row | _fullest(ranks) | _growth(each, ranks, reason) | {"points": _points(ranks)}


def _main_writer(own: pl.DataFrame) -> Row:
    """The rank that is given most, in most runs, and what its fullest save adds beside what it writes then."""
    fullest = own.sort("share", descending=True, nulls_last=True).group_by("run", maintain_order=True).first()
    ranks = Counter(fullest["rank"].to_list()).most_common(1)
    mine = fullest.filter(pl.col("rank") == ranks[0][0]) if ranks else fullest
    return {
        "main_writer": ranks[0][0] if ranks else None,
        "main_writer_runs": ranks[0][1] if ranks else 0,
        "main_writer_extra_bytes": mine["extra"].median(),
        "main_writer_planned_bytes": mine["planned_bytes"].median(),
    }


def _per_save(ranks: pl.DataFrame) -> pl.DataFrame:
    """Per checkpoint: extra memory of the fullest rank, of all, of writers and of others; null where a rank's is."""
    extra, writes = pl.col("extra"), pl.col("planned_bytes") > 0
    values = {
        "extra": extra.max(),
        "extra_total": extra.sum(),
        "extra_writers": extra.filter(writes).max(),
        "extra_others": extra.filter(~writes).max(),
        "peak": pl.col("rss_peak_bytes").max(),
    }
    known = {name: pl.when(extra.is_not_null().all()).then(value) for name, value in values.items()}
    return ranks.group_by("run", "generation").agg(**known, planned=pl.col("planned_bytes").max())


def _most(ranks: pl.DataFrame) -> pl.DataFrame:
    """Per run, the rank and checkpoint with most extra memory, and how that stands to the checkpoint's mean."""
    known = ranks.filter(pl.col("extra").is_not_null())
    shares = known.with_columns(spread=pl.col("extra") / pl.col("extra").mean().over("run", "generation"))
    return shares.sort("extra", descending=True).group_by("run", maintain_order=True).first()


def _fullest(ranks: pl.DataFrame) -> Row:
    """Which rank has most extra memory in most runs, and how much more than the mean."""
    most = _most(ranks)
    if most.is_empty():
        return {"fullest_rank": None, "fullest_runs": 0, "spread": None}
    rank, count = Counter(most["rank"].to_list()).most_common(1)[0]
    return {"fullest_rank": rank, "fullest_runs": count, "spread": most.filter(pl.col("extra") > 0)["spread"].median()}


def _growth(each: Pool, ranks: pl.DataFrame, reason: str) -> Row:
    """By how much more is resident before the last save than before the second, on the rank that grew most."""
    later = ranks.filter(pl.col("generation") > ranks["generation"].min()).sort("generation")
    ends = later.group_by("run", "rank", maintain_order=True).agg(
        grown=pl.col("rss_before_bytes").last() - pl.col("rss_before_bytes").first(), saves=pl.len()
    )
    enough = ends.filter(pl.col("saves") >= FEWEST_SAVES - 1).group_by("run").agg(pl.col("grown").max())
    known = ranks["rss_before_bytes"].drop_nulls().len()
    why = f"no run has {FEWEST_SAVES} checkpoints" if known and enough.is_empty() else reason
    return numbers("growth", "bytes", over(each, enough, "grown", why))


def _points(ranks: pl.DataFrame) -> list[list[float]]:
    """Per run: planned and extra bytes of the rank and checkpoint with most extra memory."""
    found = _most(ranks).sort("run").select("planned_bytes", "extra").rows()
    return [list(pair) for pair in found]


def _label(row: Row) -> str:
    point = f"{row['format']} {row['model']}, {row['nodes']} x {row['ranks_per_node']}"
    return f"{row['framework']} {row['strategy']}\n{point}"


def _ratio_drawing(rows: list[Row]) -> list[Drawing]:
    known = [row for row in rows if row["extra_over_planned_ratio"] is not None]
    if not known:
        return []
    shown = sorted(known, key=lambda row: -row["extra_over_planned_ratio"])[: charts.LARGEST]
    items = [interval(row, "extra_over_planned", "ratio") for row in shown]
    title = "Extra memory of a writer in copies of what it writes"
    left = f"; the {len(shown)} of {len(known)} rows with most" if len(shown) < len(known) else ""
    under = f"median over runs, interval or range; dashed: one more copy{left}"
    panel = charts.intervals(list(map(_label, shown)), items, "extra memory over planned bytes of the rank", "", 1.0)
    figure = charts.sheet(title, under, [panel], [0.42 * len(shown) + 0.6])
    return [Drawing(name="copies", caption=title, figure=figure)]


def _copies_drawing(rows: list[Row]) -> list[Drawing]:
    series: dict[str, charts.Series] = {}
    for row in rows:
        label = f"{row['framework']} {row['format']}"
        mine = series.setdefault(label, charts.Series(label=label, x=[], y=[]))
        mine.x.extend(planned / 1e6 for planned, _ in row["points"])
        mine.y.extend(extra / 1e6 for _, extra in row["points"])
    known = [each for each in series.values() if each.x]
    if not known:
        return []
    most = max(max(each.x) for each in known)
    known.append(charts.Series(label="one more copy", x=[], y=[], line=[(0.0, 0.0), (most, most)]))
    title = "Extra memory of the fullest rank over the bytes it was given to write"
    panel = charts.points(known, "MB planned", "MB extra")
    figure = charts.sheet(title, "one mark per run; dashed: one more copy of what is written", [panel], [4.5])
    return [Drawing(name="points", caption=title, figure=figure)]


if __name__ == "__main__":
    raise SystemExit(main(Memory()))
