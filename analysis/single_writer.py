"""Who wrote, by the I/O trace, and what would more writers change? `python -m analysis.single_writer`.

Rows per point: shares of bytes and of write seconds, concurrency, the others' waiting, and the stall
with more writers at measured rates. `--darshan PATH` asks the same of logs without a run directory.
Verdicts are in `single_writer_claims`, tables and figures in `single_writer_show`.
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import polars as pl

from analysis import darshan_import
from analysis.cli import Answer, Question, main
from analysis.finding import Finding
from analysis.in_short import Measure
from analysis.more_writers import alone, predicted, same_storage, storage
from analysis.pooling import Group, Pool, Row, pool, writers
from analysis.single_writer_claims import LONGER_RATIO, LONGER_S, USUAL_OF, findings, many_nodes
from analysis.single_writer_show import drawings, paragraphs, views
from analysis.stats import Interval, median_interval
from analysis.tables import Tables
from analysis.view import Drawing, View
from analysis.writing import shared_paths, with_writing
from hpcckpt.errors import ExitCode, SpecError

METRICS = {
    "stall_s": None,
    "serialize_s": "split",
    "written_bytes": "written_reason",
    "top_share": "written_reason",
    "top_write_share": "put_reason",
    "writing_nodes": "written_reason",
    "top_node_share": "written_reason",
    "writers_at_once_mean": "writing_reason",
    "writing_s": "writing_reason",
    "writing_share": "writing_reason",
    "put_max_s": "put_reason",
    "per_writer_bytes_per_s": "put_reason",
    "aggregate_bytes_per_s": "put_reason",
    "serial_s": None,
    "serial_share": None,
    "others_idle_rank_s": None,
    "idle_share": "idle_reason",
    "slow_ratio": "put_reason",
    "slow_by_s": "put_reason",
    "slow_put_s": "put_reason",
    "slow_fsync_s": "put_reason",
    "on_s": "on_reason",
    "written_over_stored": "written_reason",
}
"""Column of a checkpoint -> the one that says why it may be empty."""


class SingleWriter(Question):
    """Who writes while who waits."""

    name = "single_writer"
    asks = "Which ranks wrote the checkpoint, how many at once, who waited, and what would more writers change?"
    measures = (
        Measure(column="serial_share", words="one rank works alone for this share of the stall:", unit="share"),
        Measure(column="others_idle_rank_s", words="the others idle", unit="rank-s"),
        Measure(column="writers_at_once_mean", words="writers at once are on average", unit="ratio"),
    )

    def __init__(self) -> None:
        self.generation: int | None = None
        self.darshan: Path | None = None
        self.below: str | None = None
        self.state_bytes: int | None = None

    @classmethod
    def add_options(cls, found: argparse.ArgumentParser) -> None:
        more = found.add_argument_group("of this question")
        more.add_argument("--checkpoint", type=int, metavar="N", help="draw this checkpoint, not the usual one")
        text = "ask Darshan logs (a file or a tree) instead of runs"
        more.add_argument("--darshan", type=Path, metavar="PATH", help=text)
        more.add_argument("--below", metavar="DIR", help="with --darshan: only files below this directory")
        text = "with --darshan: bytes of one whole state, which tells copies from shares"
        more.add_argument("--state-bytes", type=int, metavar="BYTES", help=text)

    def take(self, options: argparse.Namespace) -> None:
        self.generation, self.darshan = options.checkpoint, options.darshan
        self.below, self.state_bytes = options.below, options.state_bytes
        if self.darshan and (options.runs or options.parquet or options.pool_commits):
            raise SpecError("--darshan asks logs instead of runs: leave out RUNS, --parquet and --pool-commits")
        if not self.darshan and (self.below or self.state_bytes):
            raise SpecError("--below and --state-bytes belong to --darshan PATH")
        if self.state_bytes is not None and self.state_bytes < 1:
            raise SpecError(f"--state-bytes {self.state_bytes}: must be at least 1")

    def from_elsewhere(self) -> tuple[Answer, ExitCode] | None:
        if self.darshan is None:
            return None
        return darshan_import.answer(self.name, self.darshan, self.below, self.state_bytes)

    def answer(self, tables: Tables, pool_commits: bool = False) -> Answer:
        self._check(tables)
        tables = _with_reasons(tables)
        groups = pool(tables, pool_commits)
        shared = _shared(tables)
        rows = [self._row(group, each, shared) for group in groups for each in group.pools]
        rows = _beside_others(rows)
        found: list[Finding] = [*many_nodes(rows)]
        for group in groups:
            found += findings(group, [row for row in rows if row["group"] == group.title])
        left_out = list(tables.left_out.iter_rows(named=True))
        return Answer(
            question=self.name, rows=rows, findings=found, left_out=left_out, notes=paragraphs(rows)
        )

    def _check(self, tables: Tables) -> None:
        """Whether any run has the checkpoint that is to be drawn. Raises SpecError that names those there are."""
        there = sorted(set(tables.saves["generation"].to_list()))
        if self.generation is None or self.generation in there:
            return
        known = f"checkpoints {there[0]} to {there[-1]}" if there else "no checkpoints"
        raise SpecError(f"--checkpoint {self.generation}: these runs have {known}")

    def views(self, answer: Answer) -> list[View]:
        if self.darshan is not None:
            return darshan_import.views(answer)
        return views(answer.rows)

    def drawings(self, answer: Answer) -> list[Drawing]:
        return [] if self.darshan is not None else drawings(answer.rows)

    def _row(self, group: Group, each: Pool, shared: dict[str, Row]) -> Row:
        row: Row = {
            "group": group.title,
            **group.key,
            "place": each.place,
            "nodes": each.nodes,
            "ranks_per_node": each.ranks_per_node,
            "ranks": each.ranks,
            "virtual_nodes": any(run["virtual_nodes"] for run in each.runs),
            "ranks_per_core": max(run["ranks_per_core"] for run in each.runs),
            "runs": len(each.runs),
            "checkpoints": len(each.checkpoints()),
            **writers(each),
        }
        for column, reason in METRICS.items():
            row |= _numbers(column, each.over_saves(column, reason))
        row["put_s"], row["put_reason"] = row["put_max_s"], row["put_max_reason"]
        ours = [shared[run["run"]] for run in each.runs if run["run"] in shared]
        return row | _who(each) | _window(each) | _shown(each, self.generation) | {
            "shared_paths": sum(item["paths"] for item in ours),
            "shared_path": ours[0]["file"] if ours else None,
            "shared_by_ranks": max((item["ranks"] for item in ours), default=None),
            "shared_by_nodes": max((item["nodes"] for item in ours), default=None),
            "files_known": not each.checkpoints() or any(s["bytes_reason"] is None for s in each.checkpoints()),
            **_longest_fsync(each),
            **_longest_work(each),
            "fsync_calls_most": _most_fsyncs(each),
            "deferred_s": each.over_runs("deferred_s").value,
            "evidence": each.evidence,
        }  # fmt: skip


def _with_reasons(tables: Tables) -> Tables:
    """What was written, with the reason beside numbers that some checkpoints lack."""
    tables = with_writing(tables)
    untimed = "the write calls have no times, or it is written behind the stall"
    saves = tables.saves.with_columns(
        written_reason=pl.coalesce("trace_reason", pl.lit("no rank was seen to write")),
        slow_by_s=pl.col("slow_put_s") - pl.col("usual_put_s"),
        on_s=pl.max_horizontal("wrote_on_s", "held_s"),
        on_rank=pl.when(pl.col("wrote_on_s").fill_null(0) > 0).then("wrote_on_rank").otherwise("held_rank"),
        on_reason=pl.when(pl.col("background_s") > 0)
        .then(pl.lit("it is written behind the stall, as its strategy means it"))
        .otherwise(pl.coalesce("clock_reason", "trace_reason", pl.lit(untimed))),
        written_over_stored=pl.col("written_bytes") / pl.col("checkpoint_bytes"),
        put_reason=pl.coalesce("trace_reason", "writing_reason", pl.lit(untimed)),
        idle_reason=pl.lit("one rank waits for nobody"),
    )
    return msgspec.structs.replace(tables, saves=saves)


def _beside_others(rows: list[Row]) -> list[Row]:
    """Each row with what the others say of its storage: rates of one and of several writers, and of fsynced ones."""
    by_storage: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        by_storage[same_storage(row)].append(row)
    seen = {key: storage(mine) for key, mine in by_storage.items()}
    alike = ("framework", "strategy", "format", "model", "site", "nodes", "ranks_per_node", "faults")
    durable = {tuple(row[name] for name in alike): row for row in rows if row["durable"]}
    none: Row = {"per_writer_bytes_per_s": None, "per_writer_runs": 0}
    twins = [durable.get(tuple(row[name] for name in alike), none) for row in rows]
    return [
        row
        | predicted(row, seen[same_storage(row)], alone(row, by_storage[same_storage(row)]))
        | {"durable_bytes_per_s": twin["per_writer_bytes_per_s"], "durable_runs": twin["per_writer_runs"]}
        for row, twin in zip(rows, twins, strict=True)
    ]


def _shared(tables: Tables) -> dict[str, Row]:
    """run -> paths that several of its ranks wrote, and the first of them."""
    found: dict[str, Row] = {}
    for item in shared_paths(tables.files).iter_rows(named=True):
        known = found.setdefault(item["run"], {"paths": 0, "ranks": 0, "nodes": 0, "file": item["file"]})
        known["paths"] += 1
        known["ranks"], known["nodes"] = max(known["ranks"], item["ranks"]), max(known["nodes"], item["nodes"])
    return found


def _numbers(column: str, item: Interval) -> Row:
    """stall_s, stall_low_s, stall_high_s, stall_reason; a unit stays at the end of each name."""
    unit = next((unit for unit in ("_bytes_per_s", "_rank_s", "_bytes", "_s") if column.endswith(unit)), "")
    stem = column.removesuffix(unit)
    bounds = {f"{stem}_low{unit}": item.low, f"{stem}_high{unit}": item.high}
    return {column: item.value, **bounds, f"{stem}_reason": item.reason, f"{stem}_runs": item.n}


def _who(each: Pool) -> Row:
    """The rank and node that wrote most, the slowest writer and the last rank at work: each in most checkpoints."""
    at_once = [s["writers_at_once_max"] for s in each.checkpoints() if s["writers_at_once_max"] is not None]
    return {
        **{name: _usual(each, name) for name in ("top_rank", "top_node", "slow_rank", "on_rank")},
        "writers_at_once_max": max(at_once, default=None),
    }


def _usual(each: Pool, column: str) -> Any:
    """The value that most checkpoints share; None where no value is in more than half of them."""
    values = Counter(save[column] for save in each.checkpoints() if save[column] is not None)
    value, count = values.most_common(1)[0] if values else (None, 0)
    return value if 2 * count > sum(values.values()) else None


def _longest_work(each: Pool) -> Row:
    """The checkpoint whose slowest rank worked longest beside the usual one of its run, and how many stand out."""
    found = []
    for saves in each.saves.values():
        # The first save fills pools and opens what stays open: it is always longer, and nobody's fault.
        later = [save for save in saves if save["generation"] > min(each["generation"] for each in saves)]
        if len(later) >= USUAL_OF:
            usual = median(save["own_max_s"] for save in later)
            found += [(save["own_max_s"] - usual, usual, save) for save in later]
    names = ("longer_s", "usual_own_s", "longest_own_s", "longer_rank", "longer_where")
    if not found:
        return dict.fromkeys(names) | {"longer_saves": 0}
    by, usual, save = max(found, key=lambda item: item[0])
    where = f"checkpoint {save['generation']} of {save['run']}"
    out = sum(by >= LONGER_S and save["own_max_s"] >= LONGER_RATIO * usual for by, usual, save in found)
    values = (by, usual, save["own_max_s"], save["slowest"], where)
    return dict(zip(names, values, strict=True)) | {"longer_saves": out}


def _most_fsyncs(each: Pool) -> int | None:
    """Most fsync calls of all ranks in a checkpoint; None where some rank's are not known in some checkpoint."""
    calls = [save["fsync_calls"] for save in each.checkpoints()]
    return max(calls) if calls and None not in calls else None


