"""Where tests of restart end: numbers that no distance fits, faults that can never act, specs that no run can mean."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from analysis import laws
from hpcckpt import planting
from hpcckpt.errors import SpecError
from hpcckpt.experiment import MOST_RANKS, Axes, Experiment, Fault, Settings, check
from hpcckpt.records import PHASES, TRAIN, Replica
from hpcckpt.restart import spec
from hpcckpt.restart.damage import damaged
from hpcckpt.restart.distance import Distance, distance
from hpcckpt.restart.spec import REFERENCE, Restart, saves_in, steps_of
from tests.unit.restarting import play

NAN, INF = math.nan, math.inf
LOST = "1 of them is no finite number on one side"

# ---- distances


def apart(one: list[Any], other: list[Any], dtype: Any) -> Distance:
    """The distance, and no warning on the way to it."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = distance(np.array(one, dtype), np.array(other, dtype))
    assert isinstance(found, Distance)
    return found


@pytest.mark.parametrize(
    ("one", "other", "dtype", "largest"),
    [
        (2**53, 2**53 + 1, np.int64, 1.0),
        (2**64 - 1, 2**64 - 2, np.uint64, 1.0),
        (0, 2**64 - 1, np.uint64, 2.0**64),
        (-(2**63), 2**63 - 1, np.int64, 2.0**64),
        (-(2**63), -(2**63) + 1, np.int64, 1.0),
        (-128, 127, np.int8, 255.0),
    ],
)
def test_whole_numbers_are_as_far_apart_as_they_are(one: int, other: int, dtype: Any, largest: float) -> None:
    for pair in (([one], [other]), ([other], [one])):
        assert apart(*pair, dtype) == Distance(1, 1, None, largest, "integers have no units in the last place")


def test_truth_values_differ_by_one() -> None:
    assert apart([True], [False], bool) == Distance(1, 1, None, 1.0, "truth values have no units in the last place")


@pytest.mark.parametrize(
    ("one", "other", "ulp", "largest", "reason"),
    [
        ([1.0, NAN, 2.0], [1.5, 1.0, 3.0], 1 << 22, 1.0, LOST),
        ([1.0, NAN, INF, 4.0], [1.5, 1.0, -INF, -INF], 1 << 22, 0.5, "3 of them are no finite numbers on one side"),
        ([NAN, INF], [1.0, 2.0], None, None, "none of them is a finite number on both sides"),
        ([0.0, 1.0], [-0.0, 1.0], 0, 0.0, "only the sign of zero differs"),
        ([0.0, 1.0], [-0.0, 1.5], 1 << 22, 0.5, None),
        ([0.0, NAN], [-0.0, 1.0], 0, 0.0, f"{LOST}; of the others, only the sign of zero differs"),
    ],
)
def test_numbers_are_measured_beside_what_is_none(
    one: list[float], other: list[float], ulp: int | None, largest: float | None, reason: str | None
) -> None:
    found = apart(one, other, np.float32)
    assert (found.ulp, found.largest, found.reason) == (ulp, largest, reason)


@pytest.mark.parametrize(("name", "ulp"), [("bfloat16", 1 << 7), ("float8_e4m3fn", 1 << 3), ("float8_e5m2", 1 << 2)])
def test_the_small_types_of_accelerators_have_units_in_the_last_place(name: str, ulp: int) -> None:
    dtype = getattr(pytest.importorskip("ml_dtypes"), name)
    assert apart([1.0, 2.0], [1.0, 4.0], dtype) == Distance(1, 2, ulp, 2.0)
    assert apart([-0.0, NAN], [1.0, 1.0], dtype).reason == LOST
    assert apart([1.0], [1.0], dtype) == Distance(0, 1, 0, 0.0)


def test_types_without_a_distance_say_so() -> None:
    assert apart([1.0], [2.0], np.longdouble).largest == 1.0
    assert str(apart([1.0], [2.0], np.longdouble).reason).endswith("no units in the last place are known")
    assert apart([1 + 1j], [1 + 3j], np.complex64) == Distance(
        1, 1, None, 2.0, "complex numbers have no units in the last place"
    )
    assert apart(["a"], ["b"], np.str_).reason == "str32: no distance is known"
    assert distance(np.array([None]), np.array([1], object)) == "object: objects have no bits that could be compared"


def test_the_largest_numbers_are_infinitely_far_apart_without_a_warning() -> None:
    top = np.finfo(np.longdouble).max
    assert apart([top], [-top], np.longdouble).largest == INF


def test_numbers_of_the_other_byte_order_count_alike() -> None:
    assert apart([1.0], [np.nextafter(np.float32(1), np.float32(2))], ">f4").ulp == 1


