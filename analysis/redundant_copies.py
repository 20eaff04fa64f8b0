"""Which bytes of a checkpoint are there twice, and who holds them? `python -m analysis.redundant_copies`.

Rows are about a checkpoint as a whole, about each kind of state in it, and about each set of ranks
that hold the same contents. Verdicts: `analysis.redundant_claims`; counting: `analysis.contents`.
"""

from __future__ import annotations

import polars as pl

from analysis import charts
from analysis.cli import Answer, Question, main
from analysis.in_short import Measure
from analysis.pooling import Group, Pool, pool
from analysis.redundant_claims import findings, only_chainer
from analysis.redundant_show import views
from analysis.rows import Row, head, no_inventory, numbers, of, over, ratio
from analysis.tables import Tables
from analysis.view import Drawing, View, mega

SUMS = (
    "logical_bytes",
    "disk_bytes",
    "replica_redundant_bytes",
    "replica_redundant_disk_bytes",
    "content_redundant_bytes",
    "content_redundant_disk_bytes",
    "constant_bytes",
    "constant_redundant_bytes",
)
NO_DIGESTS = "no digests: they are not taken without barriers"
METHOD = (
    "Two numbers: replicas are names and slices that several files hold; copies are equal digests under any name, "
    "constants (all zero, all one) apart. Equal contents are looked for piece by piece, as they were written: what "
    "two ranks cut differently is not seen. In compressed files bytes on disk are shared out by logical bytes."
)
ONCE = "held once"


class RedundantCopies(Question):
    """Bytes that are there twice: how many, of which kind, on which ranks and nodes."""

    name = "redundant_copies"
    asks = "Which bytes of a checkpoint are written more than once, who holds the copies, and what would fewer save?"
    measures = (
        Measure(column="content_redundant_share", words="copies are", unit="share", about="checkpoint"),
        Measure(
            column="content_redundant_disk_bytes", words="on disk they take", unit="bytes", about="checkpoint"
        ),
    )

    def answer(self, tables: Tables, pool_commits: bool = False) -> Answer:
        rows = [
            row
            for group in pool(tables, pool_commits)
            for each in group.pools
            for row in [_checkpoint(tables, group, each), *_kinds(tables, group, each), *_holders(tables, group, each)]
        ]
        whole = [row for row in rows if row["about"] == "checkpoint"]
        return Answer(
            question=self.name,
            rows=rows,
            findings=[finding for row in whole for finding in findings(row)] + [only_chainer(whole)],
            left_out=list(tables.left_out.iter_rows(named=True)),
            notes=[METHOD],
        )

    def views(self, answer: Answer) -> list[View]:
        return views(answer.rows)

    def drawings(self, answer: Answer) -> list[Drawing]:
        return [*_bytes_drawing(answer.rows), *_map_drawing(answer.rows)]


def _checkpoint(tables: Tables, group: Group, each: Pool) -> Row:
    contents = of(tables.contents, each)
    known = [pl.when(pl.col(name).null_count() == 0).then(pl.col(name).sum()) for name in SUMS]
    sums = contents.group_by("run", "generation").agg(*known)
    row = head(group, each) | {"about": "checkpoint"}
    for name in SUMS:
        item = over(each, sums, name, _why(tables, each, contents, name))
        row |= numbers(name.removesuffix("_bytes"), "bytes", item)
    return row | _shares(row) | _savings(tables, each, row) | _spread(tables, each) | _kept(tables, each)


def _why(tables: Tables, each: Pool, contents: pl.DataFrame, name: str) -> str:
    """Why a sum over the contents is not known, if it is not."""
    if contents.is_empty():
        return no_inventory(tables, each)
    sizes = of(tables.saves, each)["bytes_reason"].drop_nulls()
    return sizes[0] if name.endswith("disk_bytes") and sizes.len() else NO_DIGESTS


def _shares(row: Row) -> Row:
    logical = row["logical_bytes"]
    names = ("replica_redundant", "content_redundant")
    return {f"{name}_share": ratio(row[f"{name}_bytes"], logical) for name in names}


def _savings(tables: Tables, each: Pool, row: Row) -> Row:
    """What is left with each content written once, and what the fullest rank would write of it if all shared it."""
    files = of(tables.files, each).group_by("run", "generation", "rank").agg(pl.col("file_bytes").sum())
    fullest = files.group_by("run", "generation").agg(pl.col("file_bytes").max())
    disk, copies = row["disk_bytes"], row["content_redundant_disk_bytes"]
    once = None if disk is None or copies is None else disk - copies
    return {
        "once_disk_bytes": once,
        "fullest_rank_bytes": over(each, fullest, "file_bytes", "no files").value,
        "sharded_rank_bytes": ratio(once, each.ranks),
    }


def _spread(tables: Tables, each: Pool) -> Row:
    """On how many nodes files are written, and which share of the copies lies on more than one node."""
    nodes = of(tables.files, each).group_by("run", "generation").agg(pl.col("node").n_unique())
    held = of(tables.holdings, each).filter(~pl.col("constant"))
    copies = pl.col("bytes_each") * (pl.col("copies") - 1)
    found = held.select(copies.sum().alias("all"), copies.filter(pl.col("nodes") > 1).sum().alias("across")).row(0)
    return {
        "writer_nodes": over(each, nodes, "node", "no files").value,
        "across_nodes_share": ratio(found[1], found[0]),
    }


