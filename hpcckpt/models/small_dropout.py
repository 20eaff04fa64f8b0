"""A network of 0.14 million parameters with all kinds of state: batch-norm statistics, and dropout that draws.

For tests of restart: what a checkpoint leaves out shows in the next steps, and states are small enough to compare.
"""

from __future__ import annotations

from hpcckpt.models.base import BatchNorm, Conv, Dense, Dropout, Flatten, Layer, MaxPool, Model, Relu


class SmallDropout(Model):
    name = "small_dropout"

    @classmethod
    def layers(cls) -> tuple[Layer, ...]:
        stem = (Conv(16, kernel=3, padding=1), BatchNorm(), Relu(), MaxPool(2, 2))
        body = (Conv(32, kernel=3, padding=1), BatchNorm(), Relu(), MaxPool(2, 2))
        return (*stem, *body, Flatten(), Dropout(0.25), Dense(64), Relu(), Dropout(0.5), Dense(cls.classes))
