"""TensorFlow with Keras 3, data parallel by Horovod over MPI.

The gradients are averaged here, by one grouped allreduce inside the step. Horovod's own ways must
not be used: with Keras 3 its optimizer trains on without averaging and without a word, and its tape
does not know Keras's variables.

Random state: while training only dropout draws, each layer from a generator of its own. Nothing
draws from TensorFlow's global generator or from NumPy's, so they are no part of the state.

Determinism, `on`: deterministic ops, and one allreduce algorithm for all sizes. `default`: deterministic ops
alone, since one group of all gradients is summed in one order anyhow. `off`: TensorFlow as it comes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from hpcckpt.frameworks._keras import Slot, make_optimizer, slots
from hpcckpt.frameworks._keras_layers import build
from hpcckpt.frameworks._switches import MPI_SUMS
from hpcckpt.frameworks.base import Entry, Framework, entry

LEARNING_RATE = 0.01


class TensorFlowHorovod(Framework):
    packages = ("tensorflow-cpu", "tensorflow", "keras", "horovod", "numpy", "mpi4py")
    compiles = True
    hides_gradients = None
    model: Any
    """The compiled Keras model: what Keras's own mechanisms save."""
    optimizer: Any

    def start(self) -> None:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        import horovod.tensorflow as hvd
        import keras

        hvd.init()
        self.hvd = hvd
        self._prepare_devices()
        # Differs per rank: the broadcast must make the start equal.
        keras.utils.set_random_seed(self.settings.seed + self.comm.rank)
        self.model = build(self.model_type)
        self.optimizer = self.make_optimizer()
        self.optimizer.build(self.model.trainable_variables)
        self.loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.compile()
        shared = [slot.variable.value for slot in self.slots() if slot.owner is None]
        hvd.broadcast_variables(shared, root_rank=0)
        self._train = self._make_step()

    def _prepare_devices(self) -> None:
        import tensorflow as tf

        threading = tf.config.threading
        if threading.get_intra_op_parallelism_threads() != self.threads:  # refused once anything has run
            threading.set_intra_op_parallelism_threads(self.threads)
            threading.set_inter_op_parallelism_threads(self.threads)
        gpus = tf.config.list_physical_devices("GPU")
        if gpus:
            mine = gpus[self.hvd.local_rank() % len(gpus)]
            tf.config.set_visible_devices(mine, "GPU")
            tf.config.experimental.set_memory_growth(mine, True)
        if self.determinism != "off":
            tf.config.experimental.enable_op_determinism()  # a step after a restore must repeat bit for bit

    def compile(self) -> None:
        """Nothing is fitted here, but the files of a model that is not compiled lack its optimizer."""
        self.model.compile(optimizer=self.optimizer, loss=self.loss)

    @classmethod
    def environment(cls, determinism: str) -> dict[str, str]:
        return dict(MPI_SUMS) if determinism == "on" else {}

    def make_optimizer(self) -> Any:
        return make_optimizer(self.settings.optimizer, LEARNING_RATE)

    def average(self, gradients: list[Any]) -> list[Any]:
        """Mean of every gradient over the ranks; one group, so that the order of the sums is fixed."""
        averaged: list[Any] = self.hvd.grouped_allreduce(gradients, op=self.hvd.Average)
        return averaged

    def _make_step(self) -> Callable[[np.ndarray, np.ndarray], Any]:
        """The graph of a step; its first call traces it."""
        import tensorflow as tf

        trained = self.model.trainable_variables
        shown = self.settings.restart is not None  # a graph hands out what it returns, and nothing else
        values = [variable.value for variable in trained]  # the tape watches TensorFlow's own variables

        def train(images: Any, labels: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = self.loss(labels, self.model(images, training=True))
            gradients = self.average(tape.gradient(loss, values))
            self.optimizer.apply_gradients(zip(gradients, trained, strict=True))
            return loss, gradients if shown else []

        step: Callable[[np.ndarray, np.ndarray], Any] = tf.function(train)
        return step

    def step(self) -> float:
        images, labels = self.batch()
        loss, self._gradients = self._train(images, labels)
        self.position += 1
        return float(loss)

    def gradients(self) -> list[Entry]:
        named = zip(self.model.trainable_weights, self._gradients, strict=True)
        return [entry(f"gradient.{variable.path}", "gradient", grad.numpy()) for variable, grad in named]

    def slots(self) -> list[Slot]:
        """The variables behind the state."""
        return list(slots(self.model, self.optimizer, self.comm.rank))

    def state(self) -> list[Entry]:
        position = entry("data.position", "data_position", np.asarray(self.position, dtype=np.int64))
        return [*(slot.entry() for slot in self.slots()), position]

    def load(self, arrays: dict[str, np.ndarray]) -> None:
        """What Keras's files leave out keeps its values; only parameters must be there."""
        for slot in self.slots():
            if slot.kind == "parameter" or slot.key in arrays:
                slot.assign(arrays[slot.key])
        if "data.position" in arrays:
            self.position = int(arrays["data.position"])

    def versions(self) -> dict[str, str]:
        import horovod
        import keras
        import tensorflow as tf

        return {
            "tensorflow": tf.__version__,
            "keras": keras.__version__,
            "horovod": horovod.__version__,
            "device": "cuda" if tf.config.list_physical_devices("GPU") else "cpu",
            "mpi": getattr(self.comm, "library", "none"),
        }

    def close(self) -> None:
        self.hvd.shutdown()