# ---- damage

W, MINE, OTHERS, POSITION = "model.w", "rng.numpy@00000", "rng.numpy@00001", "data.position"
ARRAYS = {W: np.zeros(2), MINE: np.zeros(2), OTHERS: np.ones(2), POSITION: np.array(3)}
KINDS = {W: "parameter", MINE: "rng", OTHERS: "rng", POSITION: "data_position"}
HINT = f"{OTHERS} is held by rank 1: plant it there"
FRESH = {key: array + 5 for key, array in ARRAYS.items()}


def planted(action: Any, rank: Any = 0, **more: Any) -> Fault:
    return Fault(**{"rank": rank, "at": "restore", "action": action, "leg": "restored", **more})


def test_a_rank_leaves_out_what_it_holds_itself() -> None:
    changed, words = damaged(ARRAYS, FRESH, KINDS, planted("drop", 1, what="rng"), 1)
    assert words == f"left out: {OTHERS}"
    assert [key for key in ARRAYS if changed[key].tobytes() != ARRAYS[key].tobytes()] == [OTHERS]
    assert damaged(ARRAYS, FRESH, KINDS, planted("flip", 1, what="rng*"), 1)[1] == f"one bit of {OTHERS}"


def test_without_a_rank_all_entries_count() -> None:
    words = damaged(ARRAYS, FRESH, KINDS, planted("drop", what="rng"))[1]
    assert words == f"left out: {MINE}, {OTHERS}"


@pytest.mark.parametrize(
    ("fault", "arrays", "message"),
    [
        (planted("drop", what=OTHERS), ARRAYS, f"no entry that it holds is of kind {OTHERS!r} or matches it; {HINT}"),
        (planted("flip", what="rng*1"), ARRAYS, f"no entry that it holds matches 'rng*1'; {HINT}"),
        (planted("drop", what="optimizer"), ARRAYS, "no entry that it holds is of kind 'optimizer' or matches it"),
        (planted("drop", what="parameter"), FRESH, "a start without a restore has the same model.w"),
        (planted("swap"), ARRAYS, "no two tensors of equal shape have other values"),
        (planted("shift"), {W: np.zeros(2)}, "it holds no data.position"),
        (planted("flip"), {POSITION: np.array(3)}, "no entry that it holds is a parameter"),
    ],
)
def test_what_would_change_nothing_on_a_rank_is_refused(fault: Fault, arrays: Any, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        damaged(arrays, FRESH, KINDS, fault, 0)
    assert str(caught.value) == f"faults: {fault.action!r} would change nothing on rank 0: {message}"


def test_two_entries_of_which_one_is_another_rank_s_are_not_exchanged() -> None:
    arrays = {"model.w": np.zeros(2), "optimizer.m@00001": np.ones(2), "optimizer.m@00000": np.zeros(2)}
    kinds = {"model.w": "parameter", "optimizer.m@00001": "optimizer", "optimizer.m@00000": "optimizer"}
    with pytest.raises(SpecError, match="no two tensors of equal shape have other values"):
        damaged(arrays, {}, kinds, planted("swap"), 0)


def test_what_some_ranks_have_to_lose_is_planted_on_all() -> None:
    """More ranks than were saved: a new rank's own random state is a fresh one already."""
    fault = planted("drop", "all", what="rng")
    assert damaged(ARRAYS, ARRAYS, KINDS, fault, 0)[1] == "left out: nothing"
    with pytest.raises(SpecError, match="a start without a restore has the same data"):
        damaged(ARRAYS, ARRAYS, KINDS, planted("drop", "all", what="data_position"), 0)


def test_a_live_state_is_changed_in_what_its_rank_holds(tmp_path: Path) -> None:
    fault = planted("flip", 1, at="step", leg="again", what="rng.numpy@00000", generation=3)
    with pytest.raises(SpecError, match="'flip' would change nothing on rank 1: no entry that it holds"):
        play(tmp_path, [fault])


# ---- faults that can never act


def refused(*faults: Fault, restart: Restart | None = None, interval: int = 2, steps: int = 7) -> str:
    """What an experiment's check says, leg by leg; nothing where all is well."""
    try:
        legs = [] if restart is None else ["reference", "again", "train", "restored"]
        for index, fault in enumerate(faults):
            taken = steps_of(fault.leg, restart, steps)
            planting.check_words(f"faults[{index}]", fault, "poll", legs)
            sizes = [(2, saves_in(taken, interval))]
            planting.check_numbers(f"faults[{index}]", fault, taken.stop, sizes, taken.start)
        planting.check_twice(faults)
    except SpecError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("leg", "kill", "first", "last"),
    [
        ("reference", None, 0, 6),
        ("again", None, 0, 6),
        ("train", None, 0, 2),
        ("train", 0, 0, 6),
        ("restored", None, 3, 6),
        ("restored", 0, 3, 6),
    ],
)
def test_a_fault_at_a_step_is_of_a_step_of_its_leg(leg: str, kill: int | None, first: int, last: int) -> None:
    def at(step: int) -> str:
        fault = Fault(rank=0, at="step", action="raise", leg=leg, generation=step)
        return refused(fault, restart=Restart(stop=2, kill=kill))

    assert at(first) == at(last) == ""
    expected = f"is no step of leg {leg!r}, which takes the steps {first} to {last}"
    assert at(first - 1) == f"faults[0].generation: {first - 1} {expected}"
    assert at(last + 1) == f"faults[0].generation: {last + 1} {expected}"


