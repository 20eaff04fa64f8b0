"""Axes to runs: what is expanded, what is refused, and what a run's identity rests on."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcckpt.errors import SpecError
from hpcckpt.experiment import (
    Axes,
    Experiment,
    Only,
    Settings,
    Size,
    fingerprint,
    for_size,
    points,
    runs,
    with_nodes,
)

IDENTITY = {"site": "local", "tracer": "none"}


def experiment(**changes: Any) -> Experiment:
    axes = {
        "framework": ["numpy_toy"],
        "strategy": ["single_writer"],
        "format": ["npz_plain"],
        **changes.pop("axes", {}),
    }
    return Experiment(name="x", question="?", axes=msgspec.convert(axes, Axes), **changes)


def test_every_combination_and_repeat_is_one_run() -> None:
    found = runs(experiment(axes={"nodes": [1, 2], "durable": [False, True]}, repeats=3), IDENTITY)
    assert len(found) == 12 and len({run.run_id for run in found}) == 12
    assert sorted({run.repeat for run in found}) == [1, 2, 3]


def test_odd_repeats_run_the_control_first_and_even_ones_last() -> None:
    for run in runs(experiment(axes={"nodes": [1]}, repeats=4), IDENTITY):
        assert run.legs == (["control", "train"] if run.repeat % 2 else ["train", "control"])


def test_order_is_shuffled_within_a_repeat_and_the_same_for_the_same_seed() -> None:
    spec = experiment(axes={"nodes": [1, 2, 3, 4, 5, 6]}, repeats=2)
    first, again = runs(spec, IDENTITY), runs(spec, IDENTITY)
    assert first == again
    assert [run.repeat for run in first] == [1] * 6 + [2] * 6
    assert [run.point.nodes for run in first[:6]] != [1, 2, 3, 4, 5, 6]
    other = runs(msgspec.structs.replace(spec, settings=Settings(seed=2)), IDENTITY)
    assert [r.point.nodes for r in other] != [r.point.nodes for r in first]


def test_only_rules_keep_the_ends() -> None:
    rule = Only(when={"durable": True}, nodes="ends")
    spec = experiment(axes={"nodes": [1, 2, 4, 8], "durable": [False, True]}, only=[rule])
    kept = {(p.nodes, p.durable) for p in points(spec)}
    assert kept == {(1, False), (2, False), (4, False), (8, False), (1, True), (8, True)}


def test_excluded_combinations_are_left_out() -> None:
    spec = experiment(
        axes={"nodes": [1, 2, 4], "durable": [False, True]}, exclude=[{"nodes": [1, 2], "durable": True}]
    )
    assert {(p.nodes, p.durable) for p in points(spec)} == {(1, False), (2, False), (4, False), (4, True)}
    with pytest.raises(SpecError, match="exclude: unknown axis 'node'; did you mean 'nodes'"):
        points(experiment(exclude=[{"node": 1}]))


def test_an_only_rule_may_list_values() -> None:
    rule = Only(when={"nodes": [2, 4]}, nodes=[4])
    assert [p.nodes for p in points(experiment(axes={"nodes": [1, 2, 4]}, only=[rule]))] == [1, 4]


def test_an_only_rule_for_an_unknown_axis_names_the_nearest() -> None:
    with pytest.raises(SpecError, match="unknown axis 'durabel'; did you mean 'durable'"):
        points(experiment(only=[Only(when={"durabel": True}, nodes="ends")]))


def test_an_empty_axis_is_refused() -> None:
    with pytest.raises(SpecError, match=r"axes\.nodes: an axis needs at least one value"):
        points(experiment(axes={"nodes": []}))


@pytest.mark.parametrize(
    ("largest", "expected"), [(8, [1, 2, 4, 8]), (6, [1, 2, 4, 6]), (1, [1]), (16, [1, 2, 4, 8, 16])]
)
def test_nodes_are_the_listed_counts_up_to_the_largest_and_itself(largest: int, expected: list[int]) -> None:
    assert with_nodes(experiment(), largest, None).axes.nodes == expected


@pytest.mark.parametrize(
    "bad", [{"largest": 0, "ranks_per_node": None}, {"largest": None, "ranks_per_node": 0}]
)
def test_less_than_one_node_or_rank_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match="must be at least 1"):
        with_nodes(experiment(), **bad)


def test_a_size_changes_axes_and_settings_by_name() -> None:
    spec = experiment(sizes={"small": Size(axes={"model": ["small"]}, settings={"steps": 3})})
    small = for_size(spec, "small")
    assert (small.axes.model, small.settings.steps) == (["small"], 3)
    assert for_size(spec, "full") == spec


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (Size(axes={"nodes": ["a"]}), r"sizes\.small\.axes\.nodes\[0\]: expected int, got str"),
        (Size(settings={"barrier": "pol"}), "settings.barrier: unknown value 'pol'; did you mean 'poll'"),
        (Size(settings={"stepz": 3}), "sizes.small.settings: unknown key 'stepz'; did you mean 'steps'"),
        (Size(axes={"modle": ["small"]}), "sizes.small.axes: unknown key 'modle'; did you mean 'model'"),
        (Size(settings={"steps": "many"}), "sizes.small.settings.steps: expected int, got str"),
    ],
)
def test_a_size_that_cannot_be_meant_is_refused(size: Size, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        for_size(experiment(sizes={"small": size}), "small")


@given(st.dictionaries(st.text(min_size=1), st.text(), max_size=4))
def test_identity_decides_the_run_id_whatever_the_order_of_its_keys(identity: dict[str, str]) -> None:
    spec = experiment(axes={"nodes": [1]}, repeats=1)
    turned = dict(reversed(list(identity.items())))
    assert runs(spec, identity)[0].run_id == runs(spec, turned)[0].run_id
    assert runs(spec, {**identity, "x": "y"})[0].run_id != runs(spec, {**identity, "x": "z"})[0].run_id


def test_fingerprint_is_the_same_on_every_machine() -> None:
    assert fingerprint({"b": 1, "a": [1, 2]}) == fingerprint({"a": [1, 2], "b": 1})
    assert fingerprint([1]) == "080a9ed428559ef602668b4c00f114f1a11c3f6b02a435f0bdc154578e4d7f22"
