"""TensorFlow's SavedModel: a directory with the model's functions as graphs, and a tensor bundle.

Written by `tf.saved_model.save`, which takes the optimizer along. Keras's `model.export` is another
thing: without the optimizer, and with each array twice under two names.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from hpcckpt.formats._tensorflow import WholeModel, by_objects
from hpcckpt.frameworks._keras import slots


class SavedModel(WholeModel):
    suffix = ".savedmodel"
    expected_coverage = (0.99, 1.01)
    coverage_reason = "written front to back; the index of the arrays is written twice"

    def write(self, arrays: Mapping[str, np.ndarray], path: Path) -> None:
        import tensorflow as tf

        tf.saved_model.save(self.model, str(path))

    def load(self, path: Path) -> dict[str, np.ndarray]:
        keys = {id(slot.variable): slot.key for slot in slots(self.model, self.model.optimizer)}
        return by_objects(path / "variables" / "variables", self.model, keys)
