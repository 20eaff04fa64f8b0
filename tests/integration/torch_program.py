"""Run by every rank under one mpirun: what the PyTorch adapters and DCP do, as facts for test_pytorch.py.

    python -m tests.integration.torch_program MODE DIRECTORY

Rank 0 leaves DIRECTORY/MODE.json.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from hpcckpt import data, inventory, registry
from hpcckpt.comm import Comm, world
from hpcckpt.experiment import Settings
from hpcckpt.strategies.base import Strategy, Topology
from tests.contract.program import digests, model_for

IN_PARTS = ("pytorch_fsdp", "pytorch_tensor_parallel")
DATA_PARALLEL = ("pytorch_horovod", "pytorch_ddp", "pytorch_fsdp")
ELASTIC = (("sharded", "torch_zip"), ("single_writer", "torch_legacy"), ("torch_dcp", "dcp"))


def framework(name: str, comm: Comm, **settings: Any) -> Any:
    chosen = Settings(batch_per_rank=4, **settings)
    found = registry.load("hpcckpt.frameworks", name)(model_for(name), chosen, comm, data.synthetic(seed=1), 1)
    found.start()
    return found


def strategy(name: str, format_: str, of: Any, comm: Comm, durable: bool = False) -> Strategy:
    form = registry.load("hpcckpt.formats", format_)(of)
    found: Strategy = registry.load("hpcckpt.strategies", name)(of, form, comm, Topology(comm.size, 1), durable)
    found.prepare()
    return found


def save(how: Strategy, directory: Path, comm: Comm) -> None:
    if comm.rank == 0:
        directory.mkdir(parents=True)
    comm.settle()
    how.save(directory, lambda name: nullcontext())


def shared(found: dict[str, str]) -> dict[str, str]:
    """What does not belong to one rank alone."""
    return {key: digest for key, digest in found.items() if "@" not in key}


def alike(base: Path, comm: Comm) -> dict[str, Any]:
    """Three ways to average gradients, one seed: losses and parameters after three steps."""
    facts = {}
    for name in DATA_PARALLEL:
        trained = framework(name, comm)
        losses = [trained.step() for _ in range(3)]
        parameters = [e for e in trained.full_state() if e.kind == "parameter"]
        facts[name] = {"losses": losses, "parameters": {e.name: inventory.digest(e.data) for e in parameters}}
    return facts


def overwritten(base: Path, comm: Comm) -> dict[str, Any]:
    """An asynchronous save, and every tensor of the state overwritten the moment the call is back."""
    facts: dict[str, Any] = {}
    for name in ("pytorch_ddp", *IN_PARTS):
        trained = framework(name, comm)
        trained.step()
        how = strategy("torch_dcp_async", "dcp", trained, comm)
        before = shared(digests(trained))
        save(how, base / name, comm)
        for item in trained.items():
            local = item.tensor.to_local() if hasattr(item.tensor, "to_local") else item.tensor
            local.zero_()
        how.finish()
        comm.settle()
        after = shared(digests(trained))
        saved = {key: inventory.digest(array) for key, array in how.restore(base / name).items()}
        facts[name] = {"before": before, "after": after, "saved": shared(saved), "background": how.background}
    return facts


def parts_save(base: Path, comm: Comm) -> dict[str, Any]:
    """Models that no rank holds whole, saved in three ways."""
    facts: dict[str, Any] = {}
    for name in IN_PARTS:
        trained = framework(name, comm)
        for _ in range(2):
            trained.step()
        facts[name] = {"state": shared(digests(trained)), "planned": {}}
        for how_name, format_ in ELASTIC:
            how = strategy(how_name, format_, trained, comm)
            save(how, base / name / how_name, comm)
            facts[name]["planned"][how_name] = comm.allgather(how.planned_bytes)
    return facts


def parts_restore(base: Path, comm: Comm) -> dict[str, Any]:
    """The same generations on another number of ranks, and once more by DCP's own resharding."""
    import torch.distributed.checkpoint as dcp

    facts: dict[str, Any] = {}
    for name in IN_PARTS:
        facts[name] = {}
        for how_name, format_ in ELASTIC:
            fresh = framework(name, comm)
            strategy(how_name, format_, fresh, comm).resume(base / name / how_name)
            facts[name][how_name] = shared(digests(fresh))
        fresh = framework(name, comm)
        fresh.step()  # momentum exists from here on, so there is something to load into
        kinds = ("parameter", "optimizer")
        live = {item.name: item.tensor for item in fresh.items() if item.kind in kinds}
        dcp.load(live, storage_reader=dcp.FileSystemReader(base / name / "torch_dcp"))
        held = {e.key for e in fresh.full_state() if e.kind in kinds}
        facts[name]["resharded"] = {key: found for key, found in digests(fresh).items() if key in held}
    return facts


def partial(base: Path, comm: Comm) -> dict[str, Any]:
    """The optimizer left out; frozen layers left out; only what changed."""
    facts: dict[str, Any] = {}
    for name in ("pytorch_ddp", "pytorch_fsdp"):
        for label, how_name, settings in (
            ("no_optimizer", "single_writer", {"include": ["parameter", "data_position"]}),
            ("no_optimizer_dcp", "torch_dcp", {"include": ["parameter", "data_position"]}),
            ("frozen_left_out", "sharded", {"frozen": ["0.*"], "exclude": ["*.0.weight", "*.0.bias"]}),
        ):
            format_ = "dcp" if how_name == "torch_dcp" else "safetensors"
            trained = framework(name, comm, **settings)
            trained.step()
            save(strategy(how_name, format_, trained, comm), base / name / label, comm)
            fresh = framework(name, comm, **{**settings, "seed": 3})
            begin = shared(digests(fresh))
            kept = strategy(how_name, format_, fresh, comm).resume(base / name / label)
            facts[f"{name}/{label}"] = {
                "saved": shared(digests(trained)),
                "begin": begin,
                "restored": shared(digests(fresh)),
                "kept": [key for key in kept if "@" not in key],
            }
    return facts


MODES = {
    "alike": alike,
    "overwritten": overwritten,
    "parts_save": parts_save,
    "parts_restore": parts_restore,
    "partial": partial,
}


def main(mode: str, base: Path) -> None:
    comm = world()
    facts = MODES[mode](base, comm)
    everybody = comm.gather(facts)
    if comm.rank == 0:
        (base / f"{mode}.json").write_text(json.dumps(everybody))
    comm.settle()


if __name__ == "__main__":
    try:
        main(sys.argv[1], Path(sys.argv[2]))
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
