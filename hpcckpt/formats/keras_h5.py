"""Keras's former file, .h5: the whole model in HDF5, its optimizer included.

The file holds the optimizer's arrays, but Keras 3's own `load_model` gives back only its step count
and learning rate and says nothing of the rest (seen with 3.15). So the arrays are read from the
file itself here: the file is what is measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hpcckpt.formats._tensorflow import WholeModel
from hpcckpt.frameworks._keras import OPTIMIZER_NAME


class KerasH5(WholeModel):
    suffix = ".h5"
    expected_coverage = (0.97, 1.03)
    coverage_reason = "HDF5 leaves holes that nobody writes, and writes its tables again as they grow"

    def temporary(self, path: Path) -> Path:
        return path.with_name(f"tmp.{path.name}")  # Keras goes by the ending of the name

    def write(self, arrays: Mapping[str, np.ndarray], path: Path) -> None:
        self.model.save(path)

    def load(self, path: Path) -> dict[str, np.ndarray]:
        import h5py

        with h5py.File(path, "r") as file:
            layers = (pair for group in file["model_weights"].values() for pair in _arrays(group))
            found = {f"model.{path}": array for path, array in layers}
            slots = _arrays(file["optimizer_weights"][OPTIMIZER_NAME])
            return found | {f"optimizer.{path}": array for path, array in slots}


def _arrays(group: Any) -> list[tuple[str, np.ndarray]]:
    """All arrays below a group, each with its path from there: a variable's path in Keras."""
    found: list[tuple[str, np.ndarray]] = []
    group.visititems(lambda path, node: found.append((path, node[()])) if hasattr(node, "shape") else None)
    return [(path, np.asarray(array)) for path, array in found]
