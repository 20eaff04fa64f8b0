"""A test double: softmax regression in NumPy, its gradients averaged over MPI. Starts in a moment.

It ignores the model's layers and trains one dense layer of the model's input size, so that tests of
everything around a framework need no framework. Every step draws a brightness, so that random states matter.

Determinism: no switches. NumPy computes alike every time, and MPI's sum is the library's own.
"""

from __future__ import annotations

import math

import numpy as np

from hpcckpt.errors import SpecError
from hpcckpt.frameworks.base import Entry, Framework, entry

LEARNING_RATE = 0.01


class NumpyToy(Framework):
    packages = ("numpy", "mpi4py")
    hides_gradients = None
    _reordered = False

    def start(self) -> None:
        self.generator = np.random.default_rng([self.settings.seed, self.comm.rank])
        weights = self.generator.normal(0, 0.01, (math.prod(self.model_type.input_shape), self.model_type.classes))
        self.weights = np.ascontiguousarray(self.comm.bcast(weights.astype(np.float32)))
        self.velocity = np.zeros_like(self.weights)

    def step(self) -> float:
        images, labels = self.batch()
        flat = images.reshape(len(images), -1) * np.float32(self.generator.uniform(0.9, 1.1))
        logits = flat @ self.weights
        odds = np.exp(logits - logits.max(axis=1, keepdims=True))
        odds /= odds.sum(axis=1, keepdims=True)
        picked = odds[np.arange(len(labels)), labels]
        odds[np.arange(len(labels)), labels] -= 1
        self.gradient = self._mean((flat.T @ odds / len(labels)).astype(np.float32))
        self.velocity = (0.9 * self.velocity + self.gradient).astype(np.float32)
        self.weights -= np.float32(LEARNING_RATE) * self.velocity
        self.position += 1
        return float(-np.log(picked + 1e-9).mean())

    def _mean(self, gradient: np.ndarray) -> np.ndarray:
        if not self._reordered:
            return self.comm.mean(gradient)
        parts = self.comm.allgather(gradient)
        total = parts[0] + parts[-1]  # MPI adds neighbours up first; with two ranks that is the same
        for part in parts[1:-1]:
            total = total + part
        mean: np.ndarray = total / self.comm.size
        return mean

    def reorder(self) -> None:
        if self.comm.size < 3:
            raise SpecError("faults: a sum over fewer than three ranks has one order only")
        self._reordered = True

    def gradients(self) -> list[Entry]:
        return [entry("gradient.weights", "gradient", self.gradient)]

    def state(self) -> list[Entry]:
        state = self.generator.bit_generator.state["state"]
        words = [state[key] >> shift & (2**64 - 1) for key in ("state", "inc") for shift in (0, 64)]
        return [
            entry("model.weights", "parameter", self.weights),
            entry("optimizer.velocity", "optimizer", self.velocity),
            entry("rng.numpy", "rng", np.asarray(words, dtype=np.uint64), owner=self.comm.rank),
            entry("data.position", "data_position", np.asarray(self.position, dtype=np.int64)),
        ]

    def load(self, arrays: dict[str, np.ndarray]) -> None:
        self.weights = arrays["model.weights"].copy()
        self.velocity = arrays["optimizer.velocity"].copy()
        self.position = int(arrays["data.position"])
        words = arrays.get(f"rng.numpy@{self.comm.rank:05d}")
        if words is not None:
            low, high, inc_low, inc_high = (int(word) for word in words)
            state = dict(self.generator.bit_generator.state)
            state["state"] = {"state": low | high << 64, "inc": inc_low | inc_high << 64}
            self.generator.bit_generator.state = state

    def versions(self) -> dict[str, str]:
        return {"numpy": np.__version__, "mpi": getattr(self.comm, "library", "none")}
