"""Plans over real models' states, DCP's spread, saved views, and files of changes only: no MPI."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcckpt import data, registry
from hpcckpt.comm import Comm
from hpcckpt.errors import SpecError, TraceError
from hpcckpt.experiment import Settings
from hpcckpt.frameworks._torch_sharding import parts
from hpcckpt.frameworks.base import Entry, Framework, Part, of_all_ranks
from hpcckpt.models.base import Layer
from hpcckpt.strategies import _dcp
from hpcckpt.strategies._parts import assemble, cut
from hpcckpt.strategies.base import Strategy, Topology, part, supports

torch = pytest.importorskip("torch")

MODELS = registry.names("hpcckpt.models")


def entries(name: str, ranks: int, in_parts: bool = False) -> list[Entry]:
    """The whole job's state, without data, of a model trained with momentum."""
    from hpcckpt.frameworks._torch import build

    module = build(registry.load("hpcckpt.models", name))
    found = [(f"model.{n}", "parameter", p) for n, p in module.named_parameters()]
    found += [(f"optimizer.momentum_buffer.{n}", "optimizer", p) for n, p in module.named_parameters()]
    layouts = [parts(tuple(tensor.shape), 0, ranks) if in_parts else () for _, _, tensor in found]
    state = [Entry(n, kind, tuple(t.shape), "float32", parts=p) for (n, kind, t), p in zip(found, layouts, strict=True)]
    state += [Entry(f"model.{n}", "buffer", tuple(b.shape), str(b.dtype)[6:]) for n, b in module.named_buffers()]
    return of_all_ranks([*state, Entry("rng.torch", "rng", (5056,), "uint8", owner=0)], ranks)


def per_rank(plan: dict[int, Any], ranks: int) -> list[int]:
    return [sum(piece.nbytes for piece in plan.get(rank, [])) for rank in range(ranks)]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_sharded_is_balanced_within_five_percent(model: str, ranks: int) -> None:
    plan = registry.load("hpcckpt.strategies", "sharded").plan(entries(model, ranks), Topology(ranks, 1))
    shares = per_rank(plan, ranks)
    assert max(shares) <= 1.05 * sum(shares) / ranks


@pytest.mark.parametrize(("model", "low", "high"), [("alexnet", 1.6, 1.9), ("resnet50", 1.0, 1.3)])
def test_dcp_spreads_replicated_state_unevenly(model: str, low: float, high: float) -> None:
    """Whole tensors are its unit: AlexNet's one large matrix and its momentum fill two of four ranks."""
    shares = per_rank(_dcp.spread(entries(model, 4), 4), 4)
    assert low <= max(shares) / (sum(shares) / 4) <= high


def test_dcp_lets_each_rank_write_its_own_part() -> None:
    ranks = 4
    state = entries("small", ranks, in_parts=True)
    plan = _dcp.spread(state, ranks)
    for rank, pieces in plan.items():
        for piece in pieces:
            if piece.entry.parts:
                assert piece == part(piece.entry, rank)
    covered = sum(piece.count for pieces in plan.values() for piece in pieces)
    assert covered == sum(int(np.prod(entry.shape)) for entry in state)


@pytest.mark.parametrize("dimension", [0, 1])
@pytest.mark.parametrize("ranks", [1, 3, 4, 7])
def test_parts_come_together_again(dimension: int, ranks: int) -> None:
    array = np.arange(10 * 6, dtype=np.float32).reshape(10, 6)
    layout = parts(array.shape, dimension, ranks)
    stored = []
    for rank, held in enumerate(layout):
        own = array[tuple(slice(b, b + n) for b, n in zip(held.begin, held.lengths, strict=True))]
        piece = part(Entry("w", "parameter", array.shape, "float32", parts=layout), rank)
        entry = Entry("w", "parameter", array.shape, "float32", np.ascontiguousarray(own), held.offset(array.shape))
        if piece.count:
            stored.append((piece.label, cut(entry, piece)))
    assert np.array_equal(assemble(stored, Path("x"))["w"], array)
    if len(stored) > 1:
        with pytest.raises(TraceError, match="x: values of w are missing"):
            assemble(stored[1:], Path("x"))


def test_a_part_knows_whether_it_is_one_stretch() -> None:
    assert Part((2, 0), (2, 6)).contiguous((10, 6)) and Part((2, 0), (2, 6)).offset((10, 6)) == 12
    assert not Part((0, 3), (10, 3)).contiguous((10, 6)) and Part((0, 3), (10, 3)).offset((10, 6)) == 3


