"""Keras 3's own file, .keras: an uncompressed zip of the model's description and one HDF5 file of arrays.

Keras builds the HDF5 file in memory and copies it into the archive; where memory is short it builds
it in a temporary file beside the archive instead, and the bytes are written twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from hpcckpt.formats._tensorflow import WholeModel
from hpcckpt.frameworks._keras import arrays_of


class Keras(WholeModel):
    suffix = ".keras"
    expected_coverage = (0.99, 1.01)
    coverage_reason = "zip headers are written again when a member's size is known"

    def temporary(self, path: Path) -> Path:
        return path.with_name(f"tmp.{path.name}")  # Keras goes by the ending of the name

    def write(self, arrays: Mapping[str, np.ndarray], path: Path) -> None:
        self.model.save(path)

    def load(self, path: Path) -> dict[str, np.ndarray]:
        import keras

        return arrays_of(keras.saving.load_model(path))
