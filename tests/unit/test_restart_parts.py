"""The pure parts of a test of restart: distances, comparisons, what is carried, transplants, and its spec."""

from __future__ import annotations

import importlib
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcckpt import registry
from hpcckpt.errors import SpecError
from hpcckpt.experiment import Axes, Experiment, Fault, Settings, check, points, runs
from hpcckpt.records import Comparison, Difference, Digests
from hpcckpt.restart.carried import carried
from hpcckpt.restart.compare import (
    BACKWARD,
    FORWARD,
    IDS_ONLY,
    NOT_KEPT,
    REDUCTION_ORDER,
    Seen,
    compare,
    due,
    elsewhere,
    seen,
)
from hpcckpt.restart.distance import Distance, distance
from hpcckpt.restart.spec import Restart, extra_legs, last_step, planned_legs, restores
from hpcckpt.restart.transplants import MOST, cause, cure, next_leg, no_use

# ---- distance


@given(st.floats(width=32, allow_nan=False, allow_infinity=False), st.integers(0, 1000))
def test_so_many_steps_away_are_so_many_ulp(value: float, steps: int) -> None:
    here = np.array([value], np.float32)
    there = here.copy()
    for _ in range(steps):
        there = np.nextafter(there, np.float32(np.inf))
    if np.isfinite(there[0]) and here.tobytes() != there.tobytes():
        found = distance(here, there)
        zeros = int(here[0] <= 0 <= there[0])  # -0 and +0 have one place, and nextafter passes one of them
        assert isinstance(found, Distance) and found.ulp is not None and abs(found.ulp - steps) <= zeros


def test_the_worst_pair_is_far_and_finite() -> None:
    top = np.finfo(np.float64).max
    found = distance(np.array([top, 1.0]), np.array([-top, 1.0]))
    assert isinstance(found, Distance) and (found.elements, found.of_elements) == (1, 2)
    assert found.ulp == 2 * int(np.array(top).view(np.int64))


def test_what_is_no_number_has_no_distance() -> None:
    found = distance(np.array([np.nan, 1.0]), np.array([2.0, 1.0]))
    assert found == Distance(1, 2, None, None, "none of them is a finite number on both sides")


def test_whole_numbers_have_a_difference_and_no_ulp() -> None:
    reason = "integers have no units in the last place"
    assert distance(np.array([3, 5]), np.array([3, 9])) == Distance(1, 2, None, 4.0, reason)


def test_scalars_and_negative_zero() -> None:
    assert distance(np.array(0.0), np.array(-0.0)) == Distance(1, 1, 0, 0.0, "only the sign of zero differs")


def test_other_shapes_are_said() -> None:
    assert distance(np.zeros(2), np.zeros(3)) == "float64 [2] against float64 [3]"


# ---- comparison


def at(step: int, when: str = "step", lacking: dict[str, str] | None = None, **kinds: str) -> Digests:
    """Digests with one tensor `t` per kind."""
    plain = {kind: {"loss": digest} if kind == "loss" else {"t": digest} for kind, digest in kinds.items()}
    return Digests(step=step, when=when, kinds=plain, cost_ns=1, bytes=1, lacking=lacking or {})


BASE = {"parameter": "p", "optimizer": "o", "rng": "r", "loss": "0x1p+0", "gradient": "g", "data_order": "d"}


def leg(*ranks: list[Digests]) -> Seen:
    return seen(dict(enumerate(ranks)))


def nothing(*_: Any) -> None:
    return None


def judged(changed: dict[str, str], lacking: dict[str, str] | None = None) -> Comparison:
    """A leg that differs at step 2 on rank 1, in these kinds."""
    reference = leg(*([at(step, **BASE) for step in (1, 2)] for _ in range(2)))
    ours = leg([at(1, **BASE), at(2, **BASE)], [at(1, **BASE), at(2, lacking=lacking, **(BASE | changed))])
    return compare("again", "run_to_run", ours, reference, nothing, "reference")


def test_equal_bits_are_exact() -> None:
    found = judged({})
    assert found.exact and found.trains_exactly and found.points == 2 and found.cause is None


