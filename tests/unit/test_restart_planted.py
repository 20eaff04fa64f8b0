"""Planted truth: what is wrong with a restart is named, at its step and tensor; with nothing planted, nothing is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpcckpt.errors import SpecError
from hpcckpt.experiment import Fault
from hpcckpt.records import Comparison, RestartReport
from jobs.ranks import Ending
from jobs.restarts import Sequel
from tests.unit.restarting import job, play

WEIGHTS, VELOCITY = "model.weights", "optimizer.velocity"


def restored(found: RestartReport, leg: str = "restored") -> Comparison:
    return next(each for each in found.comparisons if each.leg == leg)


def planted(action: Any, rank: Any = "all", at: str = "restore", leg: str = "restored", **more: Any) -> list[Fault]:
    return [Fault(rank=rank, at=at, action=action, leg=leg, **more)]


def verdicts(found: RestartReport) -> dict[str, str]:
    return {row.kind: row.verdict for row in found.carried}


def test_with_nothing_planted_it_finds_nothing(tmp_path: Path) -> None:
    found, legs = play(tmp_path, restart={"elsewhere": [1, 3]})
    assert legs == ["reference", "again", "train", "restored", "elsewhere-1", "elsewhere-3"]
    assert all(each.exact and each.trains_exactly and each.cause is None for each in found.comparisons)
    assert [each.points for each in found.comparisons] == [6, 3, 4, 1, 1]
    assert verdicts(found) == {
        "parameter": "saved", "optimizer": "saved", "buffer": "not_applicable", "rng": "saved",
        "data_position": "saved", "other": "not_applicable",
    }  # fmt: skip
    assert found.cure is None and found.notes == ["no transplant: the restart is exact"]


def test_an_optimizer_that_is_left_out(tmp_path: Path) -> None:
    found, legs = play(tmp_path, planted("drop", what="optimizer"))
    first = restored(found).first
    assert first and (first.step, first.when, first.kind, first.tensor) == (2, "loaded", "optimizer", VELOCITY)
    assert first.ranks == [0, 1] and first.elements and first.elements <= (first.of_elements or 0) == 30720
    assert legs[4:] == ["transplant-optimizer"] and found.cure == ["optimizer"]
    assert restored(found).cause == "optimizer"
    assert restored(found, "transplant-optimizer").exact
    assert restored(found, "transplant-optimizer").transplanted == [VELOCITY]
    assert verdicts(found)["optimizer"] == "missing" and verdicts(found)["parameter"] == "saved"


def test_a_checkpoint_without_an_optimizer_is_found_without_a_fault(tmp_path: Path) -> None:
    found, _ = play(tmp_path, settings={"include": ["parameter", "rng", "data_position"]})
    assert found.cure == ["optimizer"] and verdicts(found)["optimizer"] == "missing"
    assert any(note == f"the checkpoint holds no {VELOCITY}" for note in found.notes)


def test_one_rank_s_random_state_that_is_left_out(tmp_path: Path) -> None:
    found, _ = play(tmp_path, planted("drop", rank=1, what="rng"))
    seen = restored(found)
    assert seen.first and (seen.first.kind, seen.first.tensor) == ("rng", "rng.numpy@00001")
    assert (seen.first.step, seen.first.when, seen.first.ranks) == (2, "loaded", [1])
    assert seen.training and (seen.training.step, seen.training.kind, seen.training.rank) == (3, "loss", 1)
    assert seen.training.ulp and seen.training.largest
    assert found.cure == ["rng"] and seen.cause == "rng"
    row = next(row for row in found.carried if row.kind == "rng")
    assert (row.verdict, row.entries, row.restored, row.differing) == ("partly", 2, 1, ["rng.numpy@00001 (rank 1)"])


def test_a_wrong_data_position(tmp_path: Path) -> None:
    found, legs = play(tmp_path, planted("shift"))
    seen = restored(found)
    assert seen.first and (seen.first.step, seen.first.tensor) == (2, "data.position")
    assert seen.first.largest == 1.0 and seen.first.ulp is None
    assert seen.training and (seen.training.step, seen.training.kind) == (3, "data_order")
    assert legs[4:] == ["transplant-data_position"] and found.cure == ["data_position"]


def test_two_tensors_that_are_exchanged(tmp_path: Path) -> None:
    found, legs = play(tmp_path, planted("swap"))
    seen = restored(found)
    assert seen.kinds == ["parameter", "optimizer"]
    assert seen.first and (seen.first.step, seen.first.when) == (2, "loaded")
    assert legs[4:] == ["transplant-optimizer", "transplant-parameter", "transplant-everything"]
    assert found.cure == ["parameter", "optimizer"]
    assert restored(found, "transplant-everything").exact


def test_one_flipped_bit(tmp_path: Path) -> None:
    found, _ = play(tmp_path, planted("flip", what=WEIGHTS))
    first = restored(found).first
    assert first and (first.step, first.tensor, first.elements, first.ulp) == (2, WEIGHTS, 1, 1)
    assert first.of_elements == 30720 and found.cure == ["parameter"]


def test_one_flipped_bit_on_one_rank_is_of_that_rank(tmp_path: Path) -> None:
    found, _ = play(tmp_path, planted("flip", rank=1, what=VELOCITY))
    first = restored(found).first
    assert first and (first.ranks, first.tensor, first.elements, first.tensors) == ([1], VELOCITY, 1, 1)


def test_another_order_of_the_sums(tmp_path: Path) -> None:
    found, legs = play(tmp_path, planted("reorder"), nodes=3)
    seen = restored(found)
    assert seen.kinds == [] and seen.first == seen.training
    assert seen.first and (seen.first.step, seen.first.when, seen.first.kind) == (3, "step", "gradient")
    assert seen.first.tensor == "gradient.weights" and seen.first.ulp
    assert seen.cause == "reduction_order" and legs[4:] == []
    assert "no transplant: the restored state has equal bits: nothing is left to transplant" in found.notes


def test_a_run_that_is_not_repeatable_is_told_from_a_restart(tmp_path: Path) -> None:
    faults = planted("reorder", at="step", leg="again", generation=4)
    found, _ = play(tmp_path, faults, nodes=3)
    again = restored(found, "again")
    assert again.first and (again.first.step, again.first.kind, again.cause) == (4, "gradient", "reduction_order")
    assert restored(found).exact


def test_beyond_the_limit_of_dumps_the_place_is_known_and_the_distance_is_not(tmp_path: Path) -> None:
    found, _ = play(tmp_path, planted("flip"), restart={"dump_limit_bytes": 1000, "transplant": False})
    first = restored(found).first
    assert first and first.tensor == WEIGHTS and first.elements is None and "limit of dumps" in str(first.reason)


def test_faults_that_would_do_nothing_are_refused(tmp_path: Path) -> None:
    for number, (fault, nodes) in enumerate(
        [(planted("drop", what="nonsense"), 1), (planted("reorder"), 2), (planted("flip", what="x"), 1)]
    ):
        with pytest.raises(SpecError):
            play(tmp_path / str(number), fault, nodes=nodes)


def test_the_same_number_of_ranks_is_not_elsewhere(tmp_path: Path) -> None:
    found, legs = play(tmp_path, restart={"elsewhere": [2]})
    assert "elsewhere-2" not in legs
    assert [each.leg for each in found.comparisons] == ["again", "train", "restored"]


def test_a_strategy_that_gives_each_rank_its_own_file_back_is_not_tried_elsewhere(tmp_path: Path) -> None:
    own = {"framework": "chainer_chainermn", "strategy": "chainermn_multi_node", "format": "npz"}
    paths, made = job(tmp_path, restart={"elsewhere": [1]}, **own)
    sequel = Sequel(paths, made)
    assert sequel.following() == []
    assert "declares that a restore needs as many ranks" in str(sequel.found["elsewhere-1"].reason)


def test_a_restore_that_fails_elsewhere_is_an_answer(tmp_path: Path) -> None:
    paths, made = job(tmp_path, restart={"elsewhere": [1]})
    sequel = Sequel(paths, made)
    sequel.after("elsewhere-1", Ending("rank 0 failed: 1 ranks cannot share out 4 heads"))
    (found,) = sequel.report().comparisons
    assert found.exact is None and str(found.reason).startswith("the leg failed: rank 0 failed")


def test_a_job_elsewhere_has_its_own_ranks(tmp_path: Path) -> None:
    sequel = Sequel(*job(tmp_path, nodes=4))
    assert sequel.job_of("restored").run.ranks == 4
    assert (sequel.job_of("elsewhere-3").run.ranks, sequel.job_of("elsewhere-3").run.point.nodes) == (3, 3)
