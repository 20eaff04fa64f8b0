"""The inventory in parts is the inventory, and no damage to it stops a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from analysis import inventories
from hpcckpt.rundir import RunDir
from tests.unit.collecting import taken
from tests.unit.planted import Plan, plant

PLAN = Plan(nodes=3, writers=(0, 1, 2), generations=5, copies=False, tensors=("a", "b", "c"))
CONTENTS = ("contents", "holdings", "files", "draggers")


@pytest.mark.parametrize("at_once", [1, 9, 10, 20, 44, 45])
def test_whole_checkpoints_at_a_time_give_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    path = plant(tmp_path, PLAN)
    inventory = RunDir(path).leg("train").inventory
    pl.read_parquet(inventory).sort("rank", "generation", "tensor").write_parquet(inventory)
    whole = taken(path)
    monkeypatch.setattr(inventories, "ROWS_AT_ONCE", at_once)
    sizes = [part["generation"].n_unique() for part in inventories._parts(inventory)]
    assert (sum(sizes), max(sizes)) == (5, max(1, -(-at_once // 9)) if at_once < 45 else 5)
    parts = taken(path)
    for table in CONTENTS:
        one, two = getattr(whole, table), getattr(parts, table)
        order = [name for name in ("generation", "kind", "file", "holders", "tensor") if name in one.columns]
        assert one.sort(order).equals(two.sort(order)), table
    assert whole.saves.equals(parts.saves)


def test_a_byte_changed_anywhere_never_stops_the_run(tmp_path: Path) -> None:
    path = plant(tmp_path, replace(PLAN, generations=1))
    inventory = RunDir(path).leg("train").inventory
    whole = inventory.read_bytes()
    for at in range(0, len(whole), max(1, len(whole) // 150)):
        damaged = bytearray(whole)
        damaged[at] ^= 0xFF
        inventory.write_bytes(damaged)
        assert taken(path).runs.height == 1, at