def test_a_state_fault_behind_the_last_step_of_its_leg_is_refused() -> None:
    fault = planted("flip", at="step", leg=TRAIN, generation=3)
    assert "3 is no step of leg 'train', which takes the steps 0 to 2" in refused(fault, restart=Restart(stop=2))


@pytest.mark.parametrize(
    ("leg", "at", "generation", "message"),
    [
        ("train", "gather", 0, ""),
        ("train", "gather", 1, "faults[0].generation: 1 must be at least 0 and less than 1"),
        ("restored", "before_save", 1, ""),
        ("restored", "before_save", 2, "faults[0].generation: 2 must be at least 0 and less than 2"),
        ("reference", "before_save", 2, ""),
    ],
)
def test_a_fault_of_a_save_is_of_a_save_of_its_leg(leg: str, at: str, generation: int, message: str) -> None:
    found = refused(Fault(rank=0, at=at, action="raise", leg=leg, generation=generation), restart=Restart(stop=2))
    assert found.startswith(message) and bool(found) == bool(message)


def test_where_no_save_follows_none_can_be_disturbed() -> None:
    fault = Fault(rank=0, at="before_save", action="raise", leg="restored")
    found = refused(fault, restart=Restart(stop=2), steps=4)
    assert found == (
        "faults[0].at: 'before_save' can never happen in leg 'restored', which takes the steps 3 to 3: "
        "no save falls behind them"
    )
    assert refused(planted("flip"), restart=Restart(stop=2), steps=4) == "", "it restores all the same"


def test_saves_are_counted_as_a_leg_takes_them(tmp_path: Path) -> None:
    """The last save that is foreseen happens."""
    fault = Fault(rank=0, at="before_save", action="raise", leg="restored", generation=1)
    with pytest.raises(Exception, match="planted fault at before_save 1"):
        play(tmp_path, [fault], settings={"steps": 7})
    assert saves_in(steps_of("restored", Restart(stop=2), 7), 2) == 2
    assert saves_in(range(10**12), 1) == 10**12 - 1 and saves_in(range(5, 5), 1) == 0
    assert saves_in(range(4, 7), 1) == 2 and saves_in(steps_of("elsewhere-1", Restart(stop=2), 7), 2) == 0


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (planted("flip", generation=0), "faults[0].generation: a leg restores once"),
        (planted("flip", seconds=1.0), "faults[0].seconds: 'flip' has no use for it"),
        (planted("flip", seconds=NAN), "faults[0].seconds: 'flip' has no use for it"),
        (planted("reorder", "all", at="step", leg="again", seconds=1.0), "faults[0].seconds: 'reorder' has no use"),
        (Fault(rank=0, at="step", action="hang", seconds=1.0), "faults[0].seconds: 'hang' has no use for it; leave"),
        (Fault(rank=0, at="step", action="kill", what="rng"), "faults[0].what: 'kill' has no use for it; leave it"),
    ],
)
def test_words_without_an_effect_are_refused(fault: Fault, message: str) -> None:
    assert refused(fault, restart=Restart(stop=2)).startswith(message)


def test_a_fault_that_is_listed_twice_is_refused() -> None:
    one, other = Fault(rank=0, at="step", action="raise"), Fault(rank=1, at="step", action="raise")
    assert refused(one, other) == ""
    assert refused(one, other, msgspec.structs.replace(one)) == (
        "faults[2]: the same as faults[0]; leave one of them out"
    )


# ---- specs


