"""NumPy's .npz without compression: a zip archive of .npy files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from hpcckpt.formats.base import Format


class NpzPlain(Format):
    suffix = ".npz"
    compressed = False
    frameworks = frozenset({"numpy_toy", "chainer"})
    expected_coverage = (0.99, 1.35)
    coverage_reason = (
        "zip writes each member's header again when its size is known: next to nothing for large tensors, "
        "up to a third more than stays for members of a few bytes"
    )

    def write(self, arrays: Mapping[str, np.ndarray], path: Path) -> None:
        with path.open("wb") as stream:  # given a name, savez would append its own suffix
            save = np.savez_compressed if self.compressed else np.savez
            save(stream, allow_pickle=False, **arrays)

    def load(self, path: Path) -> dict[str, np.ndarray]:
        with np.load(path, allow_pickle=False) as archive:
            return {key: archive[key] for key in archive.files}
