"""Which runs may stand in one row, and what a row's number is.

A run's value is the median over its checkpoints; a row's is the median over its runs. Never pooled:
buffered with durable, planted faults with none, other settings or versions, other commits unless
asked, and runs that broke a decisive law.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from statistics import median
from typing import Any

import msgspec

from analysis.finding import counted
from analysis.rank_saves import NOT_MEASURED, RECORDED
from analysis.stats import Interval, median_interval
from analysis.tables import PHASE_COLUMNS, Tables
from hpcckpt.records import SERIALIZE, SYNC, WRITE

Row = dict[str, Any]
GROUP = ("framework", "strategy", "format", "model", "durable", "interval_steps", "faults", "site")
IN_COMPOSITES = tuple(PHASE_COLUMNS[phase] for phase in (SERIALIZE, WRITE, SYNC))
"""Phases that are None where they were recorded as part of a composite that could not be split."""
SEPARATE = ("conditions", "commit")


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """The runs of one row: same point, same conditions."""

    nodes: int
    ranks_per_node: int
    runs: list[Row]
    """Only those that count."""
    saves: dict[str, list[Row]]
    """run -> its checkpoints."""
    untrusted: int
    """Runs that broke a decisive law and are in no number."""
    reason: str | None
    """Why nothing of this row is measured."""

    @property
    def ranks(self) -> int:
        return self.nodes * self.ranks_per_node

    @property
    def place(self) -> str:
        """Its point in words: 8 nodes x 1 rank."""
        return f"{counted(self.nodes, 'node')} x {counted(self.ranks_per_node, 'rank')}"

    @property
    def evidence(self) -> list[str]:
        """Keys of the runs behind the row."""
        return [run["run"] for run in self.runs]

    def checkpoints(self) -> list[Row]:
        """The checkpoints of all its runs."""
        return [save for run in self.runs for save in self.saves[run["run"]]]

    def per_run(self, column: str) -> dict[str, float]:
        """run -> median of the column over its checkpoints; runs without any value are not in it.

        Nor is a run where a phase stayed in a composite in some of its checkpoints: those are the ones
        that hold it, and the median over the others would be 0.
        """
        values = {run["run"]: [save[column] for save in self.saves[run["run"]]] for run in self.runs}
        if column in IN_COMPOSITES:
            values = {run: found for run, found in values.items() if None not in found}
        known = {run: [value for value in found if value is not None] for run, found in values.items()}
        return {run: median(found) for run, found in known.items() if found}

    def over_saves(self, column: str, reason: str | None = None) -> Interval:
        """Median and interval over runs of a column of `saves`; `reason` is the column that says why not."""
        unknown = [save for save in self.checkpoints() if save[column] is None]
        why = self._why(unknown or self.checkpoints(), reason)
        return median_interval([] if self.reason else list(self.per_run(column).values()), reason=why)

    def over_runs(self, column: str, reason: str | None = None) -> Interval:
        """Median and interval of a column of `runs`."""
        values = [run[column] for run in self.runs if run[column] is not None]
        return median_interval([] if self.reason else values, reason=self._why(self.runs, reason))

    def _why(self, rows: list[Row], column: str | None) -> str:
        found = next((row[column] for row in rows if column and row[column]), None)
        if found == RECORDED:
            found = "recorded as one phase with another"
        fallback = "no checkpoints" if self.runs else "no trusted run"
        return self.reason or (str(found).removeprefix(NOT_MEASURED) if found else fallback)


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Rows that belong in one table: the same in everything but nodes and ranks per node."""

    key: dict[str, Any]
    pools: list[Pool]
    apart: str
    """Why its rows are not in the table above, where another group differs only in commit or conditions."""

    @property
    def durable(self) -> bool:
        return bool(self.key["durable"])

    @property
    def title(self) -> str:
        key = self.key
        kind = "durable" if key["durable"] else "buffered"
        every = f"every {key['interval_steps']} steps"
        planted = f", planted faults: {key['faults']}" if key["faults"] else ""
        head = f"{key['framework']}, {key['strategy']}, {key['format']}, {key['model']}"
        return f"{head}, {kind}, {every}{planted}{self.apart}"

    @property
    def first(self) -> Row:
        """One of its runs, for what all have in common."""
        return next(run for pool in self.pools for run in pool.runs)


def pool(tables: Tables, pool_commits: bool = False) -> list[Group]:
    """All groups with at least one trusted run, buffered before durable, planted faults last."""
    separate = SEPARATE[:1] if pool_commits else SEPARATE
    saves: dict[str, list[Row]] = defaultdict(list)
    for save in tables.saves.iter_rows(named=True):
        saves[save["run"]].append(save)
    found: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for run in tables.runs.iter_rows(named=True):
        found[tuple(run[name] for name in (*GROUP, *separate))].append(run)
    heads = [key[: len(GROUP)] for key in found]
    groups = []
    for key, runs in sorted(found.items(), key=lambda item: (bool(item[0][6]), *map(str, item[0]))):
        named = dict(zip((*GROUP, *separate), key, strict=True))
        apart = told_by(named) if heads.count(key[: len(GROUP)]) > 1 else ""
        if any(run["trusted"] for run in runs):
            groups.append(Group(key=named, pools=_pools(runs, saves), apart=apart))
    return groups


def told_by(key: Mapping[str, Any]) -> str:
    """What tells groups of one name apart, behind that name: their conditions, and their commit where `key` has it."""
    commit = f", commit {str(key['commit'])[:12]}" if "commit" in key else ""
    return f"{commit}, conditions {key['conditions']}"


def _pools(runs: list[Row], saves: dict[str, list[Row]]) -> list[Pool]:
    points: dict[tuple[int, int], list[Row]] = defaultdict(list)
    for run in runs:
        points[run["nodes"], run["ranks_per_node"]].append(run)
    return [_pool(nodes, per_node, points[nodes, per_node], saves) for nodes, per_node in sorted(points)]


def _pool(nodes: int, per_node: int, runs: list[Row], saves: dict[str, list[Row]]) -> Pool:
    trusted = sorted((run for run in runs if run["trusted"]), key=lambda run: (run["repeat"], run["run"]))
    reasons = [run["durable_reason"] for run in trusted]
    # One host without a device behind fsync spoils a run; a row counts the runs that have one everywhere.
    measured = [run for run in trusted if run["durable_reason"] is None]
    kept = measured or trusted
    return Pool(
        nodes=nodes,
        ranks_per_node=per_node,
        runs=kept,
        saves={run["run"]: saves[run["run"]] for run in kept},
        untrusted=len(runs) - len(trusted),
        reason=None if measured or not trusted else reasons[0],
    )


def writers(each: Pool) -> Row:
    """Fewest and most writers over a row's checkpoints, seen and declared; a reason where none was seen."""
    saves = each.checkpoints()
    seen = [save["writers_seen"] for save in saves if save["writers_seen"] is not None]
    declared = [save["writers_declared"] for save in saves]
    reason = next((save["trace_reason"] for save in saves if save["trace_reason"]), None)
    return {
        "writers_seen_min": min(seen, default=None),
        "writers_seen_max": max(seen, default=None),
        "writers_seen_reason": None if seen else reason or "no checkpoints",
        "writers_declared_min": min(declared, default=None),
        "writers_declared_max": max(declared, default=None),
    }
