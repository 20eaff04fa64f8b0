"""What does each framework x strategy x format put on disk? `python -m analysis.mechanisms`.

One row per combination and size: writers by plan and by trace, bytes per rank and file, copies,
spread, coverage, read-back. What cannot be run has its reason in the row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from statistics import median
from typing import Any

import polars as pl

from analysis import laws
from analysis.cli import Answer, Question, main
from analysis.finding import Finding, not_measured
from analysis.in_short import Measure
from analysis.model_parallel import in_parts
from analysis.model_parallel_claims import uneven_advice
from analysis.pooling import Group, Pool, pool
from analysis.rows import apart
from analysis.stats import interval_words
from analysis.tables import Tables
from analysis.view import TEXTS, View, told_apart

Row = dict[str, Any]
MEGA = 1e6
UNEVEN = 1.5
"""Largest over mean bytes per writer from which a spread costs: the stall is the largest share's."""
REDUNDANT = 0.01
"""Share of parameter bytes that are copies; constants and equal initial values make up less."""


class Mechanisms(Question):
    """Who writes what, with every mechanism, and what cannot be done."""

    name = "mechanisms"
    asks = "What does each framework, strategy and format put on disk, who writes it, and what is impossible?"
    measures = (
        Measure(column="checkpoint_bytes", words="a checkpoint takes", unit="bytes", where="possible"),
        Measure(column="files", words="its files are", unit="count", where="possible"),
        Measure(column="redundant_by_digest", words="copies among its parameters are", unit="share", where="possible"),
    )

    def answer(self, tables: Tables, pool_commits: bool = False) -> Answer:
        groups = pool(tables, pool_commits)
        rows = [_row(tables, group, each) for group in groups for each in group.pools]
        return Answer(
            question=self.name,
            rows=rows + [dict(entry) | {"possible": False} for entry in tables.impossible.iter_rows(named=True)],
            findings=[finding for row in rows for finding in findings(row)],
            left_out=list(tables.left_out.iter_rows(named=True)),
        )

    def views(self, answer: Answer) -> list[View]:
        measured = [row for row in answer.rows if row["possible"]]
        found = []
        for place in dict.fromkeys(row["place"] for row in measured):
            rows = [row for row in measured if row["place"] == place]
            columns = {name: [cell(row) for row in rows] for name, cell in COLUMNS.items()}
            columns = told_apart(NAMES, rows) | columns
            found.append(View(title=place, columns=columns, left=LEFT, below=LEGEND))
        impossible = _impossible([row for row in answer.rows if not row["possible"]])
        if impossible:
            found.append(View(title="Not possible", below=impossible))
        return found


