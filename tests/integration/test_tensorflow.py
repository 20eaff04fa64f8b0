"""TensorFlow on real ranks: that replicas stay equal, and what each way to save takes along and writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcckpt import registry
from hpcckpt.records import Replica, Step, Window
from hpcckpt.tracing.io.base import Absent
from hpcckpt.tracing.io.iotrace import IotraceTracer
from hpcckpt.tracing.iotrace_events import Op, read_events
from tests.contract.program import combinations
from tests.integration.tensorflow_program import NAME
from tests.support import closing, launch, make_run, make_run_dir, mpirun, of, trace

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]
PROGRAM = ["-m", "tests.integration.tensorflow_program"]
RANKS = 2
NOT_IN_MECHANISMS = {"rng", "data_position"}
"""Kinds of state that Keras's own files leave out."""


@pytest.fixture(scope="module")
def counts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    file = tmp_path_factory.mktemp("counts") / "counts.json"
    done = mpirun(1, [*PROGRAM, "counts", str(file)], 400)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(file.read_text())
    return found


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("saves")
    done = mpirun(RANKS, [*PROGRAM, "saves", str(base)], 800)
    assert done.returncode == 0, done.stderr
    return base


@pytest.fixture(scope="module")
def saves(place: Path) -> list[list[dict[str, Any]]]:
    """What each rank saw of each save."""
    ranks: list[list[dict[str, Any]]] = json.loads((place / "saves.json").read_text())["ranks"]
    assert {(own["strategy"], own["format"]) for own in ranks[0]} == set(combinations(NAME))
    return ranks


def label(own: dict[str, Any]) -> str:
    return f"{own['strategy']}/{own['format']}, generation {own['generation']}"


def test_every_architecture_has_the_described_values(counts: dict[str, Any]) -> None:
    assert counts.keys() > {registry.load("hpcckpt.models", n).name for n in registry.names("hpcckpt.models")}
    for name, found in counts.items():
        assert [found["keras"]["parameter"], found["keras"]["buffer"]] == found["described"], name
        assert found["outputs"] == [None, 10], name


