"""What the two formats of torch.save share: arrays as tensors, and a look at the storages in a file.

torch.save writes a tensor's whole storage: a view of ten rows brings all the other rows along, and
nothing but the file's size tells. Arrays that come from NumPy have storages of their own size, so
what this project writes drags nothing; a file from elsewhere may.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hpcckpt.formats.base import Format


class TorchFile(Format):
    """One torch.save file of named tensors; a subclass says in which of torch's two containers."""

    suffix = ".pt"
    frameworks = frozenset({"pytorch"})
    zipped: bool

    def write(self, arrays: Mapping[str, np.ndarray], path: Path) -> None:
        import torch

        tensors = {key: torch.from_numpy(array) for key, array in arrays.items()}
        torch.save(tensors, path, _use_new_zipfile_serialization=self.zipped)

    def load(self, path: Path) -> dict[str, np.ndarray]:
        return {key: tensor.numpy() for key, tensor in _tensors(path).items()}

    def storage_bytes(self, path: Path) -> dict[str, int]:
        return storages(path)


def storages(path: Path) -> dict[str, int]:
    """Bytes of the storage behind each tensor of a torch.save file."""
    return {key: tensor.untyped_storage().nbytes() for key, tensor in _tensors(path).items()}


def dragged(path: Path) -> dict[str, tuple[int, int]]:
    """(storage bytes, own bytes) of each tensor whose storage holds more than the file's tensors use of it.

    Tensors that share a storage count together: tied weights drag nothing.
    """
    used: dict[int, set[tuple[int, int]]] = {}
    found = _tensors(path)
    for tensor in found.values():
        first = tensor.storage_offset() * tensor.element_size()
        used.setdefault(tensor.untyped_storage().data_ptr(), set()).add((first, first + tensor.nbytes))
    covered = {pointer: _length(spans) for pointer, spans in used.items()}
    return {
        key: (tensor.untyped_storage().nbytes(), tensor.nbytes)
        for key, tensor in found.items()
        if tensor.untyped_storage().nbytes() > covered[tensor.untyped_storage().data_ptr()]
    }


def _tensors(path: Path) -> dict[str, Any]:
    import torch

    tensors: dict[str, Any] = torch.load(path, weights_only=True)
    return tensors


def _length(spans: set[tuple[int, int]]) -> int:
    """Bytes that the spans cover together."""
    total = reached = 0
    for first, last in sorted(spans):
        total += max(0, last - max(first, reached))
        reached = max(reached, last)
    return total
