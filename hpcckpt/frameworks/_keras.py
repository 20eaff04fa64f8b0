"""Optimizers and variables of Keras 3 models: a training state as named arrays. No training here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcckpt.frameworks.base import Entry, entry

OPTIMIZER_NAME = "optimizer"
PLAIN_NUMBERS = ("iteration", "learning_rate")
"""Variables of an optimizer that are not arrays of a parameter's size."""


def make_optimizer(name: str, rate: float) -> Any:
    """The Keras optimizer of that name, with PyTorch's constants."""
    import keras

    if name == "adam":
        return keras.optimizers.Adam(rate, epsilon=1e-8, name=OPTIMIZER_NAME)
    return keras.optimizers.SGD(rate, momentum=0.9 if name == "momentum" else 0.0, name=OPTIMIZER_NAME)


@dataclass(frozen=True)
class Slot:
    """One variable of a training state, under the name that Keras gives it."""

    name: str
    kind: str
    variable: Any
    owner: int | None = None

    @property
    def key(self) -> str:
        """Name in a file, as `Entry.key`."""
        return self.name if self.owner is None else f"{self.name}@{self.owner:05d}"

    def array(self) -> np.ndarray:
        """The values, over the variable's own memory where that is in reach of the host.

        An update in place finds the memory shared and takes fresh memory instead, so the array
        keeps its values; what is held over a step costs a copy of the variable there.
        """
        return np.asarray(self.variable.value.read_value())

    def entry(self) -> Entry:
        return entry(self.name, self.kind, self.array(), self.owner)

    def assign(self, array: np.ndarray) -> None:
        """Take over the values; from a copy, since TensorFlow may go on to use the memory it is given."""
        self.variable.assign(np.array(array))


def slots(model: Any, optimizer: Any, rank: int = 0) -> Iterator[Slot]:
    """All variables of a model and its optimizer; each rank has random states of its own."""
    for kind, weights in (("parameter", model.trainable_weights), ("buffer", model.non_trainable_weights)):
        for variable in weights:
            yield Slot(f"model.{variable.path}", kind, variable)
    for layer in model.layers:
        if hasattr(layer, "seed_generator"):  # its own path counts up within a process
            yield Slot(f"rng.{layer.name}", "rng", layer.seed_generator.state, owner=rank)
    for variable in optimizer.variables:
        name = variable.path.partition("/")[2]
        yield Slot(f"optimizer.{name}", "other" if name in PLAIN_NUMBERS else "optimizer", variable)


def arrays_of(model: Any) -> dict[str, np.ndarray]:
    """The shared arrays of a compiled model by entry key."""
    return {slot.key: slot.array() for slot in slots(model, model.optimizer) if slot.owner is None}
