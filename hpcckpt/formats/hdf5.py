"""HDF5 as Chainer's serializer writes it: one dataset per array, gzip at level 4, scalars left plain.

An array in one piece with gzip is cut into chunks of HDF5's own choice. No checksums: a flipped bit in
a plain dataset goes unseen, and one in a compressed dataset is only found where gzip trips over it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from hpcckpt.formats.base import Format

GZIP_LEVEL = 4
"""Default of `chainer.serializers.save_hdf5`."""


class Hdf5(Format):
    suffix = ".h5"
    compressed = True
    frameworks = frozenset({"numpy_toy", "chainer"})
    expected_coverage = (0.95, 1.05)
    coverage_reason = "HDF5 writes its superblock twice and leaves holes in the blocks of its metadata"

    def write(self, arrays: Mapping[str, np.ndarray], path: Path) -> None:
        import h5py

        with h5py.File(path, "w") as file:
            for key, array in arrays.items():
                file.create_dataset(key, data=array, compression=GZIP_LEVEL if array.size > 1 else None)

    def load(self, path: Path) -> dict[str, np.ndarray]:
        import h5py

        found: dict[str, np.ndarray] = {}

        def visit(name: str, item: h5py.Group | h5py.Dataset) -> None:
            if isinstance(item, h5py.Dataset):
                found[name] = np.asarray(item)

        with h5py.File(path, "r") as file:  # Chainer's own files nest their datasets in groups
            file.visititems(visit)
        return found
