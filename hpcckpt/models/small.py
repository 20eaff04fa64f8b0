"""A network for a workstation: two convolutions and two dense layers, 2.1 million parameters.

Most of its values sit in one dense layer, so that a step is cheap and a checkpoint is not.
"""

from __future__ import annotations

from hpcckpt.models.base import Conv, Dense, Flatten, Layer, MaxPool, Model, Relu


class Small(Model):
    name = "small"

    @classmethod
    def layers(cls) -> tuple[Layer, ...]:
        return (
            Conv(16, kernel=3, padding=1),
            Relu(),
            MaxPool(2, 2),
            Conv(64, kernel=3, padding=1),
            Relu(),
            MaxPool(2, 2),
            Flatten(),
            Dense(512),
            Relu(),
            Dense(cls.classes),
        )