@pytest.mark.parametrize(
    ("framework", "strategy", "format_", "reason"),
    [
        ("pytorch_fsdp", "replicated", "torch_zip", "no rank of pytorch_fsdp holds the whole state"),
        ("pytorch_tensor_parallel", "node_writer", "safetensors", "no rank of pytorch_tensor_parallel"),
        ("pytorch_ddp", "sharded", "dcp", "dcp is written by the framework's own mechanism, not by sharded"),
        ("pytorch_ddp", "torch_dcp", "torch_zip", "torch_dcp writes dcp, not torch_zip"),
        ("numpy_toy", "torch_dcp", "dcp", "torch_dcp serves pytorch, not numpy_toy"),
        ("pytorch_horovod", "torch_dcp", "dcp", None),
        ("pytorch_fsdp", "single_writer", "torch_legacy", None),
        ("pytorch_tensor_parallel", "sharded", "safetensors", None),
    ],
)
def test_what_fits_a_state_in_parts(framework: str, strategy: str, format_: str, reason: str | None) -> None:
    found = supports(framework, strategy, format_)
    assert found is None if reason is None else reason in (found or "")


@pytest.mark.parametrize("name", ["torch_zip", "torch_legacy", "safetensors"])
def test_a_format_gives_back_what_it_got(name: str, tmp_path: Path) -> None:
    format_ = registry.load("hpcckpt.formats", name)(None)
    large = np.arange(10_000, dtype=np.float32)
    arrays = {
        "w#12:[100, 100]": large[12:500],
        "n": np.asarray(3),
        "b": np.zeros((2, 0, 3)),
        "r": np.arange(5, dtype=np.uint8),
    }
    format_.write(arrays, tmp_path / "x")
    found = format_.load(tmp_path / "x")
    assert found.keys() == arrays.keys()
    assert all(np.array_equal(found[k], arrays[k]) and found[k].shape == arrays[k].shape for k in arrays)
    assert (tmp_path / "x").stat().st_size < large.nbytes, "the slice of a larger array drags nothing along"
    assert all(stored == arrays[key].nbytes for key, stored in format_.storage_bytes(tmp_path / "x").items())


@pytest.mark.parametrize("zipped", [True, False])
def test_a_saved_view_is_named_with_the_storage_it_drags(tmp_path: Path, zipped: bool) -> None:
    from hpcckpt.formats._torch_files import dragged, storages

    large = torch.zeros(1000, 10)
    tied = torch.zeros(50)
    state = {"view": large[:10], "whole": torch.zeros(7), "tied.a": tied[:25], "tied.b": tied[25:]}
    torch.save(state, tmp_path / "x.pt", _use_new_zipfile_serialization=zipped)
    assert dragged(tmp_path / "x.pt") == {"view": (40_000, 400)}
    assert storages(tmp_path / "x.pt")["whole"] == 28


def dcp_save(state: dict[str, Any], directory: Path, **options: Any) -> None:
    import torch.distributed.checkpoint as dcp

    dcp.save(state, storage_writer=dcp.FileSystemWriter(directory, **options), no_dist=True)


@pytest.mark.filterwarnings("ignore:torch.distributed is", "ignore:Detected an existing checkpoint")
def test_dcp_syncs_files_by_default_and_ours_the_directory_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch.distributed.checkpoint as dcp

    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(Path(f"/proc/self/fd/{fd}").readlink().name))
    state = {"w": torch.zeros(5)}
    dcp_save(state, tmp_path / "default")
    assert synced == ["__0_0.distcp", ".metadata.tmp"], "no directory"
    synced.clear()
    for durable, expected in ((True, ["__0_0.distcp", ".metadata", "own"]), (False, [])):
        writer = _dcp.writer(tmp_path / "own", durable, _dcp.Phases(None))
        dcp.save(state, storage_writer=writer, no_dist=True)
        assert synced == expected
        synced.clear()


@pytest.mark.filterwarnings("ignore:torch.distributed is", "ignore:Detected an existing checkpoint")
def test_dcp_over_an_older_generation_can_mix_two_steps(tmp_path: Path) -> None:
    """A rank dies between two saves in one directory: one file is new, one old, and the load says nothing."""
    import torch.distributed.checkpoint as dcp

    for step in (1.0, 2.0):
        dcp_save({"a": torch.full((5,), step), "b": torch.full((5,), step)}, tmp_path / str(step), thread_count=2)
    old, new = tmp_path / "1.0", tmp_path / "2.0"
    (old / "__0_0.distcp").write_bytes((new / "__0_0.distcp").read_bytes())
    loaded = {"a": torch.zeros(5), "b": torch.zeros(5)}
    dcp.load(loaded, checkpoint_id=old, no_dist=True)
    assert {float(tensor[0]) for tensor in loaded.values()} == {1.0, 2.0}