@pytest.mark.parametrize(
    ("changed", "kind", "why"),
    [
        ({"gradient": "x", "parameter": "x"}, "gradient", REDUCTION_ORDER),
        ({"loss": "0x1p+1", "gradient": "x"}, "loss", FORWARD),
        ({"data_order": "x", "loss": "0x1p+1"}, "data_order", "data_order"),
        ({"optimizer": "x", "parameter": "x"}, "optimizer", "optimizer"),
    ],
)
def test_the_first_kind_in_a_step_tells_the_cause(changed: dict[str, str], kind: str, why: str) -> None:
    found = judged(changed)
    assert found.first and (found.first.step, found.first.rank, found.first.kind) == (2, 1, kind)
    assert found.cause == why and found.first.ranks == [1]


def test_where_gradients_are_hidden_the_update_stands_for_them() -> None:
    found = judged({"optimizer": "x", "gradient": "x"}, lacking={"gradient": "hidden"})
    assert found.first and found.first.kind == "optimizer" and found.cause == REDUCTION_ORDER
    assert found.lacking == {"gradient": "hidden"}


def test_a_random_state_that_nothing_draws_from_leaves_training_exact() -> None:
    found = judged({"rng": "x"})
    assert found.exact is False and found.trains_exactly and found.training is None


def test_a_loss_is_its_own_value() -> None:
    found = judged({"loss": float(np.nextafter(np.float32(1), np.float32(2))).hex()})
    assert found.first and (found.first.ulp, found.first.elements) == (1, 1)
    found = judged({"loss": float(np.nextafter(1.0, 2.0)).hex()})
    assert found.first and found.first.ulp == 1, "of two losses in double precision"


def test_values_that_nobody_kept_are_said() -> None:
    found = judged({"parameter": "x"})
    assert found.first and found.first.elements is None and found.first.reason == NOT_KEPT


def test_a_tensor_that_one_side_lacks_is_a_difference() -> None:
    reference = leg([at(1, **BASE)])
    fewer = {kind: digest for kind, digest in BASE.items() if kind != "optimizer"}
    found = compare("x", "restart", leg([at(1, **fewer)]), reference, nothing, "reference")
    assert found.first and found.first.reason == "only the reference has it"


def test_what_was_never_recorded_is_not_compared() -> None:
    found = compare("x", "restart", leg([]), leg([at(1, **BASE)]), nothing, "reference")
    assert found.exact is None and found.reason == "the leg recorded no digests"
    found = compare("x", "restart", leg([at(9, **BASE)]), leg([at(1, **BASE)]), nothing, "reference")
    assert found.reason == "the reference's rank 0 has no digests of step 9" and found.exact is None
    assert Comparison(leg="x", about="restart", ranks=1, points=0).exact is None, "of nothing nothing is claimed"


@pytest.mark.parametrize(
    ("lost", "words"),
    [
        (("ours", 1, None), "rank 1 has no digests of step 1 (step)"),
        (("ours", 0, 2), "rank 0 has no digests of step 2 (step)"),
        (("theirs", 1, 2), "the reference's rank 1 has no digests of step 2"),
        (("both", None, 2), "rank 0 has no digests of step 2 (step)"),
    ],
)
def test_digests_that_are_missing_anywhere_leave_nothing_claimed(lost: tuple[str, Any, Any], words: str) -> None:
    sides = {}
    for side in ("ours", "theirs"):
        ranks = [[1, 2], [1, 2]]
        for rank in (0, 1):
            if lost[0] in (side, "both") and lost[1] in (rank, None):
                ranks[rank] = [step for step in ranks[rank] if lost[2] not in (step, None)]
        sides[side] = leg(*([at(step, **BASE) for step in steps] for steps in ranks))
    wanted = [("step", 1), ("step", 2)]
    found = compare("x", "run_to_run", sides["ours"], sides["theirs"], nothing, "reference", wanted)
    assert found.reason == words and found.exact is None and found.trains_exactly is None


def test_the_points_that_are_due() -> None:
    restart, killed = Restart(stop=2), Restart(stop=2, kill=0)
    assert due("again", restart, 4, None) == [("step", 0), ("step", 1), ("step", 2), ("step", 3)]
    assert due("train", restart, 4, None) == due("train", killed, 4, None) == [("step", 0), ("step", 1), ("step", 2)]
    assert due("restored", restart, 4, 2) == due("transplant-rng", restart, 4, 2) == [("loaded", 2), ("step", 3)]
    assert due("elsewhere-3", restart, 4, 2) == [("loaded", 2)]


