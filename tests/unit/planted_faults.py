"""Campaigns of any size with planted truth: what ranks would have left, with genuine Darshan logs and inventory.

Each fault can be planted alone or with others; `missed` says which of them the tables do not show.
The run directories are those of `planted`, written through the suite's own records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from analysis.tables import Tables
from tests.unit.planted import Plan, plant_all

FILE_BYTES = 10_000_000
SLOW_S, FSYNC_S, AFTER_S = 0.75, 2.0, 1.5
UNEVEN, SEEN = 4, 0.5
RANKS_PER_NODE = 8


def _rank(ranks: int, share: float) -> int:
    """The rank that a fault strikes: the same for a size, another for each fault."""
    return int(share * (ranks - 1))


def _slow(plan: Plan) -> dict[str, Any]:
    return {"slow_s": {**plan.slow_s, _rank(plan.ranks, 0.3): SLOW_S}}


def _fsync(plan: Plan) -> dict[str, Any]:
    return {"durable": True, "sync_s": 0.002, "fsync_s": {(_rank(plan.ranks, 0.5), plan.generations // 2): FSYNC_S}}


def _copies(plan: Plan) -> dict[str, Any]:
    return {"strategy": "replicated", "copies": True}


def _uneven(plan: Plan) -> dict[str, Any]:
    return {"bytes_of": {_rank(plan.ranks, 1.0): UNEVEN * FILE_BYTES}}


def _after(plan: Plan) -> dict[str, Any]:
    rank = _rank(plan.ranks, 0.7)
    return {"slow_s": {**plan.slow_s, rank: AFTER_S}, "unheld": (rank,)}


def _unseen(plan: Plan) -> dict[str, Any]:
    return {"share_of": {_rank(plan.ranks, 0.2): SEEN}}


FAULTS: dict[str, Callable[[Plan], dict[str, Any]]] = {
    "slow_rank": _slow,
    "slow_fsync": _fsync,
    "copies": _copies,
    "uneven": _uneven,
    "after_release": _after,
    "low_coverage": _unseen,
}
"""Name -> what it changes in the plan."""


def plan(ranks: int, faults: Iterable[str] = (), checkpoints: int = 20, calls: int = 8, repeat: int = 1) -> Plan:
    """A sharded run, eight ranks to a node, with these faults."""
    per_node = min(ranks, RANKS_PER_NODE)
    found = Plan(
        nodes=ranks // per_node,
        ranks_per_node=per_node,
        repeat=repeat,
        campaign="planted",
        strategy="sharded",
        generations=checkpoints,
        writers=tuple(range(ranks)),
        file_bytes=FILE_BYTES,
        calls=calls,
        copies=False,
        log="darshan",
    )
    for fault in faults:
        found = replace(found, **FAULTS[fault](found))
    return found


def campaign(root: Path, plans: Iterable[Plan]) -> Path:
    """Write the runs below `root`; returns the campaign's directory."""
    return plant_all(root, list(plans))


def missed(tables: Tables, planted: Plan, faults: Iterable[str]) -> list[str]:
    """What the tables of one planted run should show for these faults, and do not."""
    saves, ranks = tables.saves, tables.rank_saves
    checks: dict[str, Callable[[], bool]] = {
        "slow_rank": lambda: _led(saves, _rank(planted.ranks, 0.3), SLOW_S, planted),
        "slow_fsync": lambda: _fsync_seen(ranks, planted),
        "copies": lambda: tables.contents["unique_digest_bytes"].sum() < tables.contents["logical_bytes"].sum(),
        "uneven": lambda: _largest(ranks) == (_rank(planted.ranks, 1.0), UNEVEN),
        "after_release": lambda: _worked_on(ranks, _rank(planted.ranks, 0.7), planted),
        "low_coverage": lambda: _uncovered(ranks) == {_rank(planted.ranks, 0.2): SEEN},
    }
    return [fault for fault in faults if not checks[fault]()]


def _led(saves: pl.DataFrame, rank: int, by_s: float, planted: Plan) -> bool:
    """Where nothing slower is planted, the rank leads every checkpoint by what it slept."""
    if planted.unheld or planted.fsync_s:
        return True
    return set(saves["slowest"]) == {rank} and bool((saves["slower_by_s"] - by_s).abs().max() < 0.01)  # type: ignore[operator]


def _fsync_seen(ranks: pl.DataFrame, planted: Plan) -> bool:
    slow = ranks.filter(pl.col("sync_s") > FSYNC_S / 2)
    return slow.select("rank", "generation").rows() == list(planted.fsync_s)


def _largest(ranks: pl.DataFrame) -> tuple[int, float]:
    """The rank that was given most, and how many times the least of all it got."""
    row = ranks.sort("planned_bytes").row(-1, named=True)
    return row["rank"], row["planned_bytes"] / ranks["planned_bytes"].min()  # type: ignore[operator]


def _worked_on(ranks: pl.DataFrame, rank: int, planted: Plan) -> bool:
    """The rank's stall ends later than everybody else's, but where a slow fsync holds all of them longer."""
    held = [generation for _, generation in planted.fsync_s]
    free = ranks.filter(~pl.col("generation").is_in(held))
    last = free.group_by("generation").agg(pl.col("rank").sort_by("stall_s").last())
    return set(last["rank"]) == {rank}


def _uncovered(ranks: pl.DataFrame) -> dict[int, float]:
    return dict(ranks.filter(~pl.col("coverage_ok")).select("rank", "coverage").rows())
