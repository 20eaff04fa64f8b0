"""TOML into structs: what is wrong is said in one sentence with file, key and the nearest known word."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcckpt.errors import SpecError
from hpcckpt.experiment import for_size, points
from jobs import spec

GOOD = """
name = "toy"
question = "scaling"
[axes]
framework = ["numpy_toy"]
strategy = ["single_writer"]
format = ["npz_plain"]
"""
KILL = "[[faults]]\nrank = 0\nat = 'step'\naction = 'kill'\n"
BELOW_ONE = "must be at least 0 and less than 1"


def load(tmp_path: Path, text: str) -> str:
    """The error of an experiment file, without the file's name; empty where there is none."""
    path = tmp_path / "x.toml"
    path.write_text(text)
    try:
        spec.load_experiment(str(path))
    except SpecError as error:
        message = str(error)
        assert message.startswith(f"{path}: ")
        assert "\n" not in message
        return message.removeprefix(f"{path}: ")
    return ""


@pytest.mark.parametrize("text", [GOOD, GOOD + KILL])
def test_a_sound_file_is_read(tmp_path: Path, text: str) -> None:
    assert load(tmp_path, text) == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD.replace("strategy", "stratgey"), "unknown key 'axes.stratgey'; did you mean 'strategy'?"),
        (GOOD + "[settigns]\n", "unknown key 'settigns'; did you mean 'settings'?"),
        (GOOD + "[[faults]]\nrnk = 1\n", "unknown key 'faults[0].rnk'; did you mean 'rank'?"),
        (GOOD + "[sizes.small]\naxis = {}\n", "unknown key 'sizes.small.axis'; did you mean 'axes'?"),
        (
            GOOD + "[sizes.small.settings]\nstepps = 3\n",
            "sizes.small.settings: unknown key 'stepps'; did you mean 'steps'?",
        ),
        (
            GOOD.replace("single_writer", "single_write"),
            "axes.strategy: unknown strategy 'single_write'; did you mean 'single_writer'?",
        ),
        (
            GOOD + "[sizes.full.axes]\nmodel = ['smal']\n",
            "sizes.full.axes.model: unknown model 'smal'; did you mean 'small'?",
        ),
        (GOOD + "nodes = ['a']\n", "axes.nodes[0]: expected int, got str"),
        (GOOD + "nodes = [0]\n", "axes.nodes: 0 must be at least 1"),
        (GOOD + "nodes = []\n", "toy: axes.nodes: an axis needs at least one value"),
        (GOOD.replace('name = "toy"', ""), "missing required key 'name'; add it"),
        (GOOD.replace('format = ["npz_plain"]', ""), "missing required key 'axes.format'; add it"),
        (
            GOOD + "[settings]\nbarrier = 'pol'\n",
            "settings.barrier: unknown value 'pol'; did you mean 'poll'?",
        ),
        (
            GOOD + "[settings]\nkeep = 'x'\n",
            "settings.keep: unknown value 'x'; known: all or a whole number",
        ),
        (
            GOOD + "[settings]\ninclude = ['parametr']\n",
            "settings.include[0]: unknown value 'parametr'; did you mean 'parameter'?",
        ),
        (
            GOOD + "[[only]]\nwhen = {}\nnodes = 'end'\n",
            "only[0].nodes: unknown value 'end'; did you mean 'ends'?",
        ),
        (
            GOOD + "[sizes.small.settings]\nkeep = 'al'\n",
            "sizes.small.settings.keep: unknown value 'al'; did you mean 'all'?",
        ),
        (GOOD + "[sizes.small.axes]\nnodes = ['a']\n", "sizes.small.axes.nodes[0]: expected int, got str"),
        (GOOD + "[sizes.small.axes]\nnodes = 2\n", "sizes.small.axes.nodes: expected array, got int"),
        (GOOD + "[sizes.small.axes]\nnodes = [0]\n", "sizes.small.axes.nodes: 0 must be at least 1"),
        (
            GOOD + "[sizes.full]\n[[sizes.small.only]]\nwhen = {}\n",
            "missing required key 'sizes.small.only[0].nodes'; add it",
        ),
        (GOOD + "[sizes]\nfull = {}\nsmall = 3\n", "sizes.small: expected object, got int"),
        (GOOD + "[sizes.smal]\n", "unknown key 'sizes.smal'; did you mean 'small'?"),
        ("repeats = 0\n" + GOOD, "repeats: 0 must be at least 1"),
        (
            GOOD + "[sizes.full.settings]\nsteps = 2\n",
            "sizes.full.axes.interval_steps: 2 must be less than settings.steps (2): no checkpoint would be written",
        ),
        (
            GOOD + "nodes = [2]\n" + KILL.replace("0", "1") + "[sizes.small.axes]\nnodes = [1]\n",
            f"faults[0].rank: 1 {BELOW_ONE}, the largest number of ranks of any run (in size 'small')",
        ),
        (
            GOOD + "[[exclude]]\nframework = 'numpy_to'\n",
            "exclude[0].framework: 'numpy_to' is no value of axes.framework; did you mean 'numpy_toy'?",
        ),
        (
            GOOD + "[[only]]\nwhen = { format = ['npz_plain', 'npz_plane'] }\nnodes = 'ends'\n",
            "only[0].when.format: 'npz_plane' is no value of axes.format; did you mean 'npz_plain'?",
        ),
        (
            GOOD + "[[sizes.small.only]]\nwhen = { durable = 'true' }\nnodes = 'ends'\n",
            "sizes.small.only[0].when.durable: 'true' is no value of axes.durable; known: false",
        ),
        (
            GOOD + "[[exclude]]\nnodes = true\n",
            "exclude[0].nodes: True is no value of axes.nodes; known: 1, 2, 4, 8",
        ),
        ("x = = 3", "not valid TOML: Invalid value (at line 1, column 5)"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(tmp_path: Path, text: str, message: str) -> None:
    assert load(tmp_path, text) == message


def test_a_rule_may_name_what_only_one_size_has(tmp_path: Path) -> None:
    rule = "[[exclude]]\nnodes = 64\n[sizes.full.axes]\nnodes = [2, 64]\n"
    assert load(tmp_path, GOOD + rule) == ""


def test_an_unknown_experiment_names_the_known_ones() -> None:
    with pytest.raises(SpecError, match=r"unknown experiment 'scalign'; did you mean 'scaling'\?"):
        spec.load_experiment("scalign")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"no\.toml: cannot be read"):
        spec.load_experiment(str(tmp_path / "no.toml"))


@pytest.mark.parametrize("name", [path.stem for path in spec.EXPERIMENTS.glob("*.toml")])
def test_every_experiment_of_the_project_is_sound(name: str) -> None:
    _, experiment = spec.load_experiment(name)
    assert experiment.name == name


def test_scaling_saves_durably_at_both_ends_only_on_a_small_site() -> None:
    _, experiment = spec.load_experiment("scaling")
    small = [(p.nodes, p.durable) for p in points(for_size(experiment, "small"))]
    assert sorted(small) == [(1, False), (1, True), (2, False), (4, False), (8, False), (8, True)]
    assert {p.model for p in points(for_size(experiment, "full"))} == {"resnet50"}
