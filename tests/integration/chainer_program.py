"""Run by every rank under one mpirun: what Chainer and ChainerMN do, as facts for test_chainer.py.

    python -m tests.integration.chainer_program MODE DIRECTORY

Rank 0 leaves DIRECTORY/MODE.json: a list with each rank's facts.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from hpcckpt import data, registry
from hpcckpt.comm import Comm, world
from hpcckpt.errors import HpcCkptError
from hpcckpt.experiment import Settings
from hpcckpt.strategies.base import Strategy, Topology
from tests.contract.program import Tiny, digests

DATA_PARALLEL, MODEL_PARALLEL = "chainer_chainermn", "chainer_model_parallel"


def framework(comm: Comm, name: str = DATA_PARALLEL, **settings: Any) -> Any:
    chosen = Settings(batch_per_rank=4, **settings)
    found = registry.load("hpcckpt.frameworks", name)(Tiny, chosen, comm, data.synthetic(seed=1), 1)
    found.start()
    return found


def strategy(name: str, of: Any, comm: Comm) -> Strategy:
    form = registry.load("hpcckpt.formats", "npz")(of)
    found: Strategy = registry.load("hpcckpt.strategies", name)(of, form, comm, Topology(comm.size, 1), False)
    return found


def parameters(found: Any) -> dict[str, np.ndarray]:
    return {e.name: e.data.copy() for e in found.state() if e.kind == "parameter"}


def changed(before: dict[str, np.ndarray], after: dict[str, np.ndarray]) -> list[str]:
    return [name for name, array in before.items() if not np.array_equal(array, after[name])]


def models(base: Path, comm: Comm) -> dict[str, Any]:
    """Parameters, buffers and output shape of every model of the registry."""
    from hpcckpt.frameworks._chainer import libraries
    from hpcckpt.frameworks._chainer_layers import build

    libraries()
    facts = {}
    for name in registry.names("hpcckpt.models"):
        model = registry.load("hpcckpt.models", name)
        link = build(model.layers(), model.input_shape)
        persistents = [getattr(child, n) for child in link.links() for n in child._persistent if n != "N"]
        output = link(np.zeros((2, *model.input_shape), np.float32))
        facts[name] = [link.count_params(), sum(array.size for array in persistents), list(output.shape)]
    return facts


def first_step(base: Path, comm: Comm) -> dict[str, Any]:
    """The first update: of the adapter, of ChainerMN as it comes, and with a frozen layer."""
    ours, plain = framework(comm), framework(comm)
    plain.optimizer.__dict__["target_params"] = []  # as create_multi_node_optimizer leaves it
    frozen = framework(comm, frozen=["layer0.*"])
    facts = {}
    for name, found in (("ours", ours), ("plain", plain), ("frozen", frozen)):
        before = parameters(found)
        found.step()
        facts[name] = {"updates": found.optimizer.t, "changed": changed(before, parameters(found))}
    return facts


def multi_node_save(base: Path, comm: Comm) -> dict[str, Any]:
    trained = framework(comm)
    for _ in range(2):
        trained.step()
    how = strategy("chainermn_multi_node", trained, comm)
    how.prepare()
    (base / "generations").mkdir(exist_ok=True)
    comm.settle()
    how.save(base / "generations", lambda name: nullcontext())
    comm.settle()
    return {"files": sorted(path.name for path in (base / "generations").iterdir())}


def multi_node_restore(base: Path, comm: Comm) -> dict[str, Any]:
    """By the strategy, then by ChainerMN alone."""
    facts: dict[str, Any] = {"refused": None}
    try:
        strategy("chainermn_multi_node", framework(comm), comm).restore(base / "generations")
    except HpcCkptError as error:
        facts["refused"] = str(error)
    alone = framework(comm)
    how: Any = strategy("chainermn_multi_node", alone, comm)
    how.trainer(base / "generations")
    how.mechanism.path = str(base / "generations")
    how.mechanism.maybe_load(how.trainer(base / "generations"), alone.optimizer)
    return {**facts, "iteration": alone.updater.iteration}


def hdf5(base: Path, comm: Comm) -> dict[str, Any]:
    """Chainer's snapshot extension with save_hdf5: which arrays it compresses, and whether it loads again."""
    import h5py

    trained = framework(comm)
    trained.step()
    how: Any = strategy("chainer_snapshot", trained, comm)
    trainer, serializers = how.trainer(base), trained.chainer.serializers
    extension = trained.chainer.training.extensions.snapshot(serializers.save_hdf5, filename="snapshot")
    extension(trainer)
    compressed: dict[str, bool] = {}
    with h5py.File(base / "snapshot") as file:
        file.visititems(lambda name, item: compressed.update({name: bool(getattr(item, "compression", None))}))
    try:
        serializers.load_hdf5(str(base / "snapshot"), trainer)
    except Exception as error:  # which one it raises is the fact
        return {"compressed": compressed, "error": type(error).__name__}
    return {"compressed": compressed, "error": None}


