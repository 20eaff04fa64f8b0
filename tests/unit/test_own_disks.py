"""Nodes that write to disks of their own: who reads back, what counts as read, and what is deleted."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from analysis import laws
from hpcckpt.cleanup import may_stay, remove_tree
from hpcckpt.experiment import Job
from hpcckpt.leg import Leg
from hpcckpt.records import Verified, read_up_to_damage
from hpcckpt.rundir import LegDir
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


def saving(base: Path, keep: int) -> Leg:
    """A leg of five steps behind the first, each with a save."""
    return make_leg(make_run(settings={"steps": 6, "keep": keep}, interval_steps=1), base)


def read_back(leg: Leg, base: Path) -> dict[int, tuple[bool | None, str | None]]:
    """generation -> what the leg says of reading it back."""
    leg.gather_rows()
    leg.trace.close("ok")
    records = read_up_to_damage(LegDir(base / "train").rank_file(0))
    return {each.generation: (each.equal, each.reason) for each in records if isinstance(each, Verified)}


def test_what_the_rule_deleted_is_pruned_and_what_else_is_missing_was_lost(tmp_path: Path) -> None:
    leg = saving(tmp_path, keep=2)
    leg.train()
    shutil.rmtree(leg.directory(4))
    said = read_back(leg, tmp_path)
    assert said[0] == (None, "not verified: pruned")
    assert said[4] == (False, "cannot be read back: generation-00004/part00000-of-00001.npz is gone")


def test_a_launch_that_fell_back_prunes_what_is_left(tmp_path: Path) -> None:
    leg = saving(tmp_path, keep=1)
    leg.first_generation = 3  # an earlier launch came further, and has pruned generation 2
    leg.train()
    assert [path.name for path in leg.root.glob("generation-*")] == ["generation-00007"]


@pytest.mark.parametrize(("shared", "keep", "said"), [(True, False, False), (False, False, True), (False, True, False)])
def test_what_nobody_can_delete_is_said(tmp_path: Path, shared: bool, keep: bool, said: bool) -> None:
    run = make_run(settings={"keep_files": keep})
    made = Job(
        run=run, campaign="c", site={"scratch_shared": shared}, scratch="/tmp/x", virtual_nodes=False, tracer="none"
    )
    assert ("may stay in /tmp/x on the nodes' own disks" in may_stay(made)) is said
