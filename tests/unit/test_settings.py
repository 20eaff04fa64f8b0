"""Values that the types allow and no run can mean: settings, counts, names, and faults that never happen."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from hpcckpt.errors import SpecError
from hpcckpt.experiment import FAULT_POINTS, Axes, Experiment, Fault, Settings, check

AXES = Axes(framework=["numpy_toy"], strategy=["single_writer"], format=["npz_plain"], nodes=[2, 4])


def experiment(axes: dict[str, Any] | None = None, **changes: Any) -> Experiment:
    made = Experiment(name="x", question="?", axes=msgspec.structs.replace(AXES, **(axes or {})))
    return msgspec.structs.replace(made, **changes)


def refusal(made: Experiment) -> str:
    with pytest.raises(SpecError) as caught:
        check(made)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 1}, "settings.steps: 1 must be at least 2"),
        ({"steps": 2}, "axes.interval_steps: 2 must be less than settings.steps (2): no checkpoint would be written"),
        ({"batch_per_rank": 0}, "settings.batch_per_rank: 0 must be at least 1"),
        ({"keep": 0}, "settings.keep: 0 must be at least 1"),
        ({"leg_limit_s": 0.0}, "settings.leg_limit_s: 0.0 must be finite and more than 0"),
        ({"leg_limit_s": math.inf}, "settings.leg_limit_s: inf must be finite and more than 0"),
        ({"leg_limit_s": math.nan}, "settings.leg_limit_s: nan must be finite and more than 0"),
        ({"drain_limit_s": -1.0}, "settings.drain_limit_s: -1.0 must be finite and at least 0"),
        ({"drain_limit_s": math.nan}, "settings.drain_limit_s: nan must be finite and at least 0"),
        ({"seed": -1}, "settings.seed: -1 must be at least 0"),
        ({"include": []}, "settings.include: [] must name at least one kind of state; left out, it means all"),
    ],
)
def test_settings_that_no_run_can_mean(settings: dict[str, Any], message: str) -> None:
    assert refusal(experiment(settings=Settings(**settings))) == message


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({"nodes": [1, 0]}, "axes.nodes: 0 must be at least 1"),
        ({"nodes": [1_000_001]}, "axes.nodes: 1000001 must be at most 1000000"),
        ({"ranks_per_node": [-1]}, "axes.ranks_per_node: -1 must be at least 1"),
        ({"interval_steps": [0]}, "axes.interval_steps: 0 must be at least 1"),
    ],
)
def test_counts_that_no_run_can_have(axes: dict[str, Any], message: str) -> None:
    assert refusal(experiment(axes)) == message


def test_the_least_values_are_sound() -> None:
    least = Settings(steps=2, batch_per_rank=1, keep=1, leg_limit_s=0.1, drain_limit_s=0.0, seed=0, include=["rng"])
    check(experiment({"interval_steps": [1], "nodes": [1, 1_000_000]}, settings=least, repeats=1))


def test_less_than_one_repeat_is_refused() -> None:
    assert refusal(experiment(repeats=0)) == "repeats: 0 must be at least 1"


@pytest.mark.parametrize("name", ["", ".", "../x", "a/b", "-x", "a b", "a\n", "x" * 65])
def test_a_name_that_is_no_directorys_is_refused(name: str) -> None:
    assert refusal(experiment(name=name)).startswith(f"name: {name!r} must be 1 to 64 letters")


@pytest.mark.parametrize("name", ["a", "7", "scaling_2.b-c", "x" * 64])
def test_a_sound_name(name: str) -> None:
    check(experiment(name=name))


NEVER = "can never happen"


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"leg": "trian"}, "faults[0].leg: unknown value 'trian'; did you mean 'train'?"),
        ({"at": "gahter"}, "faults[0].at: unknown value 'gahter'; did you mean 'gather'?"),
        ({"at": "wait_after"}, "faults[0].at: unknown value 'wait_after'"),
        ({"action": "corrupt"}, f"faults[0].at: 'before_save' with action 'corrupt' {NEVER}"),
        ({"at": "after_save"}, f"faults[0].at: 'after_save' with action 'kill' {NEVER}"),
        (
            {"at": "after_save", "action": "corrupt", "leg": "control"},
            f"faults[0].at: 'after_save' {NEVER} in the control",
        ),
        ({"at": "gather", "leg": "control"}, f"faults[0].at: 'gather' {NEVER} in the control"),
        (
            {"rank": 4},
            "faults[0].rank: 4 must be at least 0 and less than 4, the largest number of ranks of any run",
        ),
        ({"rank": -1}, "faults[0].rank: -1 must be at least 0"),
        (
            {"generation": 3},
            "faults[0].generation: 3 must be at least 0 and less than 3, the largest number of generations",
        ),
        ({"generation": -1}, "faults[0].generation: -1 must be at least 0"),
        ({"at": "step", "generation": 7}, "faults[0].generation: 7 is no step of leg 'train', which takes"),
        ({"action": "sleep"}, "faults[0].seconds: 0.0 must be finite and more than 0"),
        ({"action": "sleep", "seconds": math.inf}, "faults[0].seconds: inf must be finite"),
        ({"seconds": math.nan}, "faults[0].seconds: nan must be finite"),
    ],
)
def test_a_fault_that_can_never_happen_is_refused(fault: dict[str, Any], message: str) -> None:
    planted = Fault(**{"rank": 0, "at": "before_save", "action": "kill", **fault})
    assert refusal(experiment(faults=[planted])).startswith(message)


def test_without_barriers_there_is_no_pause_to_damage_a_file_in() -> None:
    fault = Fault(rank=0, at="after_save", action="corrupt")
    check(experiment(faults=[fault]))
    assert NEVER in refusal(experiment(faults=[fault], settings=Settings(barrier="none")))


@pytest.mark.parametrize("at", FAULT_POINTS)
def test_a_fault_can_be_planted_wherever_a_rank_comes_by(at: str) -> None:
    action: Any = "corrupt" if at == "after_save" else "kill"
    check(experiment(faults=[Fault(rank=1, at=at, action=action, generation=2)]))
    if at in ("before_save", "step"):
        check(experiment(faults=[Fault(rank=1, at=at, action=action, leg="control")]))
