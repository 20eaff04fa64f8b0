"""An AlexNet-like network for 32 x 32 images: most of its 23 million values sit in two dense layers."""

from __future__ import annotations

from hpcckpt.models.base import Conv, Dense, Dropout, Flatten, Layer, MaxPool, Model, Relu


class AlexNet(Model):
    name = "alexnet"

    @classmethod
    def layers(cls) -> tuple[Layer, ...]:
        return (
            *(Conv(64, kernel=3, stride=2, padding=1), Relu(), MaxPool(2, 2)),
            *(Conv(192, kernel=3, padding=1), Relu(), MaxPool(2, 2)),
            *(Conv(384, kernel=3, padding=1), Relu()),
            *(Conv(256, kernel=3, padding=1), Relu()),
            *(Conv(256, kernel=3, padding=1), Relu(), MaxPool(2, 2)),
            Flatten(),
            *(Dense(4096), Relu(), Dropout(0.5)),
            *(Dense(4096), Relu(), Dropout(0.5)),
            Dense(cls.classes),
        )
