"""The parts of the Chainer adapters that need neither Chainer nor MPI: names, stages, sets, phases."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from hpcckpt import registry
from hpcckpt.errors import SpecError
from hpcckpt.frameworks._chainer import key_of, path_of
from hpcckpt.frameworks.chainer_model_parallel import stages
from hpcckpt.models.base import count
from hpcckpt.strategies._chainer import Phases
from hpcckpt.strategies.base import supports
from hpcckpt.strategies.chainermn_replica_sets import replica_sets


@pytest.mark.parametrize(
    ("path", "key"),
    [
        ("model:main/layer3/body/layer0/W", "model.layer3.body.layer0.W"),
        ("model:main/0/layer0/b", "model.0.layer0.b"),
        ("optimizer:main/layer3/W/v", "optimizer.v.layer3.W"),
        ("optimizer:main/t", "optimizer.t"),
        ("iterator:main/current_position", "data.position"),
        ("iteration", "trainer.iteration"),
    ],
)
def test_names_go_to_chainer_s_paths_and_back(path: str, key: str) -> None:
    assert key_of(path) == key and path_of(key) == path


def test_what_is_no_training_state_has_no_name() -> None:
    assert key_of("_snapshot_elapsed_time") is None and path_of("rng.numpy") is None


@pytest.mark.parametrize("name", registry.names("hpcckpt.models"))
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_stages_share_all_layers_in_order(name: str, ranks: int) -> None:
    model = registry.load("hpcckpt.models", name)
    found = stages(model.layers(), model.input_shape, ranks)
    assert tuple(layer for layers, _ in found for layer in layers) == model.layers()
    parameters = [count(layers, shape)[0] for layers, shape in found]
    assert len(found) == ranks and all(parameters) and sum(parameters) == model.parameter_count()


def test_more_stages_than_layers_are_refused() -> None:
    model = registry.load("hpcckpt.models", "small")
    with pytest.raises(SpecError, match="5 ranks cannot share 4 layers"):
        stages(model.layers(), model.input_shape, 5)


def test_replica_sets_follow_who_holds_what() -> None:
    assert replica_sets(model_parallel=False, ranks=3) == [[0, 1, 2]]
    assert replica_sets(model_parallel=True, ranks=3) == [[0], [1], [2]]


def test_phases_switch_without_nesting_and_close_on_errors() -> None:
    seen: list[str] = []

    @contextmanager
    def phase(name: str) -> Iterator[None]:
        seen.append(f"+{name}")
        try:
            yield
        finally:
            seen.append(f"-{name}")

    def fail_while_writing() -> None:
        with Phases(phase, "gather") as phases:
            phases.switch("write")
            raise RuntimeError("planted")

    with pytest.raises(RuntimeError, match="planted"):
        fail_while_writing()
    assert seen == ["+gather", "-gather", "+write", "-write"]


@pytest.mark.parametrize(
    ("combination", "reason"),
    [
        (("chainer_chainermn", "chainer_snapshot", "hdf5"), "writes npz, npz_plain, not hdf5"),
        (("chainer_model_parallel", "chainer_snapshot", "npz"), "serves chainer_chainermn"),
        (("chainer_model_parallel", "replicated", "npz"), "no rank of chainer_model_parallel holds the whole"),
        (("pytorch_ddp", "chainermn_multi_node", "npz"), "serves chainer"),
    ],
)
def test_what_chainer_cannot_do_has_a_reason(combination: tuple[str, str, str], reason: str) -> None:
    assert reason in (supports(*combination) or "")