def _kept(tables: Tables, each: Pool) -> Row:
    runs = of(tables.runs, each)
    most = {run["generations_most"] for run in each.runs}
    reason = next((run["kept_reason"] for run in each.runs if run["kept_reason"]), "no trusted run")
    return {
        "generations_kept": over(each, runs, "generations_kept", reason).value,
        "generations_most": most.pop() if len(most) == 1 else None,
        **numbers("kept", "bytes", over(each, runs, "kept_bytes", reason)),
        "kept_reason": reason if any(run["kept_bytes"] is None for run in each.runs) or not each.runs else None,
    }


def _kinds(tables: Tables, group: Group, each: Pool) -> list[Row]:
    contents = of(tables.contents, each)
    found = []
    for kind in contents["kind"].unique(maintain_order=True):
        part = contents.filter(pl.col("kind") == kind)
        values = {name: over(each, part, name, NO_DIGESTS).value for name in SUMS}
        found.append(head(group, each) | {"about": "kind", "kind": kind, **values})
    return found


def _holders(tables: Tables, group: Group, each: Pool) -> list[Row]:
    """Sets of ranks with the same contents in the last checkpoint of the first run; single holders make one row."""
    held = of(tables.holdings, each).filter(pl.col("run") == (each.evidence or [""])[0])
    last = held.filter(pl.col("generation") == pl.col("generation").max())
    alone = ~pl.col("holders").str.contains(",")
    grouped = (
        last.with_columns(holders=pl.when(alone).then(pl.lit(ONCE)).otherwise("holders"), one=pl.col("holders"))
        .group_by("holders", "constant", maintain_order=True)
        .agg(
            pl.col("one").unique(),
            kinds=pl.col("kind").sort_by("bytes_each", descending=True).unique(maintain_order=True),
            nodes=pl.col("nodes").max(),
            tensors=pl.col("tensors").sum(),
            bytes_each=pl.col("bytes_each").sum(),
            copies_bytes=(pl.col("bytes_each") * (pl.col("copies") - 1)).sum(),
        )
        .sort("bytes_each", descending=True)
    )
    return [head(group, each) | _holder_row(row) for row in grouped.iter_rows(named=True)]


def _holder_row(found: Row) -> Row:
    ranks = {int(rank) for text in found.pop("one") for rank in text.split(",")}
    return {"about": "holders", **found, "ranks_holding": sorted(ranks)}


def _label(row: Row) -> str:
    point = f"{row['format']} {row['model']}, {row['nodes']} x {row['ranks_per_node']}"
    return f"{row['framework']} {row['strategy']}\n{point}"


def _bytes_drawing(rows: list[Row]) -> list[Drawing]:
    known = [row for row in rows if row["about"] == "checkpoint" and row["once_disk_bytes"] is not None]
    if not known:
        return []
    shown = sorted(known, key=lambda row: -row["content_redundant_disk_bytes"])[: charts.LARGEST]
    parts = {
        "kept once": [row["once_disk_bytes"] / 1e6 for row in shown],
        "copies": [row["content_redundant_disk_bytes"] / 1e6 for row in shown],
    }
    title = "Bytes of a checkpoint on disk: what is needed once, and copies of it"
    left = f"; the {len(shown)} of {len(known)} rows with most copies" if len(shown) < len(known) else ""
    under = "median over runs; copies by content" + left
    panel = charts.bars([_label(row) for row in shown], parts, "MB on disk per checkpoint")
    figure = charts.sheet(title, under, [panel], [0.42 * len(shown) + 0.6])
    return [Drawing(name="bytes", caption=title, figure=figure)]


def _map_drawing(rows: list[Row]) -> list[Drawing]:
    """For each row with several ranks, which ranks hold which contents; those with most copies first."""
    sets = [row for row in rows if row["about"] == "holders" and row["ranks"] > 1 and not row["constant"]]
    titles = dict.fromkeys(row["group"] for row in sets)
    groups = {title: [row for row in sets if row["group"] == title] for title in titles}
    order = sorted(groups, key=lambda title: -sum(row["copies_bytes"] for row in groups[title]))[:8]
    if not order:
        return []
    panels = [_map([row for row in groups[title] if row["bytes_each"] > 0][:6]) for title in order]
    heights = [0.34 * min(len(groups[title]), 6) + 0.8 for title in order]
    title = "Which ranks hold the same contents"
    left = f"; the {len(order)} of {len(groups)} rows with most copies" if len(order) < len(groups) else ""
    under = "last checkpoint of the first run; orange: held by several ranks, blue: held once; no constants" + left
    return [Drawing(name="holders", caption=title, figure=charts.sheet(title, under, panels, heights))]


def _map(sets: list[Row]) -> charts.Panel:
    labels = [f"{mega(row['bytes_each'])} MB\n{', '.join(row['kinds'][:3])}" for row in sets]
    several, once = charts.KIND_COLOURS["copies"], charts.KIND_COLOURS["kept once"]
    colours = [once if row["holders"] == ONCE else several for row in sets]
    title = _label(sets[0]).replace("\n", ", ")
    return charts.holders(labels, [set(row["ranks_holding"]) for row in sets], sets[0]["ranks"], colours, title)


if __name__ == "__main__":
    raise SystemExit(main(RedundantCopies()))