def refusal(restart: dict[str, Any], **settings: Any) -> str:
    """What the check of an experiment with this test of restart says."""
    axes = Axes(framework=["numpy_toy"], strategy=["single_writer"], format=["npz"], nodes=[2])
    chosen = Settings(**{"steps": 6, **settings}, restart=Restart(**{"stop": 2, **restart}))
    try:
        check(Experiment(name="x", question="?", axes=axes, settings=chosen))
    except SpecError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("kill", [None, 0])
@pytest.mark.parametrize("at", [*PHASES, "before_save", "step", "after_save"])
def test_a_rank_dies_in_a_phase_in_which_a_fault_can_be_planted(at: str, kill: int | None) -> None:
    possible = at in planting.FAULT_POINTS and at in PHASES
    found = refusal({"kill": kill, "kill_at": at})
    expected = "" if possible else f"settings.restart.kill_at: {at!r} is no phase that a save enters; "
    if possible and kill is None and at != "serialize+write":
        expected = "settings.restart.kill: is left out, so kill_at and kill_after_s would do nothing"
    assert found.startswith(expected) and bool(found) == bool(expected)
    assert at not in ("wait_before", "wait_after") or found


@pytest.mark.parametrize(
    ("restart", "settings", "message"),
    [
        ({"kill_after_s": INF}, {}, "settings.restart.kill_after_s: inf must be finite and at least 0"),
        ({"kill_after_s": NAN}, {}, "settings.restart.kill_after_s: nan must be finite"),
        ({"kill_after_s": -1.0}, {}, "settings.restart.kill_after_s: -1.0 must be finite and at least 0"),
        ({"dump_limit_bytes": -1}, {}, "settings.restart.dump_limit_bytes: -1 must be at least 0"),
        ({"elsewhere": [1, 3, 1]}, {}, "settings.restart.elsewhere: 1 is listed twice"),
        ({"elsewhere": [MOST_RANKS + 1]}, {}, f"settings.restart.elsewhere: 1000001 must be at most {MOST_RANKS}"),
        ({"again": 100}, {}, "settings.restart.again: 100 must be at most 99"),
        ({"stop": 60}, {}, "settings.restart.stop: 60 must be at least 1 and less than 5, the last step"),
        ({"stop": 0}, {}, "settings.restart.stop: 0 must be at least 1 and less than 5, the last step"),
    ],
)
def test_specs_that_no_run_can_mean(restart: dict[str, Any], settings: dict[str, Any], message: str) -> None:
    assert refusal(restart, **settings).startswith(message)


def test_two_steps_are_too_few_to_stop_between() -> None:
    with pytest.raises(SpecError, match=r"settings\.steps: 2 leave no step behind a save and a stop"):
        spec.check(Restart(stop=1), Settings(steps=2), [1], [2])


def test_the_limits_themselves_can_be_meant() -> None:
    assert refusal({"elsewhere": [MOST_RANKS, 1], "dump_limit_bytes": 0, "again": 99}) == ""
    assert refusal({"kill": 0, "kill_after_s": 0.5}) == ""
    assert refusal({"stop": 4}) == ""


def test_legs_without_a_test_of_restart_take_all_steps() -> None:
    assert steps_of(TRAIN, None, 7) == range(7) and steps_of(REFERENCE, Restart(stop=2), 7) == range(7)


# ---- replicas


@pytest.mark.parametrize("equal", [None, False])
@pytest.mark.parametrize(
    ("digests", "words"),
    [
        ("aba", "rank 1 holds other parameters"),
        ("baa", "rank 0 holds other parameters"),
        ("abac", "ranks 1, 3 hold other parameters"),
        ("ab", "rank 1 holds other parameters"),
        ("abba", "ranks 1, 2 hold other parameters"),
        ("abc", "ranks 1, 2 hold other parameters"),
    ],
)
def test_the_ranks_that_differ_from_most_are_named(digests: str, words: str, equal: bool | None) -> None:
    lines = {rank: [Replica(step=2, where="step", digest=d, equal=equal)] for rank, d in enumerate(digests)}
    found = laws.replicas("run", {"again": lines})
    assert (found["verdict"], found["detail"]) == (laws.BROKEN, f"again, step 2 (step): {words}")


def test_ranks_that_say_so_are_believed_where_digests_do_not_tell() -> None:
    lines = {rank: [Replica(step=2, where="end", digest="a", equal=False)] for rank in (0, 1)}
    found = laws.replicas("run", {"train": lines})
    assert found["detail"] == "train, step 2 (end): ranks 0, 1 hold other parameters"
    agreed = {rank: [Replica(step=2, where="end", digest="a", equal=None)] for rank in (0, 1)}
    assert laws.replicas("run", {"train": agreed})["verdict"] == laws.KEPT
