"""What TensorFlow's formats share: whole models, and reading arrays by the keys of a state."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from hpcckpt.errors import SpecError
from hpcckpt.formats.base import Format
from hpcckpt.frameworks.base import Entry, Framework

OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
"""Under this name TensorFlow keeps which array belongs to which object."""


class WholeModel(Format):
    """Writes the framework's Keras model; its random states and the data order are not part of one."""

    frameworks = frozenset({"tensorflow"})
    whole_model = True
    left_out: ClassVar[frozenset[str]] = frozenset({"rng", "data_position"})
    """Kinds of state that do not get into the file (measured: dropout's generators are saved nowhere)."""

    def __init__(self, framework: Framework) -> None:
        super().__init__(framework)
        if framework.settings.include is not None or framework.settings.exclude:
            raise SpecError(f"settings.include/exclude: {type(self).__name__} always writes the whole model")
        tensorflow: Any = framework
        tensorflow.compile()  # again: a save as .h5 takes the optimizer out of the model's description

    @classmethod
    def carries(cls, entry: Entry) -> bool:
        return entry.kind not in cls.left_out

    @property
    def model(self) -> Any:
        framework: Any = self.framework
        return framework.model


def by_objects(prefix: Path, root: Any, keys: Mapping[int, str]) -> dict[str, np.ndarray]:
    """Arrays of an object-based checkpoint, by the key of the live object that each belongs to.

    `keys` holds keys by the id of a variable; the objects of the file are matched with those below
    `root` by the names of their references, as a restore does, but nothing is assigned.
    """
    import tensorflow as tf
    from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph

    reader = tf.train.load_checkpoint(str(prefix))
    graph = TrackableObjectGraph()
    graph.ParseFromString(reader.get_tensor(OBJECT_GRAPH))
    arrays = {}
    for number, live in tf.train.CheckpointView(str(prefix)).match(root).items():
        for attribute in graph.nodes[number].attributes if id(live) in keys else ():
            arrays[keys[id(live)]] = np.asarray(reader.get_tensor(attribute.checkpoint_key))
    return arrays
