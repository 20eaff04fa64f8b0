"""What one run says of its strategy: stall, bytes, files, memory, reads. One value per run: the run is the unit.

Pure, and in columns. Which runs are compared, and what follows, `analysis.remedies` says.
"""

from __future__ import annotations

from typing import Any

import polars as pl

from analysis.rows import fullest_extra
from analysis.tables import Tables

Row = dict[str, Any]


def per_run(tables: Tables) -> dict[str, Row]:
    """run -> medians over its checkpoints, and of its reads; null where nothing was measured."""
    found = tables.runs.select(
        "run", "campaign", "repeat", "overhead_per_checkpoint_s", "interval_s", "overhead_reason"
    )
    for part in (_saves(tables.saves), _files(tables.files), _memory(tables.rank_saves), _reads(tables.reads)):
        found = found.join(part, on="run", how="left")
    return {row["run"]: row for row in found.iter_rows(named=True)}


def _saves(saves: pl.DataFrame) -> pl.DataFrame:
    names = ("stall_s", "background_s", "checkpoint_bytes")
    return saves.group_by("run").agg(
        *(pl.col(name).median() for name in names), bytes_reason=pl.col("bytes_reason").drop_nulls().first()
    )


def _files(files: pl.DataFrame) -> pl.DataFrame:
    counts = files.group_by("run", "generation").agg(files=pl.col("file").n_unique())
    return counts.group_by("run").agg(pl.col("files").median())


def _memory(rank_saves: pl.DataFrame) -> pl.DataFrame:
    """What the fullest save adds to the resident memory of its fullest rank, as the question on memory has it."""
    reasons = rank_saves.group_by("run").agg(memory_reason=pl.col("rss_reason").drop_nulls().first())
    return fullest_extra(rank_saves).rename({"extra": "memory_bytes"}).join(reasons, on="run")


def _reads(reads: pl.DataFrame) -> pl.DataFrame:
    """A generation is read when its slowest rank has read its part; a rank's parts follow each other."""
    ranks = reads.group_by("run", "generation", "rank").agg(
        read_s=pl.when(pl.col("read_s").null_count() < pl.len()).then(pl.col("read_s").sum()),
        cached=pl.col("cached").mean(),
        read_reason=pl.col("reason").drop_nulls().first(),
    )
    each = ranks.group_by("run", "generation").agg(
        pl.col("read_s").max(), pl.col("cached").mean(), pl.col("read_reason").drop_nulls().first()
    )
    return each.group_by("run").agg(
        pl.col("read_s").median(), pl.col("cached").median(), pl.col("read_reason").drop_nulls().first()
    )
