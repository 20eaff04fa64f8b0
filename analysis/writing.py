"""Who wrote each checkpoint, and how fast: shares, seconds and rates per checkpoint, from the tables alone.

Pure, and in columns: there may be a thousand ranks. No verdicts, no words and no pooling of runs here.
"""

from __future__ import annotations

import msgspec
import polars as pl

from analysis.tables import Tables

KEY = ["run", "generation"]


def with_writing(tables: Tables) -> Tables:
    """The tables, with what `per_checkpoint` says as further columns of `saves`."""
    saves = tables.saves.join(per_checkpoint(tables), on=KEY, how="left", maintain_order="left")
    return msgspec.structs.replace(tables, saves=saves)


def per_checkpoint(tables: Tables) -> pl.DataFrame:
    """One row per checkpoint; a number is null where the trace or its times are missing.

    `put` is a writer's write calls and its fsync: what the file system takes. Rates are null for
    checkpoints that are written behind the stall, where the calls inside it are not all.
    """
    saves = tables.saves.select(*KEY, "writing_s", "background_s", "stall_s", "others_idle_rank_s")
    ranks, seen = _ranks(tables.rank_saves), _writers(tables)
    found = saves.join(ranks, on=KEY, how="left").join(seen, on=KEY, how="left")
    behind = pl.col("background_s") > 0
    busy = pl.max_horizontal("writing_s", "put_max_s")
    rates = found.with_columns(
        serial_share=pl.col("serial_s") / pl.col("stall_s"),
        writing_share=pl.col("writing_s") / pl.col("stall_s"),
        idle_share=pl.col("others_idle_rank_s") / ((pl.col("ranks") - 1) * pl.col("stall_s")),
        aggregate_bytes_per_s=pl.when(~behind & (busy > 0) & pl.col("put_max_s").is_not_null()).then(
            pl.col("written_bytes") / busy
        ),
        per_writer_bytes_per_s=pl.when(~behind).then(pl.col("per_writer_bytes_per_s")),
        slow_ratio=pl.when(~behind).then(pl.col("slow_ratio")),
    ).with_columns(pl.when(pl.col("ranks") > 1).then("idle_share").alias("idle_share"))
    return rates.drop("writing_s", "background_s", "stall_s", "others_idle_rank_s")


def _ranks(rank_saves: pl.DataFrame) -> pl.DataFrame:
    """How long one rank alone worked, and how long one worked on when the others had gone on."""
    own = pl.col("own_s").sort(descending=True)
    end = pl.col("begin_ns") / 1e9 + pl.col("stall_s")
    behind = (pl.col("last_write_s") - pl.col("stall_s")).clip(lower_bound=0)
    on = rank_saves.with_columns(
        # Only differences of these are used, and seconds since boot would cost them digits.
        end=end - end.min().over(KEY),
        done=end - end.min().over(KEY) - pl.col("wait_after_s"),
        wrote_on_s=pl.when(pl.col("background_s") == 0).then(behind),
    )
    last = pl.col("done").fill_null(-1).arg_max()
    return on.group_by(KEY, maintain_order=True).agg(
        ranks=pl.len(),
        serial_s=pl.when(pl.len() > 1).then(own.first() - own.slice(1, 1).first()).otherwise(own.first()),
        own_max_s=own.first(),
        wrote_on_s=pl.col("wrote_on_s").max(),
        wrote_on_rank=pl.col("rank").get(pl.col("wrote_on_s").fill_null(-1).arg_max()),
        held_s=(pl.col("done").max() - pl.col("end").min()).clip(lower_bound=0),
        held_rank=pl.col("rank").get(last),
        fsync_calls=pl.when(pl.col("fsync_calls").null_count() == 0).then(pl.col("fsync_calls").sum()),
    )


def _writers(tables: Tables) -> pl.DataFrame:
    """Shares, seconds and rates of the ranks that were seen to write."""
    more = tables.rank_saves.select(*KEY, "rank", "sync_s", "write_sync_s")
    all_ = tables.writers.join(more, on=[*KEY, "rank"], how="left")
    unseen = all_.filter(pl.col("traced_bytes").is_null()).select(KEY).unique()
    sync = pl.coalesce("sync_s", (pl.col("write_sync_s") - pl.col("write_s")).clip(lower_bound=0))
    writers = (
        all_.filter(pl.col("traced_bytes") > 0)
        .join(unseen, on=KEY, how="anti")
        .with_columns(fsync_s=sync)
        .with_columns(put_s=pl.col("write_s") + pl.col("fsync_s"))
        .with_columns(pace=pl.when(_full()).then(pl.col("put_s") / pl.col("traced_bytes")))
    )
    return _per_rank(writers).join(_per_node(writers), on=KEY, how="left")


def _full() -> pl.Expr:
    """Whether a writer has a share worth the name: the pace of a few bytes is that of opening a file."""
    return pl.col("traced_bytes") >= 0.5 * pl.col("traced_bytes").mean().over(KEY)


def _per_rank(writers: pl.DataFrame) -> pl.DataFrame:
    top, slow = pl.col("traced_bytes").arg_max(), pl.col("pace").fill_null(-1).arg_max()
    size, known = pl.col("traced_bytes"), pl.col("put_s").null_count() == 0
    put = pl.col("put_s").sum()
    return writers.group_by(KEY, maintain_order=True).agg(
        written_bytes=size.sum(),
        top_rank=pl.col("rank").get(top),
        top_share=size.max() / size.sum(),
        top_write_share=pl.when(pl.col("write_s").sum() > 0).then(pl.col("write_s").max() / pl.col("write_s").sum()),
        largest_over_mean=size.max() / size.mean(),
        put_max_s=pl.when(known).then(pl.col("put_s").max()),
        per_writer_bytes_per_s=pl.when(known & (put > 0)).then(size.sum() / put),
        slow_rank=pl.col("rank").get(slow),
        slow_ratio=pl.when(known & (pl.col("pace").median() > 0)).then(
            pl.col("pace").max() / pl.col("pace").median()
        ),
        slow_put_s=pl.col("put_s").get(slow),
        slow_fsync_s=pl.col("fsync_s").get(slow),
        usual_put_s=pl.col("put_s").median(),
        fsync_s=pl.col("fsync_s").max(),
        fsync_rank=pl.col("rank").get(pl.col("fsync_s").fill_null(-1).arg_max()),
    )


def _per_node(writers: pl.DataFrame) -> pl.DataFrame:
    nodes = writers.group_by(*KEY, "node", maintain_order=True).agg(bytes=pl.col("traced_bytes").sum())
    return nodes.group_by(KEY, maintain_order=True).agg(
        writing_nodes=pl.len(),
        top_node=pl.col("node").get(pl.col("bytes").arg_max()),
        top_node_share=pl.col("bytes").max() / pl.col("bytes").sum(),
    )


def shared_paths(files: pl.DataFrame) -> pl.DataFrame:
    """Files of a checkpoint that several ranks list as theirs: run, generation, file, ranks."""
    found = files.group_by("run", "generation", "file", maintain_order=True).agg(
        ranks=pl.col("rank").n_unique(), nodes=pl.col("node").n_unique()
    )
    return found.filter(pl.col("ranks") > 1)