def replica_sets(base: Path, comm: Comm) -> dict[str, Any]:
    """Ranks with different layers: multi_node_snapshot with one set of all, and with a set for each rank."""
    trained = framework(comm, MODEL_PARALLEL)
    trained.step()
    facts: dict[str, Any] = {"own": sorted(name for name in digests(trained) if name.startswith("model."))}
    for label, sets in (("one", []), ("each", [[rank] for rank in range(comm.size)])):
        how: Any = strategy("chainermn_replica_sets", trained, comm)
        trainer = how.trainer(base / label)
        (base / label).mkdir(exist_ok=True)
        comm.settle()
        snapshot = trained.chainer.training.extensions.snapshot()
        trained.chainermn.extensions.multi_node_snapshot(trained.communicator, snapshot, sets)(trainer)
        comm.settle()
        names = [name for _, arrays in how.read_back(base / label, 0) for name in arrays]
        facts[label] = sorted(name for name in names if name.startswith("model."))
    return facts


def stages(base: Path, comm: Comm) -> dict[str, Any]:
    """One step in model parallel, and the same step of the whole model on rank 0."""
    from hpcckpt.frameworks._chainer_layers import build

    found = framework(comm, MODEL_PARALLEL)
    before, loss = in_order(found, comm), found.step()
    after = in_order(found, comm)
    link = build(Tiny.layers(), Tiny.input_shape)
    for parameter, array in zip(ordered(link), before, strict=True):
        parameter.array[...] = array
    optimizer = found.chainer.optimizers.MomentumSGD(0.01, 0.9).setup(link)
    images, labels = found.data.batch(0, 0, 1, 4, found.settings.seed)
    whole = found.chainer.functions.softmax_cross_entropy(link(images), labels)
    link.cleargrads()
    whole.backward()
    optimizer.update()
    alone = [parameter.array for parameter in ordered(link)]
    return {
        "count": found.parameter_count(),
        "loss": loss,
        "whole": float(whole.array),
        "moved": furthest(after, before),
        "apart": furthest(after, alone),
    }


def furthest(some: list[np.ndarray], others: list[np.ndarray]) -> float:
    return max(float(np.abs(a - b).max()) for a, b in zip(some, others, strict=True))


def ordered(link: Any) -> list[Any]:
    """Parameters by layer, then by name."""
    places = {path: int(path.split("layer")[1].split("/")[0]) for path, _ in link.namedparams()}
    return [p for _, p in sorted(link.namedparams(), key=lambda named: (places[named[0]], named[0]))]


def in_order(found: Any, comm: Comm) -> list[np.ndarray]:
    """All ranks' parameters from the first layer to the last."""
    parts = comm.allgather([parameter.array.copy() for parameter in ordered(found.model)])
    return [array for part in parts for array in part]


def main(mode: str, base: Path) -> None:
    comm = world()
    facts = comm.gather(globals()[mode](base, comm))
    if facts is not None:
        (base / f"{mode}.json").write_text(json.dumps(facts))
    comm.settle()


if __name__ == "__main__":
    try:
        main(sys.argv[1], Path(sys.argv[2]))
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
