"""Run by every rank under one mpirun: saves (or restores) all combinations of one framework.

    python -m tests.contract.program save|restore|restore-elsewhere FRAMEWORK DIRECTORY

restore-elsewhere runs on another number of ranks than save did.

Rank 0 leaves DIRECTORY/MODE.json: what each strategy x format did, as facts for the tests to judge.
"""

from __future__ import annotations

import json
import sys
import traceback
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hpcckpt import data, inventory, registry
from hpcckpt.comm import world
from hpcckpt.experiment import Settings
from hpcckpt.frameworks.base import Framework
from hpcckpt.models.base import Model
from hpcckpt.strategies.base import Topology, supports

OPTIMIZERS = ("momentum", "adam", "sgd")


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
        "wrote": [[item.piece.entry.key, item.piece.offset, item.piece.count] for item in written],
        "planned": [[p.entry.key, p.offset, p.count] for p in plan.get(comm.rank, [])],
        "files": sorted({str(item.file) for item in written}),
        "phases": phases,
        "carried": sorted(e.key for e in framework.full_state() if strategy.format.carries(e)),
        "state": before,
    }
    framework.step()
    own["next"] = digests(framework)
    return own


def restore(framework: Framework, strategy: Any, directory: Path, comm: Any) -> dict[str, Any]:
    """Load a generation into a fresh framework, and train one step."""
    framework.load(strategy.restore(directory))
    own: dict[str, Any] = {"state": digests(framework)}
    framework.step()
    own["next"] = digests(framework)
    return own


def main(mode: str, name: str, base: Path) -> None:
    comm = world()
    images = data.synthetic(seed=1)
    model: type[Model] = registry.load("hpcckpt.models", "small")
    facts: dict[str, Any] = {}
    for optimizer in OPTIMIZERS if name != "numpy_toy" else OPTIMIZERS[:1]:
        for strategy_name, format_name in combinations(name):
            for durable in (False, True) if optimizer == "momentum" else (False,):
                settings = Settings(optimizer=optimizer, batch_per_rank=4, seed=1 if mode == "save" else 2)
                framework = registry.load("hpcckpt.frameworks", name)(model, settings, comm, images, 1)
                framework.start()
                format_ = registry.load("hpcckpt.formats", format_name)(framework)
                strategy = registry.load("hpcckpt.strategies", strategy_name)(
                    framework, format_, comm, Topology(comm.size, 1), durable
                )
                if mode == "restore-elsewhere" and not strategy.elastic:
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
        world().abandon(1)