def test_one_rank_alone_has_no_order_of_sums() -> None:
    found = compare(
        "x", "run_to_run", leg([at(1, **(BASE | {"gradient": "x"}))]), leg([at(1, **BASE)]), nothing, "reference"
    )
    assert found.cause == BACKWARD


def test_sample_ids_have_no_distance() -> None:
    found = judged({"data_order": "x"})
    assert found.first and found.first.reason == IDS_ONLY


def test_behind_a_restore_no_step_is_compared() -> None:
    loaded = at(1, "loaded", parameter="p", optimizer="o", rng="r")
    found = compare("restored", "restart", leg([loaded]), leg([at(1, **BASE)]), nothing, "reference")
    assert found.exact and found.points == 1


def test_on_other_ranks_only_what_is_shared_is_compared_with_rank_0() -> None:
    def state(when: str, rng: str, weights: str) -> Digests:
        kinds = {"parameter": {"w": weights}, "rng": {rng: "r"}}
        return Digests(step=1, when=when, kinds=kinds, cost_ns=1, bytes=1)

    reference = leg([state("step", "rng@00000", "a")])
    same = leg([state("loaded", "rng@00000", "a")], [state("loaded", "rng@00001", "a")])
    assert elsewhere("elsewhere-2", same, reference, nothing, "reference").exact
    other = leg([state("loaded", "rng@00000", "a")], [state("loaded", "rng@00001", "b")])
    found = elsewhere("elsewhere-2", other, reference, nothing, "reference")
    assert found.first and (found.first.rank, found.first.tensor) == (1, "w")


# ---- carried


def test_what_is_neither_as_saved_nor_as_fresh_was_altered_and_not_left_out() -> None:
    saved = leg([at(1, parameter="p", rng="r")], [at(1, parameter="p", rng="s")])
    fresh = [at(1, "fresh", parameter="f", rng="f") for _ in range(2)]
    after = [at(1, "loaded", parameter="q", rng=rng) for rng in ("r", "f")]
    restored = leg(*([fresh[rank], after[rank]] for rank in range(2)))
    found = {row.kind: (row.verdict, row.differing) for row in carried(restored, saved, 1)}
    assert found["parameter"] == ("altered", ["t (rank 0, 1)"])
    assert found["rng"] == ("partly", ["t (rank 1)"])


def test_of_states_that_were_not_seen_nothing_is_told() -> None:
    loaded = [at(1, "fresh", parameter="f"), at(1, "loaded", parameter="p")]
    before = [at(1, parameter="p")]
    for restored, saved, words in (
        (leg(loaded, loaded), leg(before, []), "rank 1 has no digests of what it saved behind step 1"),
        (leg(loaded, loaded[:1]), leg(*[before] * 2), "rank 1 has no digests of the state loaded at step 1"),
    ):
        rows = carried(restored, saved, 1)
        assert {(row.verdict, row.reason) for row in rows} == {("not_measured", words)}


def test_what_a_checkpoint_carries_is_told_by_three_states() -> None:
    kinds = {"parameter": "p", "optimizer": "o", "rng": "r", "other": "x"}
    reference = leg([at(1, **kinds)])
    fresh = kinds | {"parameter": "f", "optimizer": "f", "rng": "f"}
    restored = leg([at(1, "fresh", **fresh), at(1, "loaded", **(kinds | {"rng": "f"}))])
    found = {row.kind: row for row in carried(restored, reference, 1)}
    assert {kind: row.verdict for kind, row in found.items()} == {
        "parameter": "saved", "optimizer": "saved", "buffer": "not_applicable", "rng": "missing",
        "data_position": "not_applicable", "other": "unchanged",
    }  # fmt: skip
    assert found["rng"].differing == ["t (rank 0)"] and found["buffer"].reason


# ---- transplants

PLACE = Difference(step=2, when="loaded", rank=0, kind="rng", tensor="t")


def made(name: str, about: str = "transplant", exact: bool = False, trains: bool = False, *kinds: str) -> Comparison:
    return Comparison(
        leg=name, about=about, ranks=1, points=1, first=None if exact else PLACE,
        training=None if exact or trains else PLACE, kinds=list(kinds),
    )  # fmt: skip


def course(*found: Comparison) -> dict[str, Comparison]:
    return {each.leg: each for each in found}


RESTORED = made("restored", "restart", False, False, "buffer", "rng")


