"""Chainer on real ranks: models, first steps, and what its own mechanisms leave on disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from hpcckpt import registry
from hpcckpt.records import Replica, Verified
from hpcckpt.rundir import RunDir
from tests.contract.program import Tiny
from tests.support import launch, make_run, make_run_dir, mpirun, of, phase_s, trace

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

Rows = list[dict[str, Any]]


def facts(mode: str, ranks: int, base: Path) -> list[dict[str, Any]]:
    done = mpirun(ranks, ["-m", "tests.integration.chainer_program", mode, str(base)])
    assert done.returncode == 0, done.stdout + done.stderr
    found: list[dict[str, Any]] = json.loads((base / f"{mode}.json").read_text())
    return found


def run_leg(base: Path, ranks: int, strategy: str, **settings: Any) -> tuple[RunDir, Rows]:
    """One leg of training and saving; its run directory and its inventory."""
    chosen = {"framework": "chainer_chainermn", "model": "resnet20", "format": "npz", **settings.pop("axes", {})}
    run = make_run(nodes=ranks, strategy=strategy, settings={"batch_per_rank": 4, **settings}, **chosen)
    paths = make_run_dir(base, run)
    done = launch(paths, run)
    assert done.returncode == 0, done.stdout + done.stderr
    return paths, pq.read_table(paths.leg("train").inventory).to_pylist()


def redundant_share(rows: Rows, kind: str) -> float:
    """Share of a kind's bytes that another file of the generation holds already: same tensor, slice and digest."""
    of_kind = [row for row in rows if row["kind"] == kind]
    once = {(row["generation"], row["label"], row["digest"]): row["tensor_bytes"] for row in of_kind}
    return 1 - sum(once.values()) / sum(row["tensor_bytes"] for row in of_kind)


def test_every_model_is_built_as_described(tmp_path: Path) -> None:
    (found,) = facts("models", 1, tmp_path)
    assert set(found) == set(registry.names("hpcckpt.models"))
    for name, counted in found.items():
        model = registry.load("hpcckpt.models", name)
        assert counted == [model.parameter_count(), model.buffer_count(), [2, model.classes]], name


def test_no_step_is_lost_to_a_broadcast(tmp_path: Path) -> None:
    for own in facts("first_step", 2, tmp_path):
        assert own["ours"]["updates"] == 1 and len(own["ours"]["changed"]) == 8
        assert own["plain"] == {"updates": 0, "changed": []}, "ChainerMN's first update only broadcasts"
        assert own["frozen"]["changed"] and not [n for n in own["frozen"]["changed"] if "layer0" in n]


@pytest.mark.parametrize(
    ("strategy", "ranks"),
    [
        *((name, 4) for name in ("chainermn_multi_node", "chainermn_replica_sets", "sharded")),
        pytest.param("chainermn_multi_node", 8, marks=pytest.mark.long),
        pytest.param("chainermn_replica_sets", 8, marks=pytest.mark.long),
    ],
)
def test_copies_of_parameters_are_seen_by_digest(tmp_path: Path, strategy: str, ranks: int) -> None:
    paths, rows = run_leg(tmp_path, ranks, strategy, steps=3, digest_every_step=True)
    writers = {row["rank"] for row in rows}
    copies = ranks if strategy == "chainermn_multi_node" else 1
    assert len(writers) == {"chainermn_replica_sets": 1}.get(strategy, ranks)
    assert redundant_share(rows, "parameter") == pytest.approx(1 - 1 / copies)
    assert redundant_share(rows, "optimizer") == pytest.approx(1 - 1 / copies)
    saved = sum(row["tensor_bytes"] for row in rows if row["kind"] == "parameter")
    assert saved == copies * 4 * registry.load("hpcckpt.models", "resnet20").parameter_count()
    for rank in range(ranks):
        assert all(replica.equal for replica in of(trace(paths, rank), Replica)), f"rank {rank}"
    assert [verified.equal for verified in of(trace(paths, 0), Verified)] == [True]


@pytest.fixture(scope="module")
def twelve(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RunDir, Rows]:
    """Twelve generations of the multi-node checkpointer on two ranks: scratch, run directory, inventory."""
    base, axes = tmp_path_factory.mktemp("twelve"), {"interval_steps": 1}
    paths, rows = run_leg(base, 2, "chainermn_multi_node", axes=axes, steps=13, verify="all")
    return base / "scratch" / "train" / "generations", paths, rows


def test_every_rank_saves_its_own_statistics_and_no_random_state(twelve: tuple[Path, RunDir, Rows]) -> None:
    rows = [row for row in twelve[2] if row["generation"] == 0]
    assert {row["kind"] for row in rows} == {
        *("parameter", "optimizer", "buffer", "other", "data_position", "container")
    }
    assert redundant_share(rows, "buffer") == 0, "each rank has its own batch-norm statistics"
    assert redundant_share(rows, "optimizer") == pytest.approx(0.5)
    assert {row["file"] for row in rows} == {f"generations/trainer.{rank}.2" for rank in range(2)}
    assert {row["tensor"] for row in rows if row["kind"] == "container"} == {
        "_snapshot_elapsed_time",
        "extension_triggers/trainer/previous_iteration",
        "extension_triggers/trainer/previous_epoch_detail",
    }