def test_dropout_brings_random_states_and_nothing_else_does(counts: dict[str, Any]) -> None:
    states = {name: found["keras"]["rng"] // 2 for name, found in counts.items()}
    assert (states["alexnet"], states["vgg16"], states["every_kind"], states["resnet50"]) == (2, 1, 2, 0)


def test_parameters_are_equal_on_all_ranks_and_the_first_step_is_outside_the_window(tmp_path: Path) -> None:
    settings = {"digest_every_step": True, "steps": 5, "keep": 1, "verify": "all"}
    axes = {"framework": NAME, "model": "resnet20", "strategy": "tf_checkpoint", "format": "tf_bundle"}
    run = make_run(settings=settings, **axes)
    paths = make_run_dir(tmp_path, run)
    done = launch(paths, run)
    assert done.returncode == 0, done.stderr
    for rank in range(RANKS):
        records = trace(paths, rank)
        assert closing(records).status == "ok"
        assert all(found.equal for found in of(records, Replica))
        tracing, *others = of(records, Step)
        assert tracing.end_ns <= of(records, Window)[0].begin_ns <= others[0].begin_ns
    digests = [{(r.step, r.where): r.digest for r in of(trace(paths, rank), Replica)} for rank in range(RANKS)]
    assert digests[0] == digests[1] and len(set(digests[0].values())) == 5


def test_horovods_optimizer_is_caught_as_it_does_not_average(tmp_path: Path) -> None:
    """On Keras 3 it trains on without a word; law 3 stops the run after the first step."""
    run = make_run(framework=NAME, format="tf_bundle")
    paths = make_run_dir(tmp_path, run)
    done = mpirun(RANKS, [*PROGRAM, "rank", str(paths.path), "train"], 400)
    assert done.returncode != 0
    error = "RunError: parameters differ between ranks after step 0: ranks [1] against rank 0"
    ends = [closing(trace(paths, rank)) for rank in range(RANKS)]
    assert error in {end.error for end in ends}
    assert {end.status for end in ends} <= {"failed", "terminated"}


def test_what_is_read_is_what_was_said_to_be_saved(saves: list[list[dict[str, Any]]]) -> None:
    """The writer's own words: batch statistics differ between ranks, and a restore takes those of one."""
    for own in saves[0]:
        slices = {key for key in own["said"] if "#" in key or own["said"][key] != own["state"].get(key)}
        whole = own["said"].keys() - slices
        assert whole, label(own)
        if own["strategy"] in ("node_writer", "replicated"):  # copies: the last one's statistics win
            whole = {key for key in whole if own["kinds"][key] != "buffer"}
        assert {key: own["read"][key] for key in whole} == {key: own["said"][key] for key in whole}, label(own)


def test_the_kinds_that_are_declared_get_in_and_no_others(saves: list[list[dict[str, Any]]]) -> None:
    for own in saves[0]:
        present = {own["kinds"][key] for key in own["read"] if key in own["kinds"]}
        kept = {own["kinds"][key] for key in own["kept"]}
        assert present == kept, label(own)
        everything = set(own["kinds"].values())
        if own["format"] != "tf_bundle":
            assert kept == everything - NOT_IN_MECHANISMS, label(own)
        elif own["strategy"] == "tf_checkpoint":
            assert kept == everything - {"rng"}, label(own)
        else:
            assert kept == everything, label(own)


def test_every_array_of_a_kept_kind_is_there_and_equal(saves: list[list[dict[str, Any]]]) -> None:
    for own in saves[0]:
        kept = [key for key in own["kept"] if own["kinds"][key] != "buffer"]
        assert {key: own["read"].get(key) for key in kept} == {key: own["state"][key] for key in kept}, label(own)


def test_arrays_of_a_state_keep_their_values_under_later_steps(saves: list[list[dict[str, Any]]]) -> None:
    """They share the live variables' memory; what was digested must be what was saved."""
    for own in (own for rank in saves for own in rank):
        assert not own["changed_under_us"], label(own)
        assert own["changed_live"], f"{label(own)}: the step changed nothing, so this test would prove nothing"


def test_the_manager_keeps_what_it_was_told_and_says_so(saves: list[list[dict[str, Any]]]) -> None:
    held = [own["held_steps"] for own in saves[0] if own["strategy"] == "tf_checkpoint"]
    assert [len(steps) for steps in held] == [1, 2, 2]
    assert held[2][0] == held[1][1]


def test_keras_gives_back_the_optimizer_of_its_own_file_only(place: Path) -> None:
    """Both files hold the momentum (see above); from .h5 Keras restores none of it, and says nothing."""
    found = json.loads((place / "saves.json").read_text())["keras"]
    assert "optimizer" in found[".keras"]
    assert "optimizer" not in found[".h5"] and "parameter" in found[".h5"]


@pytest.mark.skipif(
    isinstance(IotraceTracer.find(None, {}), Absent), reason="the preload recorder is not built: run `make setup`"
)
def test_coverage_lies_in_the_declared_band(place: Path, saves: list[list[dict[str, Any]]]) -> None:
    events = [read_events(next((place / f"trace{rank}").glob("*.iotrace"))) for rank in range(RANKS)]
    assert not [note for found in events for note in found.notes()]
    for index, first in enumerate(saves[0]):
        prefix = str(place / f"{first['strategy']}-{first['format']}") + "/"
        traced = sum(written(events[rank], saves[rank][index], prefix) for rank in range(RANKS))
        low, high = registry.load("hpcckpt.formats", first["format"]).expected_coverage
        assert low <= traced / first["new_bytes"] <= high, label(first)


def written(events: Any, own: dict[str, Any], prefix: str) -> int:
    """Bytes that one rank wrote below `prefix` during its part of a save."""
    table = events.table
    inside = [number for number, name in events.names.items() if name.startswith(prefix)]
    chosen = np.isin(table["op"], (Op.WRITE, Op.STREAM_WRITE, Op.COPY)) & np.isin(table["file"], inside)
    chosen &= (table["error"] == 0) & (table["start_ns"] >= own["begin_ns"]) & (table["end_ns"] <= own["end_ns"])
    return int(table["length"][chosen].sum())
