"""What single ranks add to the checkpoints of the scaling question: who broke law 1, and whose share is larger.

Further columns of `saves`, from `rank_saves` alone. No pooling of runs, no verdicts.
"""

from __future__ import annotations

import msgspec
import polars as pl

from analysis.tables import Tables

KEY = ["run", "generation"]


def with_ranks(tables: Tables) -> Tables:
    """The tables with these columns in `saves`: off_rank and its bytes, and slowest_over_peers."""
    saves = tables.saves
    for part in (_off(tables.rank_saves), _shares(tables)):
        saves = saves.join(part, on=KEY, how="left", maintain_order="left")
    return msgspec.structs.replace(tables, saves=saves)


def _off(rank_saves: pl.DataFrame) -> pl.DataFrame:
    """Per checkpoint that breaks law 1, the rank outside the band whose trace and disk are most bytes apart."""
    broken = rank_saves.filter(~pl.col("coverage_ok"))
    apart = broken.with_columns(apart=(pl.col("traced_bytes") - pl.col("disk_bytes")).abs())
    worst = apart.sort("apart", descending=True, maintain_order=True).unique(KEY, keep="first", maintain_order=True)
    return worst.select(*KEY, off_rank="rank", off_traced_bytes="traced_bytes", off_disk_bytes="disk_bytes")


def _shares(tables: Tables) -> pl.DataFrame:
    """Planned bytes of the slowest rank over the median of the other writers'; null where it is the only one."""
    ranks = tables.rank_saves.filter(pl.col("planned_bytes") > 0).select(*KEY, "rank", "planned_bytes")
    both = ranks.join(tables.saves.select(*KEY, "slowest"), on=KEY)
    mine = pl.col("rank") == pl.col("slowest")
    others = pl.col("planned_bytes").filter(~mine).median()
    return both.group_by(KEY).agg(slowest_over_peers=pl.col("planned_bytes").filter(mine).first() / others)
