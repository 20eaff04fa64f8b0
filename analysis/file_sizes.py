"""How large are the files, and what fills them? `python -m analysis.file_sizes`.

Rows are about a checkpoint's files as a whole, about each kind of state in them, and about tensors
that drag a larger storage along. Verdicts: `analysis.file_size_claims`; counting: `analysis.contents`.
"""

from __future__ import annotations

import polars as pl

from analysis import charts
from analysis.cli import Answer, Question, main
from analysis.file_size_claims import SMALL_FILE_BYTES, across, findings
from analysis.file_size_show import views
from analysis.in_short import Measure
from analysis.pooling import Group, Pool, pool, writers
from analysis.rows import Row, head, interval, no_inventory, numbers, of, over, over_saves, ratio
from analysis.tables import Tables
from analysis.view import Drawing, View

KINDS = ("parameter", "optimizer", "buffer", "rng", "data_position", "other", "container")
METHOD = (
    "Kinds hold their logical bytes, or their share of a file that is smaller than its contents; the container is what "
    "a file holds beyond them. Size over contents below 1 is compression. First and last checkpoint: of the same run."
)


class FileSizes(Question):
    """Bytes by framework, model, format and kind; write calls; small files; views that drag storages."""

    name = "file_sizes"
    asks = "How large are the files of each framework, model and format, what fills them, and how are they written?"
    measures = (
        Measure(column="checkpoint_bytes", words="a checkpoint takes", unit="bytes", about="size"),
        Measure(column="size_over_contents", words="its files over its contents are", unit="ratio", about="size"),
        Measure(column="write_calls", words="write calls are", unit="count", about="size"),
    )

    def answer(self, tables: Tables, pool_commits: bool = False) -> Answer:
        pairs = [(group, each) for group in pool(tables, pool_commits) for each in group.pools]
        whole = [_size(tables, group, each) for group, each in pairs]
        kinds = [row for group, each in pairs for row in _kinds(tables, group, each)]
        views_ = [row for group, each in pairs for row in _draggers(tables, group, each)]
        return Answer(
            question=self.name,
            rows=[*whole, *kinds, *views_],
            findings=[finding for row in whole for finding in findings(row, views_)] + across(whole),
            left_out=list(tables.left_out.iter_rows(named=True)),
            notes=[METHOD],
        )

    def views(self, answer: Answer) -> list[View]:
        return views(answer.rows)

    def drawings(self, answer: Answer) -> list[Drawing]:
        return [*_kind_drawing(answer.rows), *_progress_drawing(answer.rows)]


def _size(tables: Tables, group: Group, each: Pool) -> Row:
    contents, why = of(tables.contents, each), no_inventory(tables, each)
    sums = contents.group_by("run", "generation").agg(pl.col("logical_bytes", "unique_name_bytes").sum())
    row = head(group, each) | {"about": "size"} | writers(each)
    row |= numbers("checkpoint", "bytes", over_saves(tables, each, "checkpoint_bytes"))
    row |= numbers("logical", "bytes", over(each, sums, "logical_bytes", why))
    row["once_bytes"] = over(each, sums, "unique_name_bytes", why).value
    row["parameter_bytes"] = over(each, contents.filter(pl.col("kind") == "parameter"), "logical_bytes", why).value
    row["size_over_contents"] = ratio(row["checkpoint_bytes"], row["logical_bytes"])
    row["bytes_per_parameter"] = ratio(row["checkpoint_bytes"], row["parameters"])
    return row | _files(tables, each, why) | _calls(tables, each) | _progress(each)


def _files(tables: Tables, each: Pool, why: str) -> Row:
    files = of(tables.files, each)
    small = (pl.col("file_bytes") < SMALL_FILE_BYTES).sum()
    columns = {"files": pl.len(), "small_files": small, "largest_file_bytes": pl.col("file_bytes").max()}
    per_save = files.group_by("run", "generation").agg(**columns)
    found = {name: over(each, per_save, name, why).value for name in columns}
    storages = int(files["storages_known"].sum())
    return {**found, "storages_known": storages, "files_reason": why if files.is_empty() else None}


def _calls(tables: Tables, each: Pool) -> Row:
    """Write calls of all ranks per checkpoint, and bytes per call."""
    ranks = of(tables.rank_saves, each)
    writing = ranks.filter(pl.col("traced_bytes").is_null() | (pl.col("traced_bytes") > 0))
    known = pl.col("write_calls").null_count() == 0
    calls = pl.when(known).then(pl.col("write_calls").sum())
    per_save = writing.group_by("run", "generation").agg(calls=calls, traced=pl.col("traced_bytes").sum())
    unknown = writing.filter(pl.col("write_calls").is_null())
    reasons = [*unknown["trace_reason"].drop_nulls(), *unknown["split"].drop_nulls()]
    reason = next((text.removeprefix("not measured: ") for text in reasons), "nothing was seen to be written")
    found = over(each, per_save, "calls", reason)
    mean = over(each, per_save, pl.col("traced") / pl.col("calls"), reason)
    return {"write_calls": found.value, "bytes_per_call": mean.value, "write_calls_reason": found.reason}


