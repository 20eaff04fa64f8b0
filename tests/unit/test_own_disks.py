"""Nodes that write to disks of their own: who reads back, what counts as read, and what is deleted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from analysis import laws
from hpcckpt.cleanup import remove_tree
from hpcckpt.records import Verified
from hpcckpt.strategies._parts import PartsStrategy
from hpcckpt.strategies.base import Strategy
from hpcckpt.strategies.torch_dcp import TorchDcp
from tests.support import make_run
from tests.unit.test_continuation import make_leg


def read(generation: int, equal: bool | None, reason: str | None = None) -> Verified:
    return Verified(generation=generation, equal=equal, tensors=1, reason=reason)


@pytest.mark.parametrize(
    ("second", "verdict"),
    [(read(0, True), "kept"), (read(0, None, "pruned"), "not_measured"), (read(0, False), "broken")],
)
def test_a_generation_is_read_back_where_all_its_readers_did(second: Verified, verdict: str) -> None:
    assert laws.readback("c/r", [0], [read(0, True), second])["verdict"] == verdict


def test_generations_that_one_reader_left_out_are_not_counted() -> None:
    found = [read(0, True), read(1, True), read(1, None, "verify = ends"), read(2, True)]
    assert laws.readback("c/r", [0, 1, 2], found)["detail"].startswith("2 of 3 generations read back equal")


def test_empty_folders_above_go_with_a_run(tmp_path: Path) -> None:
    leg = tmp_path / "campaign" / "run" / "train"
    (leg / "generation-00000").mkdir(parents=True)
    (tmp_path / "campaign" / "other").mkdir()
    remove_tree(leg, above=2)
    assert [path.name for path in tmp_path.rglob("*")] == ["campaign", "other"]
    remove_tree(tmp_path / "campaign" / "other")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("strategy", "present", "able"),
    [
        (PartsStrategy, ["part00000-of-00002.npz"], False),
        (PartsStrategy, ["part00000-of-00002.npz", "part00001-of-00002.npz"], True),
        (TorchDcp, ["__1_0.distcp"], False),
        (TorchDcp, [".metadata", "__0_0.distcp"], True),
        (Strategy, [], False),
        (Strategy, ["whole.npz"], True),
    ],
)
def test_a_rank_can_go_back_to_what_it_can_read(
    tmp_path: Path, strategy: type[Strategy], present: list[str], able: bool
) -> None:
    for name in present:
        np.savez(tmp_path / f"{name}.npz", x=np.zeros(1))
        (tmp_path / f"{name}.npz").rename(tmp_path / name)
    assert strategy.holds(object.__new__(strategy), tmp_path, 0) is able
    assert strategy.holds(object.__new__(strategy), tmp_path / "pruned", 0) is False


@pytest.mark.parametrize(("asynchronous", "left"), [(False, [4]), (True, [3, 4])])
def test_a_complete_checkpoint_is_left_while_a_newer_one_is_written(
    tmp_path: Path, asynchronous: bool, left: list[int]
) -> None:
    leg = make_leg(make_run(settings={"steps": 6, "keep": 1}, interval_steps=1), tmp_path)
    leg.strategy.asynchronous = asynchronous  # type: ignore[union-attr, misc]
    leg.train()
    assert sorted(int(path.name[-5:]) for path in leg.root.glob("generation-*")) == left
    kept = type("Kept", (Strategy,), {"asynchronous": asynchronous}).kept(5, 1)
    assert kept == len(left)