def test_dcp_without_its_index_is_no_generation(tmp_path: Path) -> None:
    format_ = registry.load("hpcckpt.formats", "dcp")(None)
    with pytest.raises(TraceError, match=r"not a complete generation: \.metadata is missing"):
        format_.load(tmp_path)


def toy(**settings: Any) -> Framework:
    comm = Comm()
    model = registry.load("hpcckpt.models", "small")
    found: Framework = registry.load("hpcckpt.frameworks", "numpy_toy")(
        model, Settings(**settings), comm, data.synthetic(1), 1
    )
    found.start()
    return found


def strategy(name: str, framework: Framework) -> Strategy:
    format_ = registry.load("hpcckpt.formats", "npz_plain")(framework)
    found: Strategy = registry.load("hpcckpt.strategies", name)(
        framework, format_, framework.comm, Topology(1, 1), False
    )
    found.prepare()
    return found


def test_only_what_changed_is_written_and_a_restore_walks_back(tmp_path: Path) -> None:
    framework = toy()
    how = strategy("changed_only", framework)
    wrote = []
    for generation in range(3):
        directory = tmp_path / f"generation-{generation:05d}"
        directory.mkdir()
        if generation == 2:
            framework.step()
        written = how.save(directory, lambda name: nullcontext())
        wrote.append({item.piece.entry.name for item in written} - {"references"})
    everything = {entry.name for entry in framework.state()}
    assert wrote == [everything, set(), everything]
    second = how.restore(tmp_path / "generation-00001")
    assert second["data.position"] == 0 and how.restore(tmp_path / "generation-00002")["data.position"] == 1
    next((tmp_path / "generation-00000").iterdir()).unlink()
    with pytest.raises(TraceError, match=r"refers to generation-00000/part00000-of-00001\.npz, which is gone"):
        how.restore(tmp_path / "generation-00001")


def test_what_is_left_out_keeps_its_value(tmp_path: Path) -> None:
    saved, fresh = toy(include=["parameter"]), toy(include=["parameter"], seed=5)
    saved.step()
    fresh.step()
    velocity = {e.name: e.data for e in fresh.state()}["optimizer.velocity"]
    assert velocity is not None
    velocity = velocity.copy()
    strategy("single_writer", saved).save(tmp_path, lambda name: nullcontext())
    kept = strategy("single_writer", fresh).resume(tmp_path)
    assert kept == ["data.position", "optimizer.velocity", "rng.numpy@00000"]
    state = {e.name: e.data for e in fresh.state()}
    assert np.array_equal(state["optimizer.velocity"], velocity)
    assert np.array_equal(state["model.weights"], {e.name: e.data for e in saved.state()}["model.weights"])


def test_settings_that_a_part_cannot_follow_are_refused() -> None:
    with pytest.raises(SpecError, match=r"settings\.frozen: NumpyToy trains all parameters"):
        toy(frozen=["*"])
    whole = next(n for n in registry.names("hpcckpt.strategies") if not registry.load("hpcckpt.strategies", n).partial)
    kind = registry.load("hpcckpt.strategies", whole)
    with pytest.raises(SpecError, match="always saves everything"):
        kind(toy(exclude=["model.*"]), None, Comm(), Topology(1, 1), False)


def test_an_unknown_layer_is_refused_by_name() -> None:
    from hpcckpt.frameworks._torch_modules import build

    class Strange(Layer):
        pass

    class Odd(registry.load("hpcckpt.models", "small")):  # type: ignore[misc]
        @classmethod
        def layers(cls) -> tuple[Layer, ...]:
            return (Strange(),)

    with pytest.raises(SpecError, match="cannot build the layer Strange"):
        build(Odd)


def test_tensor_parallel_wants_attention() -> None:
    adapter = registry.load("hpcckpt.frameworks", "pytorch_tensor_parallel")
    assert adapter.refuses(registry.load("hpcckpt.models", "transformer")) is None
    assert "no attention" in adapter.refuses(registry.load("hpcckpt.models", "vgg16"))