def _progress(each: Pool) -> Row:
    """Last over first checkpoint of the same run, over runs."""
    pairs = []
    for run, saves in each.saves.items():
        sizes = [save["checkpoint_bytes"] for save in sorted(saves, key=lambda save: save["generation"])]
        if len(sizes) > 1 and sizes[0] and sizes[-1] is not None:
            pairs.append({"run": run, "first": sizes[0], "last": sizes[-1]})
    frame = pl.DataFrame(pairs, schema={"run": pl.String(), "first": pl.Int64(), "last": pl.Int64()})
    reason = "no run has the sizes of two checkpoints"
    ends = {f"{end}_bytes": over(each, frame, end, reason).value for end in ("first", "last")}
    return ends | numbers("last_over_first", "ratio", over(each, frame, pl.col("last") / pl.col("first"), reason))


def _kinds(tables: Tables, group: Group, each: Pool) -> list[Row]:
    """Bytes on disk by kind, and the container's: what the files hold beyond their contents."""
    contents = of(tables.contents, each)
    whole = contents.group_by("run", "generation").agg(
        all_logical=pl.col("logical_bytes").sum(),
        disk=pl.when(pl.col("disk_bytes").null_count() == 0).then(pl.col("disk_bytes").sum()),
    )
    shrunk = pl.min_horizontal(pl.lit(1.0), pl.col("disk") / pl.col("all_logical"))
    parts = contents.join(whole, on=["run", "generation"]).with_columns(share=pl.col("logical_bytes") * shrunk)
    found = []
    for kind in contents["kind"].unique(maintain_order=True):
        part = parts.filter(pl.col("kind") == kind)
        columns = {"tensors": "tensors", "logical_bytes": "logical_bytes", "kind_disk_bytes": "share"}
        values = {name: over(each, part, column, "sizes unknown").value for name, column in columns.items()}
        found.append(head(group, each) | {"about": "kind", "kind": kind, **values})
    beyond = over(each, whole, (pl.col("disk") - pl.col("all_logical")).clip(0), "sizes unknown").value
    if beyond:
        own = next((row for row in found if row["kind"] == "container"), None)
        blank = {"tensors": 0.0, "logical_bytes": 0.0, "kind_disk_bytes": 0.0}
        row = own or head(group, each) | {"about": "kind", "kind": "container", **blank}
        row["kind_disk_bytes"] = (row["kind_disk_bytes"] or 0.0) + beyond
        found += [] if own else [row]
    return sorted(found, key=lambda row: KINDS.index(row["kind"]) if row["kind"] in KINDS else len(KINDS))


def _draggers(tables: Tables, group: Group, each: Pool) -> list[Row]:
    """Tensors that drag most, each once, from the first run and checkpoint where they do."""
    found = of(tables.draggers, each).unique("tensor", keep="first", maintain_order=True)
    ordered = found.sort("dragged_bytes", descending=True)
    return [head(group, each) | {"about": "dragger", **row} for row in ordered.iter_rows(named=True)]


def label(row: Row) -> str:
    """A row's name in a chart."""
    point = f"{row['model']}, {row['nodes']} x {row['ranks_per_node']}"
    return f"{row['framework']} {row['strategy']}\n{row['format']} {point}"


def _kind_drawing(rows: list[Row]) -> list[Drawing]:
    kinds = [row for row in rows if row["about"] == "kind" and row["kind_disk_bytes"] is not None]
    sizes = {row["group"]: row for row in rows if row["about"] == "size" and row["checkpoint_bytes"] is not None}
    order = [group for group in sizes if any(row["group"] == group for row in kinds)]
    shown = sorted(order, key=lambda group: (sizes[group]["model"], sizes[group]["checkpoint_bytes"]))[: charts.LARGEST]
    if not shown:
        return []
    cells = {(row["group"], row["kind"]): row["kind_disk_bytes"] / 1e6 for row in kinds}
    parts = {kind: [cells.get((group, kind), 0.0) for group in shown] for kind in KINDS}
    title = "What fills a checkpoint's files, by kind of state"
    left = f"; {len(shown)} of {len(order)} rows" if len(shown) < len(order) else ""
    panel = charts.bars([label(sizes[group]) for group in shown], parts, "MB on disk per checkpoint")
    figure = charts.sheet(title, f"median over runs{left}", [panel], [0.42 * len(shown) + 0.6])
    return [Drawing(name="kinds", caption=title, figure=figure)]


def _progress_drawing(rows: list[Row]) -> list[Drawing]:
    known = [row for row in rows if row["about"] == "size" and row["last_over_first_ratio"] is not None]
    if not known:
        return []
    shown = sorted(known, key=lambda row: -abs(row["last_over_first_ratio"] - 1))[: charts.LARGEST]
    items = [interval(row, "last_over_first", "ratio") for row in shown]
    title = "Does the size change as training goes on? Last over first checkpoint of the same run"
    panel = charts.intervals(list(map(label, shown)), items, "last over first, bytes", "", 1.0)
    left = f"; the {len(shown)} of {len(known)} rows that change most" if len(shown) < len(known) else ""
    under = f"median over runs, interval or range{left}"
    figure = charts.sheet(title, under, [panel], [0.42 * len(shown) + 0.6])
    return [Drawing(name="progress", caption=title, figure=figure)]


if __name__ == "__main__":
    raise SystemExit(main(FileSizes()))
