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

from analysis.restart_tables import CARRIED, RESTARTS

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
    "condition_facts": (TEXTS, "what it is the digest of, as `name = value`"),
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
    "generations_kept": (INT, "left on disk at the leg's end, by the strategy's rule; reason: kept_reason"),
    "generations_most": (INT, "most that a longer leg would ever have there; null: every one it makes, or not known"),
    "kept_bytes": (INT, "of these generations; reason: kept_reason"),
    "kept_reason": (TEXT, "why that is not known"),
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
    "writing_s": (
        REAL,
        "time in which at least one rank was in a write call of its stall, on the common clock; reason: writing_reason",
    ),
    "writers_at_once_max": (INT, "most ranks in a write call at one instant; reason: writing_reason"),
    "writers_at_once_mean": (REAL, "sum over ranks of their write time over writing_s; reason: writing_reason"),
    "writing_reason": (TEXT, "why it is not known when which rank wrote, or that none did"),
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
    "fsync_calls": (INT, "fsyncs of files, traced; null: no trace, or generations share a directory"),
    "first_write_s": (REAL, "first call's begin after the stall's begin; null without calls with times"),
    "last_write_s": (REAL, "last call's end after the stall's begin; null without calls with times"),
    "rss_before_bytes": (INT, "resident before; reason: rss_reason"),
    "rss_peak_bytes": (INT, "resident peak during; reason: rss_reason"),
    "rss_reason": (TEXT, "why there is none"),
    "write_chars_bytes": (INT, "wchar over the save; reason: io_reason"),
    "storage_bytes": (INT, "write_bytes over the save; reason: io_reason"),
    "io_reason": (TEXT, "why there are none"),
    "cpu_s": (REAL, "CPU time of the process in the stall, all threads; null: the trace is older"),
    "gpu_busy": (REAL, "fraction: mean of the GPU's samples inside the stall; reason: gpu_reason"),
    "gpu_reason": (TEXT, "why there are no samples"),
}

WINDOWS = {
    "run": (TEXT, "CAMPAIGN/RUN_ID"),
    "leg": (TEXT, "train or control"),
    "rank": (INT, "rank"),
    "window_s": (REAL, "barrier after warm-up to barrier after the last step"),
    "paused_s": (REAL, "recorded untimed pauses in it"),
    "steps": (INT, "steps in it"),
    "saves": (INT, "checkpoints in it"),
    "cpu_s": (REAL, "CPU time of the process in it, pauses included; null: the trace is older"),
}

STEPS = {
    "run": (TEXT, "CAMPAIGN/RUN_ID"),
    "leg": (TEXT, "train, control or another launch"),
    "steps": (INT, "traced steps, the first of them left out"),
    "step_median_s": (REAL, "median over these steps of the slowest rank's time; null: no steps"),
    "step_max_s": (REAL, "longest of these steps on any rank; null: no steps"),
}

READS = {
    "run": (TEXT, "CAMPAIGN/RUN_ID"),
    "generation": (INT, "checkpoint of the train leg"),
    "rank": (INT, "rank that read it back, or says why nobody did"),
    "equal": (FLAG, "what was read is what was saved; null: not verified, see reason"),
    "tensors": (INT, "compared"),
    "read_s": (REAL, "time of the reading, digests left out; null: not read, or the trace is older"),
    "cached": (REAL, "fraction of the files' pages in memory before: of the disk those say nothing; null: unknown"),
    "reason": (TEXT, "what differed, or why it was not verified"),
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
    "disk_bytes": (INT, "share of the files by logical bytes; null: a file's size is unknown"),
    "replica_redundant_bytes": (INT, "logical bytes of names and slices that other files hold too, one kept"),
    "replica_redundant_disk_bytes": (INT, "the same on disk, by logical bytes; null: a file's size is unknown"),
    "content_redundant_bytes": (
        INT,
        "logical bytes of equal pieces, any name, one kept, constants left out; null: no digests",
    ),
    "content_redundant_disk_bytes": (INT, "the same on disk; null: no digests or a file's size is unknown"),
    "constant_bytes": (INT, "logical bytes of pieces that are all zero or all one; null: no digests"),
    "constant_redundant_bytes": (INT, "of these, what is there already; null: no digests"),
}

HOLDINGS = {
    "run": (TEXT, "CAMPAIGN/RUN_ID"),
    "generation": (INT, "checkpoint"),
    "kind": (TEXT, "as in contents"),
    "constant": (FLAG, "all zero or all one"),
    "holders": (TEXT, "ranks whose files hold these contents, joined by commas"),
    "nodes": (INT, "nodes of these ranks"),
    "copies": (INT, "how often each piece is there, in all files together"),
    "tensors": (INT, "different pieces"),
    "bytes_each": (INT, "logical bytes of one copy of all of them"),
}

DRAGGERS = {
    "run": (TEXT, "CAMPAIGN/RUN_ID"),
    "generation": (INT, "checkpoint that was read back"),
    "file": (TEXT, "relative to the leg's checkpoint directory"),
    "tensor": (TEXT, "name of a tensor that is a view of something larger"),
    "tensor_bytes": (INT, "its own bytes"),
    "storage_bytes": (INT, "of the storage that the file holds for it"),
    "dragged_bytes": (INT, "what the file holds in vain for it, at most"),
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
    "storages_known": (INT, "tensors whose storage's size was read back"),
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
    "steps": STEPS,
    "reads": READS,
    "writers": WRITERS,
    "contents": CONTENTS,
    "holdings": HOLDINGS,
    "draggers": DRAGGERS,
    "files": FILES,
    "restarts": RESTARTS,
    "carried": CARRIED,
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
    steps: pl.DataFrame
    reads: pl.DataFrame
    writers: pl.DataFrame
    contents: pl.DataFrame
    holdings: pl.DataFrame
    draggers: pl.DataFrame
    files: pl.DataFrame
    restarts: pl.DataFrame
    carried: pl.DataFrame
    impossible: pl.DataFrame
    laws: pl.DataFrame
    left_out: pl.DataFrame

    @property
    def run_count(self) -> int:
        """Runs that were read, those that test restart among them."""
        return self.runs.height + self.restarts["run"].n_unique()

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
