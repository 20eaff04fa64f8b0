"""The mechanisms question on planted runs: copies, writers, spread, and what is impossible."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pytest

from analysis.collect import collect
from analysis.locate import impossible
from analysis.mechanisms import Mechanisms, copies, spread, writers
from analysis.model_parallel_claims import uneven_advice
from hpcckpt.records import INVENTORY_COLUMNS
from hpcckpt.rundir import RunDir
from tests.unit.planted import Plan, plant, read_trace


def inventory(path: Path, digests: Sequence[str | None], sizes: list[int], generations: int) -> None:
    """One file per rank with one parameter slice each: equal digests are copies."""
    rows = [
        {
            "generation": g, "step": 1, "file": f"g{g}/part{rank}", "rank": rank, "node": "n", "file_bytes": size,
            "format": "npz_plain", "tensor": "w", "label": "w", "kind": "parameter", "dtype": "uint8", "shape": "[8]",
            "offset_bytes": 0, "tensor_bytes": 100, "digest": digest, "storage_bytes": None, "replica_group": "all",
        }
        for g in range(generations)
        for rank, (digest, size) in enumerate(zip(digests, sizes, strict=True))
    ]  # fmt: skip
    pl.DataFrame([{key: row[key] for key in INVENTORY_COLUMNS} for row in rows]).write_parquet(path)


def planted(tmp_path: Path, digests: Sequence[str | None], sizes: list[int]) -> dict:
    path = plant(tmp_path, Plan(nodes=4, writers=(0, 1, 2, 3), strategy="replicated"))
    inventory(RunDir(path).leg("train").inventory, digests, sizes, 3)
    rows = Mechanisms().answer(collect([path], read_trace)).rows
    assert len(rows) == 1
    return rows[0]


def test_a_checkpoint_with_a_file_of_unknown_size_is_in_no_sum(tmp_path: Path) -> None:
    path = plant(tmp_path, Plan(nodes=2, writers=(0, 1), strategy="replicated"))
    file = RunDir(path).leg("train").inventory
    inventory(file, ["a", "b"], [110, 330], 3)
    gone = pl.col("file").is_in(["g1/part1", "g2/part1"])
    pl.read_parquet(file).with_columns(file_bytes=pl.when(~gone).then("file_bytes")).write_parquet(file)
    row = Mechanisms().answer(collect([path], read_trace)).rows[0]
    assert (row["checkpoint_bytes"], row["files"], row["spread"]) == (440, 2, 1.5)


def test_copies_on_four_ranks_are_three_quarters(tmp_path: Path) -> None:
    row = planted(tmp_path, ["same"] * 4, [110] * 4)
    assert (row["redundant_by_digest"], row["redundant_by_name"], row["files"]) == (0.75, 0.75, 4)
    found = copies(row)
    assert (found.verdict, found.value) == ("supports", 0.75)
    assert row["checkpoint_bytes"] == 440
    assert row["compression"] == pytest.approx(400 / 440)


def test_differing_contents_under_one_name_are_no_copies(tmp_path: Path) -> None:
    row = planted(tmp_path, ["a", "b", "c", "d"], [110] * 4)
    assert (row["redundant_by_digest"], row["redundant_by_name"]) == (0.0, 0.75)
    assert copies(row).verdict == "contradicts"


def test_without_digests_copies_are_not_measured(tmp_path: Path) -> None:
    row = planted(tmp_path, [None] * 4, [110] * 4)
    assert (row["redundant_by_digest"], row["redundant_by_name"]) == (None, 0.75)
    assert copies(row).verdict == "not_measured"


def test_an_uneven_spread_is_named_and_an_even_one_is_not(tmp_path: Path) -> None:
    even = planted(tmp_path / "a", list("abcd"), [100] * 4)
    uneven = planted(tmp_path / "b", list("abcd"), [300, 50, 25, 25])
    assert (even["spread"], spread(even).verdict) == (1.0, "contradicts")
    assert (uneven["spread"], spread(uneven).verdict) == (3.0, "supports")
    later = planted(tmp_path / "c", list("abcd"), [50_000, 50_000, 30_000_000, 50_000])
    assert "rank 2, the fullest in 3 of 3 checkpoints, holds 30.00 of 30.15 MB, 3.98 times" in spread(later).sentence


def test_uneven_shares_of_a_model_in_parts_have_one_advice_everywhere(tmp_path: Path) -> None:
    row = planted(tmp_path, list("abcd"), [300, 50, 25, 25])
    assert "whole tensors" in (spread(row).recommendation or "")
    parts = row | {"framework": "chainer_model_parallel"}
    assert spread(parts).recommendation == uneven_advice(True)
    assert spread(parts | {"writers_declared": 1}).recommendation == uneven_advice(False)


def test_writers_by_trace_against_writers_by_plan(tmp_path: Path) -> None:
    row = planted(tmp_path, list("abcd"), [100] * 4)
    assert (row["writers_declared"], row["writers_seen"], writers(row).verdict) == (4, 4, "supports")
    assert writers(row | {"writers_seen": 2}).verdict == "contradicts"
    unseen = writers(row | {"writers_seen": None, "writers_reason": "no I/O log of this rank"})
    assert (unseen.verdict, unseen.reason) == ("not_measured", "no I/O log of this rank")


def test_impossible_combinations_come_from_the_ledger_with_their_reason(tmp_path: Path) -> None:
    path = plant(tmp_path, Plan())
    entry = {"framework": "f", "strategy": "s", "format": "x", "reason": "x serves g, not f"}
    (path.parent / "campaign.json").write_text(json.dumps({"runs": [], "skipped": [entry]}))
    for where in (path, path.parent, path.parent.parent):
        assert impossible([where]) == [{"campaign": path.parent.name, **entry}]
    rows = Mechanisms().answer(collect([path], read_trace)).rows
    assert [row["reason"] for row in rows if not row["possible"]] == ["x serves g, not f"]