def _impossible(rows: list[Row]) -> list[str]:
    """One line per framework and reason, with the combinations that it rules out."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        found.setdefault((row["framework"], row["reason"]), []).append(f"{row['strategy']} {row['format']}")
    return [f"{framework}: {reason} ({', '.join(which)})" for (framework, reason), which in found.items()]


def _row(tables: Tables, group: Group, each: Pool) -> Row:
    saves = each.checkpoints()
    stall = each.over_saves("stall_s")
    background = each.over_saves("background_s")
    return {
        "possible": True,
        "group": group.title,
        "place": f"{each.place}, model {group.key['model']}, {'durable' if group.durable else 'buffered'}",
        **{key: group.key[key] for key in ("framework", "strategy", "format", "model", "durable")},
        **{key: group.key[key] for key in ("interval_steps", "faults", "site")},
        **apart(group, each),
        "nodes": each.nodes,
        "ranks_per_node": each.ranks_per_node,
        "runs": len(each.runs),
        "writers_declared": _agreed(save["writers_declared"] for save in saves),
        "writers_seen": _agreed(save["writers_seen"] for save in saves),
        "writers_reason": next((save["trace_reason"] for save in saves if save["trace_reason"]), None),
        "coverage_min": min((s["coverage_min"] for s in saves if s["coverage_min"] is not None), default=None),
        "coverage_max": max((s["coverage_max"] for s in saves if s["coverage_max"] is not None), default=None),
        "coverage_reason": next((s["coverage_reason"] for s in saves if s["coverage_reason"]), None),
        "state_bytes": _agreed(save["state_bytes"] for save in saves),
        "stall_s": stall.value,
        "stall_low_s": stall.low,
        "stall_high_s": stall.high,
        "stall_interval": interval_words([stall]),
        "background_s": background.value,
        **_files(tables.files.filter(pl.col("run").is_in(each.evidence))),
        "fsyncs": _fsyncs(tables.rank_saves.filter(pl.col("run").is_in(each.evidence))),
        **_copies(tables.contents.filter(pl.col("run").is_in(each.evidence))),
        "read_back": _read_back(tables, each),
        "evidence": each.evidence,
    }


def _agreed(values: Iterable[Any]) -> Any:
    """The value that all checkpoints share; the largest where they differ; None without any."""
    return max((value for value in values if value is not None), default=None)


def _files(files: pl.DataFrame) -> Row:
    """Medians over checkpoints: files, bytes in all, the largest file, the fullest rank, and the spread."""
    sizes_ = ("checkpoint_bytes", "largest_file_bytes", "fullest_rank_bytes")
    names = ("files", *sizes_, "fullest", "spread", "compression")
    # A checkpoint with one file of unknown size has no known sum.
    unknown = files.filter(pl.col("file_bytes").is_null()).select("run", "generation")
    known = files.join(unknown, on=["run", "generation"], how="anti")
    # In the ranks' order: of ranks that hold as much, the same one comes first each time.
    per_rank = known.group_by("run", "generation", "rank").agg(pl.col("file_bytes").sum()).sort("rank")
    found: dict[str, list[float]] = {name: [] for name in names}
    for (run, generation), part in known.group_by("run", "generation", maintain_order=True):
        here = per_rank.filter((pl.col("run") == run) & (pl.col("generation") == generation))
        ranks: list[int] = here["file_bytes"].to_list()
        sizes: list[int] = part["file_bytes"].to_list()
        found["files"].append(len(sizes))
        found["checkpoint_bytes"].append(sum(sizes))
        found["largest_file_bytes"].append(max(sizes))
        found["fullest_rank_bytes"].append(max(ranks))
        found["fullest"].append(here["rank"][ranks.index(max(ranks))])
        found["spread"].append(max(ranks) * len(ranks) / sum(ranks))
        found["compression"].append(int(part["logical_bytes"].sum()) / sum(sizes))
    usual, often = Counter(found.pop("fullest")).most_common(1)[0] if found["fullest"] else (None, 0)
    row: Row = {name: median(values) if values else None for name, values in found.items()}
    saves = len(found["files"])
    return row | {"fullest_rank": usual if 2 * often > saves else None, "fullest_saves": often, "counted_saves": saves}


def _fsyncs(rank_saves: pl.DataFrame) -> float | None:
    """Median over checkpoints of the fsyncs of all ranks; None where a rank's are not known."""
    per_save = rank_saves.group_by("run", "generation").agg(
        pl.col("fsync_calls").sum(), pl.col("fsync_calls").null_count().alias("unknown")
    )
    known = per_save.filter(pl.col("unknown") == 0)["fsync_calls"].to_list()
    return median(known) if known else None


def _copies(contents: pl.DataFrame) -> Row:
    """Share of the parameter bytes that other files of the same checkpoint hold already."""
    parameters = contents.filter(pl.col("kind") == "parameter")
    total, by_digest, by_name = (
        int(parameters[column].sum()) for column in ("logical_bytes", "unique_digest_bytes", "unique_name_bytes")
    )
    digested = not parameters["unique_digest_bytes"].null_count()
    return {
        "redundant_by_digest": 1 - by_digest / total if total and digested else None,
        "redundant_by_name": 1 - by_name / total if total else None,
        "kinds": contents["kind"].unique().sort().to_list(),
    }


def _read_back(tables: Tables, each: Pool) -> str:
    mine = tables.laws.filter((pl.col("law") == laws.READBACK) & pl.col("run").is_in(each.evidence))
    verdicts = mine["verdict"].to_list()
    if laws.BROKEN in verdicts:
        return f"differs: {mine.filter(pl.col('verdict') == laws.BROKEN)['detail'][0]}"
    if verdicts and all(verdict == laws.KEPT for verdict in verdicts):
        return "equal"
    return f"not verified: {mine['detail'][0] if mine.height else 'no run'}"


def findings(row: Row) -> list[Finding]:
    """ME01 to ME03 for one combination."""
    return [claim(row) for claim in (copies, spread, writers)]


