"""What lies in the files, counted from inventories whose truth is known."""

from __future__ import annotations

import time

import numpy as np
import polars as pl
import pytest

from analysis.contents import contents_rows, dragger_rows, file_rows, holdings_rows
from analysis.kept import columns
from hpcckpt.inventory import digest
from tests.unit.stored import SCHEMA


def frame(*pieces: dict) -> pl.DataFrame:
    usual = {
        "generation": 0, "step": 0, "file": "f0", "rank": 0, "node": "n0", "file_bytes": 100, "format": "npz",
        "tensor": "w", "label": None, "kind": "parameter", "dtype": "float32", "shape": "[1]", "offset_bytes": 0,
        "tensor_bytes": 100, "storage_bytes": None, "digest": "w", "replica_group": "all",
    }  # fmt: skip
    return pl.DataFrame([usual | piece for piece in pieces], schema=SCHEMA)


def on_ranks(count: int, **more: object) -> list[dict]:
    return [{"rank": rank, "file": f"f{rank}", "node": f"n{rank // 2}", **more} for rank in range(count)]


def test_the_two_numbers_of_redundancy_differ_where_equal_names_hold_different_contents() -> None:
    same = on_ranks(4)
    own = [piece | {"tensor": "b", "digest": f"b{piece['rank']}", "kind": "buffer"} for piece in on_ranks(4)]
    rows = {row["kind"]: row for row in contents_rows("r", frame(*same, *own))}
    assert (rows["parameter"]["replica_redundant_bytes"], rows["parameter"]["content_redundant_bytes"]) == (300, 300)
    assert (rows["buffer"]["replica_redundant_bytes"], rows["buffer"]["content_redundant_bytes"]) == (300, 0)


def test_equal_contents_under_other_names_and_kinds_are_copies_but_no_replicas() -> None:
    rows = contents_rows("r", frame({"tensor": "w"}, {"tensor": "ema", "kind": "other"}))
    assert sum(row["content_redundant_bytes"] for row in rows) == 100
    assert sum(row["replica_redundant_bytes"] for row in rows) == 0


@pytest.mark.parametrize("values", [np.zeros(50, np.float32), np.ones(600_000, np.float32), np.ones(7, np.int64)])
def test_constants_are_counted_apart_whatever_their_size(values: np.ndarray) -> None:
    piece = {"digest": digest(values), "tensor_bytes": values.nbytes, "dtype": str(values.dtype)}
    row = contents_rows("r", frame(*on_ranks(4, **piece)))[0]
    assert (row["content_redundant_bytes"], row["constant_bytes"]) == (0, 4 * values.nbytes)
    assert row["constant_redundant_bytes"] == 3 * values.nbytes
    assert [held["constant"] for held in holdings_rows("r", frame(*on_ranks(4, **piece)))] == [True]


def test_what_is_not_constant_is_not_taken_for_it() -> None:
    values = np.arange(50, dtype=np.float32)
    row = contents_rows("r", frame({"digest": digest(values), "tensor_bytes": 200}))[0]
    assert row["constant_bytes"] == 0


def test_compressed_files_are_shared_out_by_logical_bytes() -> None:
    rows = contents_rows("r", frame(*on_ranks(2, file_bytes=60), *on_ranks(2, tensor="m", digest="m", file_bytes=60)))
    assert (rows[0]["logical_bytes"], rows[0]["disk_bytes"]) == (400, 120)
    assert (rows[0]["content_redundant_bytes"], rows[0]["content_redundant_disk_bytes"]) == (200, 60)


def test_a_file_of_empty_tensors_keeps_its_bytes() -> None:
    row = contents_rows("r", frame({"tensor_bytes": 0, "kind": "container", "file_bytes": 70}))[0]
    assert (row["logical_bytes"], row["disk_bytes"]) == (0, 70)


def test_unknown_sizes_and_digests_are_null_and_not_zero() -> None:
    row = contents_rows("r", frame({"file_bytes": None}))[0]
    assert (row["disk_bytes"], row["replica_redundant_disk_bytes"], row["logical_bytes"]) == (None, None, 100)
    row = contents_rows("r", frame({"digest": None}))[0]
    assert row["content_redundant_bytes"] is row["unique_digest_bytes"] is row["constant_bytes"] is None
    assert holdings_rows("r", frame({"digest": None})) == []


def test_who_holds_what() -> None:
    found = holdings_rows("r", frame(*on_ranks(4), {"rank": 2, "file": "f2", "tensor": "rng", "digest": "x"}))
    held = {row["holders"]: (row["nodes"], row["copies"], row["tensors"], row["bytes_each"]) for row in found}
    assert held == {"0,1,2,3": (2, 4, 1, 100), "2": (1, 1, 1, 100)}


def test_a_view_that_drags_its_storage_is_named_and_one_that_shares_it_is_not() -> None:
    dragging = frame({"tensor_bytes": 100, "storage_bytes": 1000, "file_bytes": 1010})
    found = dragger_rows("r", dragging)
    assert [(row["tensor"], row["dragged_bytes"]) for row in found] == [("w", 900)]
    parts = [{"tensor": f"w{i}", "storage_bytes": 1000, "file_bytes": 1010} for i in range(10)]
    assert dragger_rows("r", frame(*parts)) == []
    assert dragger_rows("r", frame({"storage_bytes": 100, "file_bytes": 5000})) == []
    assert file_rows("r", dragging)[0]["storages_known"] == 1


def saves(count: int, **more: object) -> list[dict]:
    return [{"generation": g, "checkpoint_bytes": 10, "bytes_reason": None, **more} for g in range(count)]


def test_what_is_left_on_disk_by_the_strategy_s_rule() -> None:
    assert list(columns("single_writer", "all", saves(3)).values()) == [3, None, 30, None]
    assert list(columns("single_writer", 2, saves(3)).values()) == [2, 2, 20, None]
    assert [columns("chainermn_multi_node", 1, saves(made))["generations_kept"] for made in (10, 11, 16, 17)] == [
        10, 5, 10, 5,
    ]  # fmt: skip
    assert columns("chainermn_multi_node", "all", saves(2))["generations_most"] == 10
    assert columns("gone", "all", saves(1))["kept_reason"].startswith("this release knows no strategy gone")
    unknown = columns("single_writer", "all", saves(1, checkpoint_bytes=None, bytes_reason="no inventory"))
    assert (unknown["kept_bytes"], unknown["kept_reason"]) == (None, "no inventory")


def test_a_thousand_ranks_stay_cheap() -> None:
    ranks, generations, tensors = 1024, 4, 60
    each = pl.DataFrame({"rank": range(ranks)}).join(pl.DataFrame({"generation": range(generations)}), how="cross")
    many = each.join(pl.DataFrame({"tensor": [f"t{i}" for i in range(tensors)]}), how="cross")
    one = frame({}).drop("rank", "generation", "tensor", "digest", "file")
    whole = many.join(one, how="cross").with_columns(
        digest=pl.format("{}-{}", "generation", "tensor"), file=pl.format("g{}/{}", "generation", "rank")
    )
    begin = time.process_time()
    assert len(contents_rows("r", whole)) == generations
    assert len(holdings_rows("r", whole)) == generations
    assert time.process_time() - begin < 10