def _longest_fsync(each: Pool) -> Row:
    """The longest fsync of any rank, where it was, and the usual longest of a checkpoint."""
    saves = [save for save in each.checkpoints() if save["fsync_s"] is not None]
    worst = max(saves, key=lambda save: save["fsync_s"], default=None)
    return {
        "fsync_max_s": worst["fsync_s"] if worst else None,
        "fsync_usual_s": median(save["fsync_s"] for save in saves) if saves else None,
        "fsync_rank": worst["fsync_rank"] if worst else None,
        "fsync_where": f"checkpoint {worst['generation']} of {worst['run']}" if worst else None,
    }


def _window(each: Pool) -> Row:
    """The share of all rank-seconds of the window that the others spent waiting for checkpoints."""
    shares: list[float] = []
    for run in each.runs:
        window, saves = run["window_train_s"], each.saves[run["run"]]
        if window and saves:
            idle: Any = sum(save["others_idle_rank_s"] for save in saves) / len(saves) * (run["window_saves"] or 0)
            shares.append(idle / (run["ranks"] * window))
    return _numbers("idle_share_of_window", median_interval(shares, reason="no window in the train leg"))


def _shown(each: Pool, generation: int | None) -> Row:
    """The checkpoint to draw: the one whose stall is nearest to the row's median."""
    stall = each.over_saves("stall_s").value
    saves = [s for s in each.checkpoints() if generation in (None, s["generation"])]
    if stall is None or not saves:
        return {"shown_path": None, "shown_generation": None}
    usual = min(saves, key=lambda save: abs(save["stall_s"] - stall))
    path = next(run["path"] for run in each.runs if run["run"] == usual["run"])
    return {"shown_path": path, "shown_generation": usual["generation"]}


if __name__ == "__main__":
    raise SystemExit(main(SingleWriter()))
