"""DTensors as parts of global arrays: which box of a tensor each rank holds, and how to fill one's own.

For one-dimensional meshes over all ranks: rank and place in the mesh are the same number.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from hpcckpt.errors import SpecError
from hpcckpt.frameworks.base import Entry, Part


@lru_cache(maxsize=4096)
def parts(shape: tuple[int, ...], dimension: int, ranks: int) -> tuple[Part, ...]:
    """The part of each rank of one dimension dealt out in equal chunks; the last may be short or empty."""
    size = shape[dimension]
    chunk = -(-size // ranks)
    result = []
    for rank in range(ranks):
        first = min(rank * chunk, size)
        begin, lengths = [0] * len(shape), list(shape)
        begin[dimension], lengths[dimension] = first, min(first + chunk, size) - first
        result.append(Part(tuple(begin), tuple(lengths)))
    return tuple(result)


def is_distributed(tensor: Any) -> bool:
    """Whether this rank may hold a part only."""
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor)


def layout(tensor: Any) -> tuple[Part, ...]:
    """The parts of a DTensor by rank; empty where every rank holds all of it."""
    from torch.distributed.tensor import Replicate, Shard

    if tensor.device_mesh.ndim != 1:
        raise SpecError(f"a mesh of {tensor.device_mesh.ndim} dimensions: only one is handled")
    (placement,) = tensor.placements
    if isinstance(placement, Replicate):
        return ()
    if not isinstance(placement, Shard):
        raise SpecError(f"a tensor placed as {placement}: only Shard and Replicate are handled")
    found = parts(tuple(tensor.shape), placement.dim, tensor.device_mesh.size())
    own = tuple(tensor.to_local().shape)
    expected = found[tensor.device_mesh.get_rank()].lengths
    assert own == expected, f"the local part is {own}, expected {expected}"
    return found


def sharded_entry(name: str, kind: str, tensor: Any) -> Entry:
    """The entry of a DTensor: this rank's part, and the layout of all parts."""
    array = host(tensor.to_local())
    found = layout(tensor)
    offset = found[tensor.device_mesh.get_rank()].offset(tuple(tensor.shape)) if found else 0
    return Entry(name, kind, tuple(tensor.shape), array.dtype.name, array, offset, parts=found)


def host(tensor: Any) -> np.ndarray:
    """A tensor's values as a C-contiguous array in host memory, shared with a tensor that lies there."""
    array: np.ndarray = tensor.detach().cpu().numpy()
    return np.ascontiguousarray(array).reshape(array.shape)


def fill(tensor: Any, array: np.ndarray) -> None:
    """Take over the whole `array`: a plain tensor all of it, a DTensor this rank's part."""
    import torch

    with torch.no_grad():
        if is_distributed(tensor):
            if found := layout(tensor):
                own = found[tensor.device_mesh.get_rank()]
                box = zip(own.begin, own.lengths, strict=True)
                array = array[tuple(slice(begin, begin + length) for begin, length in box)]
            tensor = tensor.to_local()
        source = np.require(array, requirements=["W", "C"]).reshape(array.shape)
        tensor.copy_(torch.from_numpy(source))