def copies(row: Row) -> Finding:
    """ME01: the same parameters are written more than once."""
    code, claim, share = "ME01", "the same parameters are written more than once", row["redundant_by_digest"]
    if share is None:
        return not_measured(code, claim, row["group"], "no inventory lists parameters", row["evidence"])
    return Finding(
        code=code, claim=claim, group=row["group"], value=share, unit="fraction", evidence=row["evidence"],
        verdict="supports" if share >= REDUNDANT else "contradicts",
        level="warning" if share >= REDUNDANT else "ok",
        sentence=f"{100 * share:.1f} % of the parameter bytes of a checkpoint are copies, at {row['place']}",
        recommendation="Write each replica set once (sharded, replica sets): the copies restore nothing more.",
    )  # fmt: skip


def spread(row: Row) -> Finding:
    """ME02: the writers' shares are uneven."""
    code, claim, value = "ME02", "the writers' shares are uneven", row["spread"]
    if value is None:
        return not_measured(code, claim, row["group"], "no file sizes", row["evidence"])
    uneven = value >= UNEVEN
    return Finding(
        code=code, claim=claim, group=row["group"], value=value, unit="largest/mean", evidence=row["evidence"],
        verdict="supports" if uneven else "contradicts", level="warning" if uneven else "ok",
        sentence=f"{_fullest(row)} holds {_mega(row['fullest_rank_bytes'])} of {_mega(row['checkpoint_bytes'])} MB, "
        f"{value:.2f} times the mean over writers, at {row['place']}",
        recommendation=_advice(row),
    )  # fmt: skip


def _fullest(row: Row) -> str:
    if row["fullest_rank"] is None:
        return "the fullest writer, no rank in most checkpoints,"
    return f"rank {row['fullest_rank']}, the fullest in {row['fullest_saves']} of {row['counted_saves']} checkpoints,"


def _advice(row: Row) -> str:
    """Where no rank holds the model whole, each can only write what it has: the question on these says what to do."""
    if in_parts(row["framework"]):
        return uneven_advice((row["writers_declared"] or 0) >= row["nodes"] * row["ranks_per_node"])
    return "Cut by bytes instead of by whole tensors: the stall is the largest share's."


def writers(row: Row) -> Finding:
    """ME03: the trace shows the writers that the plan declares."""
    code, claim = "ME03", "the trace shows the writers that the plan declares"
    seen, declared = row["writers_seen"], row["writers_declared"]
    if seen is None:
        return not_measured(code, claim, row["group"], row["writers_reason"] or "no trace", row["evidence"])
    return Finding(
        code=code, claim=claim, group=row["group"], value=seen, unit="ranks", evidence=row["evidence"],
        verdict="supports" if seen == declared else "contradicts", level="ok" if seen == declared else "critical",
        sentence=f"{seen} of {declared} declared writers were seen to write, at {row['place']}",
    )  # fmt: skip


def _mega(value: float | None) -> str:
    return "n.m." if value is None else f"{value / MEGA:.2f}"


def _part(value: float | None, form: str) -> str:
    return "n.m." if value is None else format(value, form)


NAMES = ("framework", "strategy", "format")
LEFT = [*NAMES, *TEXTS, "read back"]
LEGEND = [
    "stall: median over runs of their median checkpoint; spread: largest over mean bytes per writer",
    "fsync calls: of all ranks per checkpoint, as traced; n.m.: generations share a directory, and their files' counts",
    "buffered runs show what a mechanism syncs by itself",
    "copies: share of the parameter bytes that others hold too, by digest; ratio: logical over file bytes",
]
COLUMNS: dict[str, Callable[[Row], str]] = {
    "runs": lambda row: str(row["runs"]),
    "writers\nseen/plan": lambda row: f"{_part(row['writers_seen'], 'd')}/{_part(row['writers_declared'], 'd')}",
    "files": lambda row: _part(row["files"], ".0f"),
    "MB\nin all": lambda row: _mega(row["checkpoint_bytes"]),
    "MB\nfile": lambda row: _mega(row["largest_file_bytes"]),
    "MB\nrank": lambda row: _mega(row["fullest_rank_bytes"]),
    "spread": lambda row: _part(row["spread"], ".2f"),
    "copies": lambda row: _part(row["redundant_by_digest"], ".1%"),
    "ratio": lambda row: _part(row["compression"], ".2f"),
    "fsync\ncalls": lambda row: _part(row["fsyncs"], ".0f"),
    "stall\nms": lambda row: _part(None if row["stall_s"] is None else row["stall_s"] * 1e3, ".1f"),
    "cover\nage": lambda row: _part(row["coverage_min"], ".3f"),
    "read back": lambda row: row["read_back"],
}

if __name__ == "__main__":
    raise SystemExit(main(Mechanisms()))
