"""The tables that every question reads: their columns, types and meanings. Defined once, here.

Units are in the names (`_s`, `_ns`, `_bytes`), nothing is formatted. A null number has its reason
in the column named beside it in its doc. `run` is the key that joins them: CAMPAIGN/RUN_ID.
No reading and no arithmetic here.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

TEXT, INT, REAL, FLAG = pl.String(), pl.Int64(), pl.Float64(), pl.Boolean()
TEXTS = pl.List(pl.String())

PHASE_COLUMNS: dict[str, str] = {
    "gather": "gather_s",
    "serialize": "serialize_s",
    "serialize+write": "serialize_write_s",
    "write": "write_s",
    "write+sync": "write_sync_s",
    "sync": "sync_s",
    "commit": "commit_s",
    "wait_inside": "wait_inside_s",
    "wait_after": "wait_after_s",
}
"""Phase of a stall -> its column; `serialize_s`, `write_s` and `sync_s` are null in a composite."""

_PHASES = {
    "gather_s": (REAL, "device to host, collectives to the writer"),
    "serialize_s": (REAL, "objects to bytes; the derived remainder where `split` is traced"),
    "serialize_write_s": (REAL, "what stayed composite: 0 where it was split"),
    "write_s": (REAL, "union of the write calls"),
    "write_sync_s": (REAL, "write and fsync where they cannot be seen apart"),
    "sync_s": (REAL, "fsync"),
    "commit_s": (REAL, "rename, marker, metadata"),
    "wait_inside_s": (REAL, "collectives inside the mechanism"),
    "wait_after_s": (REAL, "at the barrier behind the save"),
    "unattributed_s": (REAL, "stall less all phases, of the same rank"),
    "split": (TEXT, "recorded, traced (write from the I/O trace), or `not measured: reason`"),
}

RUNS = {
    "run": (TEXT, "CAMPAIGN/RUN_ID"),
    "run_id": (TEXT, "identity of the measurement"),
    "campaign": (TEXT, "submission it belongs to"),
    "path": (TEXT, "run directory"),
    "experiment": (TEXT, "experiment file"),
    "site": (TEXT, "site name"),
    "framework": (TEXT, "axis"),
    "model": (TEXT, "axis"),
    "strategy": (TEXT, "axis"),
    "format": (TEXT, "axis"),
    "nodes": (INT, "axis"),
    "ranks_per_node": (INT, "axis"),
    "ranks": (INT, "nodes x ranks per node"),
    "interval_steps": (INT, "axis: steps between two checkpoints"),
    "durable": (FLAG, "axis: fsynced and committed before the save returned"),
    "repeat": (INT, "1-based"),
    "faults": (TEXT, "planted faults in words; empty for none"),
    "commit": (TEXT, "git commit of the code that ran"),
    "conditions": (TEXT, "digest of settings and identity: equal means measured alike"),
    "virtual_nodes": (FLAG, "one machine plays all nodes"),
    "ranks_per_core": (REAL, "ranks of the fullest host over its cores"),
    "cores": (INT, "cores of that host"),
    "tracer": (TEXT, "I/O tracer"),
    "barrier": (TEXT, "poll, spin or none"),
    "data": (TEXT, "data set that trained"),
    "parameters": (INT, "of the model"),
    "checkpoints": (INT, "generations saved in the train leg"),
    "window_train_s": (
        REAL,
        "longest window over ranks less pauses, with checkpoints; reason: overhead_reason",
    ),
    "window_control_s": (REAL, "the same without checkpoints; reason: overhead_reason"),
    "window_steps": (INT, "steps in the window"),
    "window_saves": (INT, "checkpoints in the window"),
    "overhead_s": (REAL, "train window less control window; reason: overhead_reason"),
    "overhead_per_checkpoint_s": (REAL, "overhead over checkpoints in the window; reason: overhead_reason"),
    "overhead_fraction": (REAL, "overhead over control window; reason: overhead_reason"),
    "interval_s": (REAL, "control's seconds for `interval_steps` steps; reason: overhead_reason"),
    "overhead_reason": (TEXT, "why there is no overhead"),
    "deferred_s": (REAL, "drain after the last save, longest host; reason: deferred_reason"),
    "deferred_reason": (TEXT, "why there is none, or that the limit was reached first"),
    "durable_reason": (
        TEXT,
        "why durable numbers are not measured here; null where they are, or for buffered runs",
    ),
    "started": (REAL, "Unix time, by the driver"),
    "ended": (REAL, "Unix time, by the driver"),
    "trusted": (FLAG, "false: a law is broken that makes its numbers meaningless; not pooled"),
    "flags": (TEXTS, "what is to be known before its numbers are believed"),
}

SAVES = {
    "run": (TEXT, "CAMPAIGN/RUN_ID"),
    "generation": (INT, "checkpoint of the whole job"),
    "step": (INT, "training step behind which it was taken"),
    "stall_s": (REAL, "maximum over ranks: exit of the barrier before to exit of the barrier behind"),
    "wait_before_s": (REAL, "longest wait for the last rank to arrive; in no stall"),
    "last_to_arrive": (
        INT,
        "rank that came last to the barrier before, on the common clock; reason: clock_reason",
    ),
    "late_by_s": (REAL, "how long after the last but one it came; reason: clock_reason"),
    "clock_error_s": (REAL, "largest error of the clocks' offsets"),
    "clock_reason": (TEXT, "why the clocks cannot be compared"),
    "slowest": (INT, "rank with the most own work: stall less the waiting for others"),
    "slower_by_s": (
        REAL,
        "its own work less that of the next of its peers (writers among writers); null: no peer",
    ),
    **_PHASES,
    "release_s": (REAL, "stall less the slowest rank's own: another rank began earlier or was let go later"),
    "others_wait_inside_s": (REAL, "mean over the other ranks; null: one rank"),
    "others_wait_after_s": (REAL, "mean over the other ranks; null: one rank"),
    "idle_rank_s": (REAL, "sum over ranks of wait_inside and wait_after"),
    "others_idle_rank_s": (REAL, "the same over all ranks but the one that was given most bytes"),
    "background_s": (REAL, "longest background work, apart from the stall"),
    "unattributed_max_s": (REAL, "largest over ranks"),
    "unattributed_ok": (FLAG, "law 2: at most 1 % of the stall or 1 ms on every rank"),
    "writers_seen": (INT, "ranks with traced bytes in the generation's directory; reason: trace_reason"),
    "writers_declared": (INT, "ranks that the plan gave bytes to"),
    "trace_reason": (TEXT, "why the I/O trace says nothing of the whole generation"),
    "checkpoint_bytes": (INT, "all files on disk after commit; reason: bytes_reason"),
    "bytes_reason": (TEXT, "why there are no bytes"),
    "effective_gb_per_s": (REAL, "checkpoint bytes over stall, 1 GB = 10^9 bytes; reason: bytes_reason"),
    "coverage_min": (REAL, "least over writers, traced over on disk; reason: coverage_reason"),
    "coverage_max": (REAL, "largest over writers; reason: coverage_reason"),
    "coverage_ok": (
        FLAG,
        "law 1: within the format's expected interval on every rank; reason: coverage_reason",
    ),
    "coverage_reason": (TEXT, "why there is no coverage"),
    "state_bytes": (INT, "logical state of the whole job"),
}

RANK_SAVES = {
    "run": (TEXT, "CAMPAIGN/RUN_ID"),
    "generation": (INT, "checkpoint"),
    "rank": (INT, "rank"),
    "node": (TEXT, "node as the tables name it"),
    "arrive_ns": (INT, "on rank 0's clock; null where clocks cannot be compared"),
    "begin_ns": (INT, "on rank 0's clock; null where clocks cannot be compared"),
    "wait_before_s": (REAL, "arrival to begin"),
    "stall_s": (REAL, "begin to end"),
    "own_s": (REAL, "begin to done less wait_inside"),
    **_PHASES,
    "background_s": (REAL, "apart from the stall"),
    "planned_bytes": (INT, "given by the plan"),
    "traced_bytes": (INT, "in the generation's directory, by the I/O trace; reason: trace_reason"),
    "trace_reason": (TEXT, "why there are none"),
    "disk_bytes": (INT, "files of this rank after commit; reason: bytes_reason"),
    "bytes_reason": (TEXT, "why there are none"),
    "coverage": (REAL, "traced over on disk; reason: coverage_reason"),
    "coverage_reason": (TEXT, "why there is none"),
    "coverage_ok": (FLAG, "within the expected interval"),
    "write_calls": (INT, "traced write calls; reason: trace_reason or split"),
    "first_write_s": (REAL, "first call's begin after the stall's begin; null without calls with times"),
    "last_write_s": (REAL, "last call's end after the stall's begin; null without calls with times"),
    "rss_before_bytes": (INT, "resident before; reason: rss_reason"),
    "rss_peak_bytes": (INT, "resident peak during; reason: rss_reason"),
    "rss_reason": (TEXT, "why there is none"),
    "write_chars_bytes": (INT, "wchar over the save; reason: io_reason"),
    "storage_bytes": (INT, "write_bytes over the save; reason: io_reason"),
    "io_reason": (TEXT, "why there are none"),
}

WINDOWS = {
    "run": (TEXT, "CAMPAIGN/RUN_ID"),
    "leg": (TEXT, "train or control"),
    "rank": (INT, "rank"),
    "window_s": (REAL, "barrier after warm-up to barrier after the last step"),
    "paused_s": (REAL, "recorded untimed pauses in it"),
    "steps": (INT, "steps in it"),
    "saves": (INT, "checkpoints in it"),
}

WRITERS = {
    "run": (TEXT, "CAMPAIGN/RUN_ID"),
    "generation": (INT, "checkpoint"),
    "rank": (INT, "rank that was given bytes, or was seen to write some"),
    "node": (TEXT, "its node"),
    "planned_bytes": (INT, "given by the plan"),
    "traced_bytes": (INT, "by the I/O trace; reason: trace_reason"),
    "disk_bytes": (INT, "files after commit; null: no inventory"),
    "trace_reason": (TEXT, "why there are none"),
    "write_s": (REAL, "union of its write calls inside its stall; null where calls have no times"),
}

CONTENTS = {
    "run": (TEXT, "CAMPAIGN/RUN_ID"),
    "generation": (INT, "checkpoint"),
    "kind": (TEXT, "parameter, optimizer, buffer, rng, data_position or other"),
    "tensors": (INT, "tensors and slices in all files"),
    "logical_bytes": (INT, "their bytes, before any compression"),
    "unique_name_bytes": (INT, "bytes left when each name and slice is counted once"),
    "unique_digest_bytes": (INT, "bytes left when equal contents are counted once; null: no digests"),
}

FILES = {
    "run": (TEXT, "CAMPAIGN/RUN_ID"),
    "generation": (INT, "checkpoint"),
    "file": (TEXT, "relative to the leg's checkpoint directory"),
    "rank": (INT, "writer"),
    "node": (TEXT, "its node"),
    "format": (TEXT, "format"),
    "file_bytes": (INT, "on disk, after commit; null: it was gone before its size could be read"),
    "logical_bytes": (INT, "bytes of the tensors in it"),
}

IMPOSSIBLE = {
    "campaign": (TEXT, "campaign whose axes name the combination"),
    "framework": (TEXT, "axis"),
    "strategy": (TEXT, "axis"),
    "format": (TEXT, "axis"),
    "reason": (TEXT, "why there is no such run"),
}

LAWS = {
    "run": (TEXT, "CAMPAIGN/RUN_ID"),
    "law": (TEXT, "L1_coverage, L2_unattributed, L3_replicas, L4_readback"),
    "verdict": (TEXT, "kept, broken or not_measured"),
    "detail": (TEXT, "what was compared, or what differed and where"),
}

LEFT_OUT = {
    "run": (TEXT, "CAMPAIGN/RUN_ID, or the campaign"),
    "scope": (
        TEXT,
        "what is not counted: run, all of it; trace; inventory, its files; campaign, which runs were planned",
    ),
    "code": (TEXT, "stable code of the cause"),
    "file": (TEXT, "file that shows it"),
    "reason": (TEXT, "the cause in words"),
}

TABLES: dict[str, dict[str, tuple[Any, str]]] = {
    "runs": RUNS,
    "saves": SAVES,
    "rank_saves": RANK_SAVES,
    "windows": WINDOWS,
    "writers": WRITERS,
    "contents": CONTENTS,
    "files": FILES,
    "impossible": IMPOSSIBLE,
    "laws": LAWS,
    "left_out": LEFT_OUT,
}


class Tables(msgspec.Struct, frozen=True, kw_only=True):
    """All tables of a set of runs."""

    runs: pl.DataFrame
    saves: pl.DataFrame
    rank_saves: pl.DataFrame
    windows: pl.DataFrame
    writers: pl.DataFrame
    contents: pl.DataFrame
    files: pl.DataFrame
    impossible: pl.DataFrame
    laws: pl.DataFrame
    left_out: pl.DataFrame

    def write_parquet(self, directory: Path) -> list[Path]:
        """One file per table below `directory`, which is made; returns their paths."""
        directory.mkdir(parents=True, exist_ok=True)
        paths = [directory / f"{name}.parquet" for name in TABLES]
        for name, path in zip(TABLES, paths, strict=True):
            getattr(self, name).write_parquet(path)
        return paths


def frame(name: str, rows: Iterable[dict[str, Any]]) -> pl.DataFrame:
    """The table `name` from rows that have exactly its columns. A row that lacks one is a KeyError."""
    columns = TABLES[name]
    taken = list(rows)
    data = {column: [row[column] for row in taken] for column in columns}
    return pl.DataFrame(data, schema={column: kind for column, (kind, _) in columns.items()})


def tables(rows: dict[str, list[dict[str, Any]]]) -> Tables:
    """All tables; one without rows is empty, with its columns."""
    return Tables(**{name: frame(name, rows.get(name, [])) for name in TABLES})
