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


@pytest.mark.parametrize("text", [GOOD, GOOD + "[[faults]]\nrank = 0\nat = 'step'\naction = 'kill'\n"])
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
        (GOOD.replace('name = "toy"', ""), "missing required field name"),
        ("x = = 3", "not valid TOML: Invalid value (at line 1, column 5)"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(tmp_path: Path, text: str, message: str) -> None:
    assert load(tmp_path, text) == message


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