def test_the_multi_node_checkpointer_prunes_as_it_does(twelve: tuple[Path, RunDir, Rows]) -> None:
    """Eleven files bring it down to five; what it removed is inventoried and not called damaged."""
    directory, paths, rows = twelve
    left = {path.name for path in directory.iterdir()}
    assert left == {f"trainer.{rank}.{iteration}" for rank in range(2) for iteration in range(8, 14)}
    assert {row["generation"] for row in rows} == set(range(12)) and all(row["file_bytes"] for row in rows)
    verified = of(trace(paths, 0), Verified)
    assert [v.equal for v in verified] == [None] * 6 + [True] * 6
    assert {v.reason for v in verified[:6]} == {"not verified: pruned"}
    waited = [phase_s(trace(paths, 1), "wait_inside", generation) > 0 for generation in range(12)]
    assert waited == [generation == 10 for generation in range(12)], "it waits in a collective only to prune"


@pytest.fixture(scope="module")
def saved_by_two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A generation of the multi-node checkpointer, saved by two ranks after two updates."""
    base = tmp_path_factory.mktemp("saved-by-two")
    facts("multi_node_save", 2, base)
    return base


@pytest.mark.parametrize(("ranks", "iteration"), [(4, 0), (1, 2)], ids=["more", "fewer"])
def test_the_multi_node_checkpointer_needs_the_same_ranks(saved_by_two: Path, ranks: int, iteration: int) -> None:
    """Alone, it says nothing: more ranks start anew, fewer take the files of their numbers. We refuse both."""
    for own in facts("multi_node_restore", ranks, saved_by_two):
        assert f"saved by 2 ranks, and this job has {ranks}: ChainerMN's checkpointer" in own["refused"]
        assert own["iteration"] == iteration


def test_the_multi_node_checkpointer_restores_on_the_same_ranks(saved_by_two: Path) -> None:
    found = facts("multi_node_restore", 2, saved_by_two)
    assert [(own["refused"], own["iteration"]) for own in found] == [(None, 2)] * 2


def test_chainer_s_hdf5_snapshot_is_neither_compressed_nor_loadable(tmp_path: Path) -> None:
    """The reason why `chainer_snapshot` does not offer it: as soon as Chainer can, this test says so."""
    (own,) = facts("hdf5", 1, tmp_path)
    assert own["error"] == "AttributeError"
    assert not any(own["compressed"].values())


def test_model_parallel_computes_what_one_rank_computes(tmp_path: Path) -> None:
    for own in facts("stages", 3, tmp_path):
        assert own["count"] == Tiny.parameter_count()
        assert own["loss"] == pytest.approx(own["whole"], rel=1e-5)
        assert own["apart"] < 1e-3 * own["moved"]


def test_one_replica_set_loses_the_layers_of_other_ranks(tmp_path: Path) -> None:
    found = facts("replica_sets", 2, tmp_path)
    everything = sorted(name for own in found for name in own["own"])
    assert found[0]["one"] == found[0]["own"], "by default one set is assumed: only rank 0's layers are saved"
    assert found[0]["each"] == everything


@pytest.mark.parametrize("strategy", ["single_writer", "chainermn_multi_node"])
def test_model_parallel_holds_nothing_twice(tmp_path: Path, strategy: str) -> None:
    axes = {"framework": "chainer_model_parallel", "model": "small"}
    paths, rows = run_leg(tmp_path, 2, strategy, axes=axes, steps=3)
    assert redundant_share(rows, "parameter") == 0
    saved = sum(row["tensor_bytes"] for row in rows if row["kind"] == "parameter")
    assert saved == 4 * registry.load("hpcckpt.models", "small").parameter_count()
    for rank in range(2):
        found = {(replica.equal, replica.reason) for replica in of(trace(paths, rank), Replica)}
        assert found == {(None, "no parameter is replicated: each rank holds a part of its own")}
    assert [verified.equal for verified in of(trace(paths, 0), Verified)] == [True]


def test_only_compressed_sizes_follow_the_content(tmp_path: Path) -> None:
    """Two generations of the same tensors: plain files are of one size, compressed ones are not."""
    sizes = {}
    for form in ("npz", "npz_plain"):
        base = tmp_path / form
        base.mkdir()
        _, rows = run_leg(base, 2, "chainermn_replica_sets", axes={"format": form}, steps=5)
        sizes[form] = [{row["file_bytes"] for row in rows if row["generation"] == g} for g in (0, 1)]
    assert sizes["npz_plain"][0] == sizes["npz_plain"][1]
    assert sizes["npz"][0] != sizes["npz"][1]
    assert max(sizes["npz"][0] | sizes["npz"][1]) < min(sizes["npz_plain"][0])
