"""TensorFlow's tensor bundle: an index and data files, in a directory of their own.

Any named arrays, written by the operation that lies behind every TensorFlow checkpoint. Each array
carries a CRC-32C, so a damaged one is noticed when it is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from hpcckpt.formats.base import Format

STEM = "arrays"


class TfBundle(Format):
    suffix = ".bundle"
    frameworks = frozenset({"tensorflow"})
    expected_coverage = (0.99, 1.01)
    coverage_reason = "written front to back under a temporary name; tf.train.Checkpoint writes the index twice"

    def write(self, arrays: Mapping[str, np.ndarray], path: Path) -> None:
        import tensorflow as tf

        path.mkdir()
        names = list(arrays)
        tf.raw_ops.SaveV2(
            prefix=str(path / STEM),
            tensor_names=names,
            shape_and_slices=[""] * len(names),
            tensors=[tf.constant(arrays[name]) for name in names],
        )

    def load(self, path: Path) -> dict[str, np.ndarray]:
        import tensorflow as tf

        reader = tf.train.load_checkpoint(str(path / STEM))
        return {name: np.asarray(reader.get_tensor(name)) for name in reader.get_variable_to_shape_map()}
