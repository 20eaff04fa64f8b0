"""torch.distributed.checkpoint's directory: a .distcp file per rank, and .metadata that says what lies where.

Each tensor, or part of one, is a torch.save archive of its own inside the rank's file, so the files
carry about a kilobyte more per tensor. Only DCP itself writes it, all ranks together.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hpcckpt.errors import TraceError
from hpcckpt.formats.base import Format
from hpcckpt.frameworks.base import Entry, Part
from hpcckpt.strategies.base import Piece

METADATA = ".metadata"


class Dcp(Format):
    suffix = ".distcp"
    frameworks = frozenset({"pytorch"})
    mechanism = True
    expected_coverage = (0.99, 1.01)
    coverage_reason = "written once, front to back; .metadata is counted with rank 0's files"

    def write(self, arrays: Mapping[str, np.ndarray], path: Path) -> None:
        raise NotImplementedError("DCP writes a generation by all ranks together: use the strategy torch_dcp")

    def load(self, path: Path) -> dict[str, np.ndarray]:
        """Whole arrays of a generation's directory, read by DCP in this process alone."""
        import torch
        from torch.distributed.checkpoint.filesystem import FileSystemReader
        from torch.distributed.checkpoint.state_dict_loader import load

        stored = read_metadata(path).state_dict_metadata
        tensors = {n: torch.empty(found.size, dtype=found.properties.dtype) for n, found in stored.items()}
        load(tensors, storage_reader=FileSystemReader(path), no_dist=True)
        return {name: tensor.numpy() for name, tensor in tensors.items()}


def pieces(directory: Path) -> Iterator[tuple[Path, dict[str, np.ndarray]]]:
    """File by file, what a generation holds by piece label: slices flat, others in their shape."""
    import torch

    metadata = read_metadata(directory)
    files: dict[str, dict[str, np.ndarray]] = {}
    for index, place in metadata.storage_data.items():
        with (directory / place.relative_path).open("rb") as stream:
            stream.seek(place.offset)
            array = torch.load(io.BytesIO(stream.read(place.length)), weights_only=True).numpy()
        found = piece(index.fqn, metadata.state_dict_metadata[index.fqn].size, index.offset, array.shape)
        flat = found.box is None and array.shape != found.entry.shape
        files.setdefault(place.relative_path, {})[found.label] = array.reshape(-1) if flat else array
    yield from ((directory / name, arrays) for name, arrays in sorted(files.items()))


def read_metadata(directory: Path) -> Any:
    """DCP's own index of a generation. Raises TraceError where there is none: the save never ended."""
    from torch.distributed.checkpoint.filesystem import FileSystemReader

    if not (directory / METADATA).is_file():
        raise TraceError(f"{directory}: not a complete generation: {METADATA} is missing")
    return FileSystemReader(directory).read_metadata()


def piece(key: str, shape: Any, begin: Any, lengths: Any) -> Piece:
    """The piece that is this box of the array stored under `key`."""
    size = tuple(shape)
    held = Part(tuple(begin), tuple(lengths))
    entry = Entry(key, "other", size, "uint8")
    return Piece(entry, held.offset(size), held.count, None if held.contiguous(size) else held)
