"""What tests/integration/test_tensorflow.py runs: facts of the TensorFlow adapter, as JSON.

python -m tests.integration.tensorflow_program counts FILE
mpirun ... tensorflow_program saves DIRECTORY      every save of TensorFlow, recorded where the recorder is built
mpirun ... tensorflow_program rank RUN_DIR LEG     a rank that trusts Horovod's own optimizer
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from hpcckpt import data, inventory, registry
from hpcckpt.comm import Comm, clock, world
from hpcckpt.experiment import Settings
from hpcckpt.models.base import (
    BatchNorm,
    Conv,
    Dense,
    Dropout,
    GlobalAveragePool,
    Layer,
    MaxPool,
    Model,
    Relu,
    Residual,
)
from hpcckpt.strategies.base import Topology
from hpcckpt.tracing.io.iotrace import IotraceTracer
from tests.contract.program import combinations

NAME = "tensorflow_horovod"


class EveryKind(Model):
    """Buffers, random states and optimizer slots; some 140,000 parameters, most of them in one layer."""

    name = "every_kind"

    @classmethod
    def layers(cls) -> tuple[Layer, ...]:
        stem = (Conv(16, kernel=7, stride=2, padding=3, bias=False), BatchNorm(), Relu(), MaxPool(3, 2, 1))
        body = (Conv(32, kernel=3, stride=2, padding=1, bias=False), BatchNorm(), Dropout(0.1))
        shortcut = (Conv(32, kernel=1, stride=2, bias=False), BatchNorm())
        tail = (Residual((Dense(512), Relu(), Dense(32))), Dense(3 * 1024), Dropout(0.5), Dense(cls.classes))
        return (*stem, Residual(body, shortcut), Relu(), GlobalAveragePool(), *tail)


def counts() -> dict[str, Any]:
    """Values in the Keras model of every architecture, by what kind they are, against its description."""
    from hpcckpt.frameworks._keras import make_optimizer, slots
    from hpcckpt.frameworks._keras_layers import build

    found: dict[str, Any] = {}
    models = [registry.load("hpcckpt.models", name) for name in registry.names("hpcckpt.models")]
    for model in (*models, EveryKind):
        built = build(model)
        sizes = {"parameter": 0, "buffer": 0, "rng": 0}
        for slot in slots(built, make_optimizer("sgd", 0.01)):
            sizes[slot.kind] = sizes.get(slot.kind, 0) + slot.array().size
        found[model.name] = {"keras": sizes, "described": [model.parameter_count(), model.buffer_count()]}
        found[model.name]["outputs"] = list(built.output_shape)
    return found


def digests(arrays: dict[str, Any]) -> dict[str, str]:
    return {key: inventory.digest(array) for key, array in arrays.items()}


def saves(base: Path, comm: Comm) -> list[dict[str, Any]]:
    """Every strategy and format: what was said to be saved, what is in the files, when it was written."""
    settings = Settings(batch_per_rank=4, keep=2)
    framework = registry.load("hpcckpt.frameworks", NAME)(EveryKind, settings, comm, data.synthetic(1), 1)
    framework.start()
    found = []
    for strategy_name, format_name in combinations(NAME):
        format_ = registry.load("hpcckpt.formats", format_name)(framework)
        kind = registry.load("hpcckpt.strategies", strategy_name)
        strategy = kind(framework, format_, comm, Topology(comm.size, 1), True)
        directory = base / f"{strategy_name}-{format_name}"
        for generation in range(3 if strategy.one_directory else 1):
            names = {"strategy": strategy_name, "format": format_name, "generation": generation}
            found.append(names | save(framework, strategy, directory, comm))
    return found


def save(framework: Any, strategy: Any, directory: Path, comm: Comm) -> dict[str, Any]:
    """One save between two steps, its arrays held over the second one."""
    framework.step()
    strategy.prepare()
    if comm.rank == 0:
        directory.mkdir(exist_ok=True)
    comm.settle()
    old = {path for path in directory.rglob("*") if path.name != "checkpoint"}  # what the manager writes anew
    comm.settle()
    begin = clock()
    written = strategy.save(directory, lambda phase: contextlib.nullcontext())
    end = clock()
    said = digests({item.piece.label: item.data for item in written if item.piece.entry.kind != "container"})
    state = framework.state()
    before = digests({entry.key: entry.data for entry in state})
    step = framework.position - 1
    framework.step()
    comm.settle()
    new = [path for path in directory.rglob("*") if path.is_file() and path not in old]
    return {
        "begin_ns": begin,
        "end_ns": end,
        "said": said,
        "kept": sorted(entry.key for entry in state if strategy.keeps(entry)),
        "kinds": {entry.key: entry.kind for entry in state},
        "state": before,
        "changed_under_us": digests({entry.key: entry.data for entry in state}) != before,
        "changed_live": digests({entry.key: entry.data for entry in framework.state()}) != before,
        "new_bytes": sum(path.stat().st_size for path in new),
        "read": digests(strategy.restore(directory, step)),
        "held_steps": [index for index in range(framework.position) if strategy.holds(directory, index)],
    }


def facts_of_keras(base: Path) -> dict[str, Any]:
    """What Keras's own loading makes of its files, beside what lies in them."""
    import keras

    from hpcckpt.frameworks._keras import slots

    found = {}
    for path in sorted(base.glob("keras_checkpoint-*/checkpoint.*")):
        model = keras.saving.load_model(path)
        found[path.suffix] = [slot.kind for slot in slots(model, model.optimizer)]
    return found


def trust_horovod() -> None:
    """Plants what looks right: Horovod's own optimizer, trusted to average the gradients that it applies."""
    from hpcckpt.frameworks.tensorflow_horovod import TensorFlowHorovod

    plain = TensorFlowHorovod.make_optimizer

    def wrapped(self: TensorFlowHorovod) -> Any:
        import keras

        optimizer = self.hvd.DistributedOptimizer(plain(self))
        # With Keras 3 its own list of variables raises an error, which would hide the silent fault.
        type(optimizer).variables = keras.optimizers.Optimizer.variables
        return optimizer

    TensorFlowHorovod.make_optimizer = wrapped  # type: ignore[method-assign]
    TensorFlowHorovod.average = lambda self, gradients: gradients  # type: ignore[method-assign]


def record_this_process(base: Path) -> None:
    """Start again below the recorder, where it is built."""
    tracer = IotraceTracer.find(None, os.environ)
    if isinstance(tracer, IotraceTracer) and "HPCCKPT_IOTRACE_DIR" not in os.environ:
        logs = base / f"trace{os.environ.get('OMPI_COMM_WORLD_RANK', '0')}"
        logs.mkdir(exist_ok=True)
        added = tracer.prepare(base, base)
        added["HPCCKPT_IOTRACE_DIR"] = str(logs)
        os.execve(sys.executable, [sys.executable, "-m", __spec__.name, *sys.argv[1:]], {**os.environ, **added})
    os.environ.pop("LD_PRELOAD", None)


def main(mode: str, place: Path, *rest: str) -> int:
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    if mode == "rank":
        from hpcckpt import rank

        trust_horovod()
        return rank.main([str(place), *rest])
    if mode == "counts":
        place.write_text(json.dumps(counts()))
        return 0
    record_this_process(place)
    comm = world()
    found = comm.gather(saves(place, comm))
    if comm.rank == 0:
        (place / "saves.json").write_text(json.dumps({"ranks": found, "keras": facts_of_keras(place)}))
    comm.settle()
    return 0


if __name__ == "__main__":
    try:
        status = main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
    except BaseException:
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # the launcher sees it and ends the other ranks
    sys.exit(status)
