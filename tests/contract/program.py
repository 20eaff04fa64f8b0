"""Run by every rank under one mpirun: saves (or restores) all combinations of one framework.

    python -m tests.contract.program save|restore|restore-elsewhere FRAMEWORK DIRECTORY

restore-elsewhere runs on another number of ranks than save did.

Rank 0 leaves DIRECTORY/MODE.json: what each strategy x format did, as facts for the tests to judge.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hpcckpt import data, inventory, registry
from hpcckpt.comm import Comm, world
from hpcckpt.experiment import Settings
from hpcckpt.frameworks.base import Framework
from hpcckpt.models.base import (
    Conv,
    Dense,
    Flatten,
    Gelu,
    Layer,
    LayerNorm,
    MaxPool,
    MeanOverTokens,
    Model,
    Patches,
    Positions,
    Relu,
    Residual,
    SelfAttention,
)
from hpcckpt.strategies._parts import PartsStrategy
from hpcckpt.strategies.base import Piece, Topology, supports

OPTIMIZERS = ("momentum", "adam", "sgd")


class Tiny(Model):
    """Some 35,000 parameters: hundreds of saves follow, some of them compressed."""

    name = "tiny"

    @classmethod
    def layers(cls) -> tuple[Layer, ...]:
        convolution = (Conv(8, kernel=3, stride=2, padding=1), Relu(), MaxPool(2, 2), Flatten())
        return (*convolution, Dense(64), Relu(), Dense(32), Relu(), Dense(cls.classes))


class TinyTransformer(Model):
    """For adapters that cut attention by heads; four ranks share them out."""

    name = "tiny_transformer"

    @classmethod
    def layers(cls) -> tuple[Layer, ...]:
        attention = Residual((LayerNorm(), SelfAttention(heads=4)))
        dense = Residual((LayerNorm(), Dense(64), Gelu(), Dense(32)))
        stem = (Patches(8), Dense(32), Positions())
        return (*stem, attention, dense, LayerNorm(), MeanOverTokens(), Dense(cls.classes))


def combinations(framework: str) -> list[tuple[str, str]]:
    """All strategy x format pairs that serve the framework."""
    pairs = (
        (strategy, format_)
        for strategy in registry.names("hpcckpt.strategies")
        for format_ in registry.names("hpcckpt.formats")
    )
    return [pair for pair in pairs if supports(framework, *pair) is None]


def digests(framework: Framework) -> dict[str, str]:
    return {e.key: inventory.digest(e.data) for e in framework.full_state() if e.data is not None}


def pieces(found: Iterable[Piece]) -> list[list[Any]]:
    """What is in the pieces; what a mechanism writes beside the state (an index) is in no plan."""
    return [[p.entry.key, p.offset, p.count] for p in found if p.entry.kind != "container"]


def save(framework: Framework, strategy: Any, directory: Path, comm: Any) -> dict[str, Any]:
    """Train, save, and train one step more: the step that a restart must repeat."""
    phases: list[str] = []

    @contextmanager
    def phase(name: str) -> Any:
        phases.append(name)
        yield

    for _ in range(2):
        framework.step()
    strategy.prepare()
    plan = strategy.job_plan
    if comm.rank == 0:
        directory.mkdir(parents=True)
    comm.settle()
    written = strategy.save(directory, phase)
    before = digests(framework)
    strategy.finish()
    own = {
        "wrote": pieces(item.piece for item in written),
        "planned": pieces(plan.get(comm.rank, [])),
        "files": sorted({str(item.file) for item in written}),
        "phases": phases,
        "carried": sorted(e.key for e in framework.full_state() if strategy.keeps(e)),
        "state": before,
    }
    framework.step()
    own["next"] = digests(framework)
    return own


def restore(framework: Framework, strategy: Any, directory: Path, comm: Any) -> dict[str, Any]:
    """Load a generation into a framework with another state, and train one step."""
    framework.load(strategy.restore(directory))
    own: dict[str, Any] = {"state": digests(framework)}
    framework.step()
    own["next"] = digests(framework)
    return own


def skips(name: str, strategy_name: str) -> bool:
    """Other optimizers matter to formats and to the frameworks' own mechanisms, not to which rank writes.

    Trying them with every strategy all the same would take minutes where each save is slow.
    """
    ours = issubclass(registry.load("hpcckpt.strategies", strategy_name), PartsStrategy)
    return registry.load("hpcckpt.frameworks", name).compiles and ours and strategy_name != "single_writer"


_kept: dict[str, Framework] = {}


def start(name: str, model: type[Model], settings: Settings, comm: Comm, images: data.Dataset) -> Framework:
    """A fresh framework; where that would take minutes in all, one that went on from the last combination."""
    if settings.optimizer not in _kept:
        framework = registry.load("hpcckpt.frameworks", name)(model, settings, comm, images, 1)
        framework.start()
        if not framework.compiles:
            return framework
        _kept[settings.optimizer] = framework
    return _kept[settings.optimizer]


def model_for(framework: str) -> type[Model]:
    """The first tiny model that the framework does not refuse."""
    adapter = registry.load("hpcckpt.frameworks", framework)
    return next(model for model in (Tiny, TinyTransformer) if adapter.refuses(model) is None)


def main(mode: str, name: str, base: Path) -> None:
    comm = world()
    images = data.synthetic(seed=1)
    model = model_for(name)
    facts: dict[str, Any] = {}
    for optimizer in OPTIMIZERS if name != "numpy_toy" else OPTIMIZERS[:1]:
        for strategy_name, format_name in combinations(name):
            if optimizer != OPTIMIZERS[0] and skips(name, strategy_name):
                continue
            for durable in (False, True) if optimizer == "momentum" else (False,):
                settings = Settings(optimizer=optimizer, batch_per_rank=4, seed=1 if mode == "save" else 2)
                framework = start(name, model, settings, comm, images)
                format_ = registry.load("hpcckpt.formats", format_name)(framework)
                strategy = registry.load("hpcckpt.strategies", strategy_name)(
                    framework, format_, comm, Topology(comm.size, 1), durable
                )
                if mode == "restore-elsewhere" and not (strategy.elastic and framework.elastic):
                    continue
                label = f"{strategy_name}/{format_name}/{optimizer}/{'durable' if durable else 'buffered'}"
                directory = base / label
                # The data order belongs to the settings' seed; only the initial values may differ.
                framework.settings = Settings(optimizer=optimizer, batch_per_rank=4, seed=1)
                act = save if mode == "save" else restore
                facts[label] = comm.gather(act(framework, strategy, directory, comm))
    if comm.rank == 0:
        (base / f"{mode}.json").write_text(json.dumps(facts))
    comm.settle()


if __name__ == "__main__":
    try:
        main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # a new communicator would wait for the other ranks
