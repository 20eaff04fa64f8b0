"""Chainer's default: a zip archive of .npy files, each deflated by zlib at its default level, in one thread.

The size of a file depends on what the tensors hold, and so does the time to write it: sum the
inventory's `tensor_bytes` of a file over its `file_bytes` for the ratio.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from hpcckpt.formats.base import Format


class Npz(Format):
    suffix = ".npz"
    compressed = True
    frameworks = frozenset({"numpy_toy", "chainer"})
    expected_coverage = (0.99, 1.05)
    coverage_reason = "zip headers are written again when a member's size is known"

    def write(self, arrays: Mapping[str, np.ndarray], path: Path) -> None:
        with path.open("wb") as stream:  # given a name, savez would append its own suffix
            np.savez_compressed(stream, allow_pickle=False, **arrays)

    def load(self, path: Path) -> dict[str, np.ndarray]:
        with np.load(path, allow_pickle=False) as archive:
            return {key: archive[key] for key in archive.files}