def test_kinds_are_tried_one_by_one_until_training_is_exact_then_all() -> None:
    found = course(RESTORED)
    assert next_leg(found) == "transplant-rng"
    unhelped = found | course(made("transplant-rng"))
    assert next_leg(unhelped) == "transplant-buffer"
    failed = course(msgspec.structs.replace(made("transplant-rng"), reason="the leg failed"))
    assert next_leg(found | failed) is None, "the next would fail alike"
    found |= course(made("transplant-rng", trains=True))
    assert next_leg(found) == "transplant-everything"
    found |= course(made("transplant-everything", exact=True))
    assert next_leg(found) is None
    assert cause(found) == ["rng"] and cure(found) == (["buffer", "rng"], "all")


def test_one_kind_needs_one_transplant() -> None:
    found = course(made("restored", "restart", False, True, "buffer"))
    assert next_leg(found) == "transplant-buffer"
    found |= course(made("transplant-buffer", exact=True))
    assert next_leg(found) is None and cause(found) == ["buffer"] and cure(found) == (["buffer"], "all")


def test_training_that_was_exact_before_is_no_cure() -> None:
    unhelped = made("transplant-buffer", "transplant", False, True)
    found = course(made("restored", "restart", False, True, "buffer"), unhelped)
    assert next_leg(found) is None and cause(found) is None and cure(found) is None


def test_what_is_needed_together_is_told_from_what_is_not() -> None:
    """Of three kinds two are needed: neither alone helps, all three do, and buffers can be left out again."""
    found = course(made("restored", "restart", False, False, "optimizer", "buffer", "rng"))
    tried = []
    while leg := next_leg(found):
        tried.append(leg)
        enough = {"optimizer", "rng"} <= set(leg.removeprefix("transplant-").split("+")) or leg.endswith("everything")
        found |= course(made(leg, "transplant", leg.endswith("everything"), enough))
    single = ["transplant-optimizer", "transplant-rng", "transplant-buffer"]
    assert tried == [*single, "transplant-everything", "transplant-optimizer+rng"]
    assert cause(found) == ["optimizer", "rng"] and cure(found) == (["optimizer", "buffer", "rng"], "all")
    assert len(tried) <= MOST


def test_where_nothing_helps_nothing_is_claimed() -> None:
    kinds = ("transplant-buffer", "transplant-rng", "transplant-everything")
    found = course(RESTORED, *map(made, kinds))
    assert next_leg(found) is None and cause(found) is None and cure(found) is None


def test_equal_state_that_trains_otherwise_leaves_the_sums() -> None:
    left = msgspec.structs.replace(made("transplant-buffer"), cause="reduction_order")
    found = course(made("restored", "restart", False, False, "buffer"), left)
    assert next_leg(found) is None and cause(found) == ["reduction_order"] and cure(found) is None


def test_a_kind_whose_transplant_moves_the_first_difference_is_a_cause_too() -> None:
    place = Difference(step=3, when="step", rank=0, kind="gradient", tensor="x", tensors=1)
    left = msgspec.structs.replace(made("transplant-optimizer"), cause="reduction_order", training=place)
    found = course(made("restored", "restart", False, False, "optimizer"), left)
    assert cause(found) == ["optimizer", "reduction_order"]


def test_chance_is_not_taken_for_a_cure() -> None:
    found = course(made("again", "run_to_run"), RESTORED)
    assert next_leg(found) is None and "without a restart" in str(no_use(found))


# ---- the spec


def experiment(restart: dict[str, Any], faults: list[Fault] | None = None, **changes: Any) -> Experiment:
    axes = Axes(
        framework=["numpy_toy"], strategy=["single_writer"], format=["npz"], nodes=[2], **changes.pop("axes", {})
    )
    settings = Settings(**{"steps": 7, **changes}, restart=Restart(**restart))
    return Experiment(name="x", question="?", axes=axes, settings=settings, faults=faults or [])


