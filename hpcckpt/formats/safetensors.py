"""safetensors: a JSON header with names, shapes and offsets, then all tensors' bytes. No pickle, no code.

The library itself writes under a hidden name (`.tmp...`, mode 0600) in the same directory and
renames, without any fsync.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from hpcckpt.formats.base import Format


class Safetensors(Format):
    suffix = ".safetensors"
    frameworks = frozenset({"pytorch"})
    expected_coverage = (0.99, 1.01)
    coverage_reason = "written once, front to back, under a hidden name of the library's own"

    def write(self, arrays: Mapping[str, np.ndarray], path: Path) -> None:
        from safetensors.numpy import save_file

        save_file(dict(arrays), path)

    def load(self, path: Path) -> dict[str, np.ndarray]:
        from safetensors.numpy import load_file

        arrays: dict[str, np.ndarray] = load_file(path)
        return arrays
