"""What a checkpoint costs a run, taken two ways: added up from phases, and against the control. One value per run.

From phases: the mean stall, and what the steps beside it take longer. Against the control: the
difference of the two windows over the checkpoints. Pure, in columns; no verdicts.
"""

from __future__ import annotations

from typing import Any

import polars as pl

from analysis.tables import Tables
from hpcckpt.records import CONTROL, TRAIN

Row = dict[str, Any]


def per_run(tables: Tables) -> dict[str, Row]:
    """run -> its numbers; null where something was not measured."""
    found = tables.runs.select(
        "run",
        "ranks",
        "window_train_s",
        "window_control_s",
        "window_steps",
        "window_saves",
        "interval_s",
        "overhead_reason",
        control_s=pl.col("overhead_per_checkpoint_s"),
        control_fraction=pl.col("overhead_fraction"),
    )
    for part in (_saves(tables.saves), _steps(tables.steps), _cpu(tables), _gpu(tables.rank_saves)):
        found = found.join(part, on="run", how="left")
    found = found.with_columns(
        slower_steps_s=pl.col("step_more_s") * pl.col("window_steps") / pl.col("window_saves"),
    ).with_columns(phases_s=pl.col("stall_s") + pl.col("slower_steps_s").fill_null(0.0))
    rest = pl.col("control_s") - pl.col("stall_s") - pl.col("slower_steps_s").fill_null(0.0)
    # All ranks wait out every stall, whoever works: that is what the job pays.
    job = pl.col("stall_s") * pl.col("window_saves")
    found = found.with_columns(
        apart_s=pl.col("control_s") - pl.col("stall_s"),
        rest_s=rest,
        before_more_s=pl.col("wait_before_s") - pl.col("stall_s"),
        phases_fraction=job / pl.col("window_control_s"),
        idle_share=pl.col("idle_rank_s") / (pl.col("ranks") * pl.col("stall_s")),
        cpu_ratio=pl.col("cpu_saving") / pl.col("cpu_training"),
    )
    return {row["run"]: row for row in found.iter_rows(named=True)}


def _saves(saves: pl.DataFrame) -> pl.DataFrame:
    """Means: an overhead is a sum over checkpoints, so it is the mean stall that it must equal."""
    names = ("stall_s", "idle_rank_s", "wait_before_s", "background_s", "release_s")
    longest = pl.col("stall_s").max().alias("stall_max_s")
    return saves.group_by("run").agg(*(pl.col(name).mean() for name in names), longest)


def _steps(steps: pl.DataFrame) -> pl.DataFrame:
    """By how much the usual step is longer in the leg with checkpoints."""
    train, control = (
        steps.filter(pl.col("leg") == leg).select("run", pl.col("step_median_s").alias(leg)) for leg in (TRAIN, CONTROL)
    )
    both = train.join(control, on="run", how="left")
    return both.select("run", step_s=pl.col(CONTROL), step_more_s=pl.col(TRAIN) - pl.col(CONTROL))


def _cpu(tables: Tables) -> pl.DataFrame:
    """Cores that a rank keeps busy: in the saves, those that were given bytes and the others, and in training."""
    saves = tables.rank_saves.filter(pl.col("cpu_s").is_not_null())
    busy, writes = pl.col("cpu_s").sum() / pl.col("stall_s").sum(), pl.col("planned_bytes") > 0
    per_run_ = saves.group_by("run").agg(
        cpu_saving=busy,
        cpu_writers=pl.col("cpu_s").filter(writes).sum() / pl.col("stall_s").filter(writes).sum(),
        cpu_others=pl.col("cpu_s").filter(~writes).sum() / pl.col("stall_s").filter(~writes).sum(),
    )
    windows = tables.windows.filter((pl.col("leg") == CONTROL) & pl.col("cpu_s").is_not_null())
    training = windows.group_by("run").agg(cpu_training=pl.col("cpu_s").sum() / pl.col("window_s").sum())
    joined = per_run_.join(training, on="run", how="full", coalesce=True)
    return joined.with_columns(pl.col("cpu_saving", "cpu_writers", "cpu_others").fill_nan(None))


def _gpu(rank_saves: pl.DataFrame) -> pl.DataFrame:
    return rank_saves.group_by("run").agg(
        gpu_saving=pl.col("gpu_busy").mean(), gpu_reason=pl.col("gpu_reason").drop_nulls().first()
    )


def serializing(tables: Tables) -> dict[str, Row]:
    """run -> seconds that the slowest rank serializes and writes, and logical over file bytes."""
    ratio = tables.files.filter(pl.col("file_bytes") > 0).group_by("run").agg(
        compression=pl.col("logical_bytes").sum() / pl.col("file_bytes").sum()
    )  # fmt: skip
    times = tables.saves.group_by("run").agg(
        pl.when(pl.col("serialize_s").null_count() == 0).then(pl.col("serialize_s").median()).alias("serialize_s"),
        pl.when(pl.col("write_s").null_count() == 0).then(pl.col("write_s").median()).alias("write_s"),
        split_reason=pl.col("split").filter(pl.col("split").str.starts_with("not measured")).first(),
    )
    return {row["run"]: row for row in times.join(ratio, on="run", how="left").iter_rows(named=True)}