@pytest.mark.parametrize(
    ("restart", "changes", "message"),
    [
        ({"stop": 3}, {}, "settings.restart.stop: 3 is no multiple of interval_steps (2)"),
        ({"stop": 6}, {}, "settings.restart.stop: 6 must be at least 1 and less than 6, the last step"),
        ({"stop": 0}, {}, "settings.restart.stop: 0 must be at least 1"),
        ({"stop": 2, "kill": 2}, {}, "settings.restart.kill: 2 must be at least 0 and less than 2, the smallest"),
        ({"stop": 4, "kill": 0}, {"steps": 6}, "settings.restart.kill: no save follows the one at step 4"),
        ({"stop": 2, "kill": 0, "kill_at": "x"}, {}, "settings.restart.kill_at: 'x' is no phase"),
        ({"stop": 2, "elsewhere": [0]}, {}, "settings.restart.elsewhere: 0 must be at least 1"),
        ({"stop": 2}, {"barrier": "none"}, "settings.barrier: 'none' leaves no pause"),
    ],
)
def test_tests_of_restart_that_no_run_can_be(restart: dict[str, Any], changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        check(experiment(restart, **changes))
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"action": "drop"}, "faults[0].what: 'drop' says what it leaves out"),
        ({"action": "shift", "what": "rng"}, "faults[0].what: 'drop' says what it leaves out"),
        ({"action": "kill"}, "faults[0].action: 'kill' changes no state"),
        ({"action": "flip", "leg": "again"}, "faults[0].leg: only leg 'restored' restores"),
        ({"action": "flip", "at": "gather"}, "faults[0].at: 'flip' can happen at 'restore' and at 'step'"),
        ({"action": "reorder", "rank": 1}, "faults[0].rank: 'reorder' is of a sum of all ranks"),
        ({"action": "flip", "leg": "control"}, "faults[0].leg: unknown value 'control'"),
    ],
)
def test_state_faults_that_can_never_happen(fault: dict[str, Any], message: str) -> None:
    planted = Fault(**{"rank": "all", "at": "restore", "leg": "restored", **fault})
    with pytest.raises(SpecError) as caught:
        check(experiment({"stop": 2}, [planted]))
    assert str(caught.value).startswith(message)


def test_state_faults_need_a_test_of_restart() -> None:
    plain = experiment({"stop": 2}, [Fault(rank=0, at="step", action="flip")])
    plain = msgspec.structs.replace(plain, settings=Settings())
    with pytest.raises(SpecError, match=r"needs settings\.restart"):
        check(plain)


def test_switches_are_an_axis_of_these_runs_only() -> None:
    both = experiment({"stop": 2}, axes={"determinism": ["off", "on"]})
    check(both)
    assert [point.determinism for point in points(both)] == ["off", "on"]
    assert sum("deterministic-on" in run.run_id for run in runs(both, {})[:2]) == 1
    with pytest.raises(SpecError, match=r"axes.determinism: only runs that test restart"):
        check(msgspec.structs.replace(both, settings=Settings()))


def test_legs_and_their_ends() -> None:
    restart = Restart(stop=4, again=2, elsewhere=[1])
    assert planned_legs(restart) == ["reference", "again", "again-02", "train", "restored"]
    assert extra_legs(restart) == 13 and extra_legs(Restart(stop=4, transplant=False)) == 0
    assert last_step("train", restart, 9) == 4 and last_step("restored", restart, 9) == 8
    assert last_step("train", Restart(stop=4, kill=0), 9) == 8 and last_step("elsewhere-1", restart, 9) == 4
    assert [name for name in ("train", "again", "restored", "elsewhere-1", "transplant-rng") if restores(name)] == [
        "restored", "elsewhere-1", "transplant-rng",
    ]  # fmt: skip


def test_parts_are_compared_whole_on_other_ranks() -> None:
    def state(when: str, digest: str) -> Digests:
        return Digests(step=1, when=when, kinds={"parameter": {"w": digest}}, cost_ns=1, bytes=1)

    reference = leg([state("step", "half"), state("whole", "all")])
    ours = leg([state("loaded", "third"), state("whole", "all")])
    assert elsewhere("elsewhere-3", ours, reference, nothing, "reference").exact


@pytest.mark.parametrize("name", registry.names("hpcckpt.frameworks"))
def test_switches_change_nothing_unless_they_are_on(name: str) -> None:
    adapter = registry.load("hpcckpt.frameworks", name)
    assert adapter.environment("default") == adapter.environment("off") == {}
    assert all(isinstance(value, str) for value in adapter.environment("on").values())
    module = importlib.import_module(adapter.__module__)
    shared = importlib.import_module(adapter.__mro__[1].__module__)
    assert "Determinism" in f"{module.__doc__}{shared.__doc__}", "its switches are documented in one place"
