"""VGG-16 (Simonyan and Zisserman 2014) with batch norm, its head shortened for 32 x 32 images."""

from __future__ import annotations

from hpcckpt.models.base import BatchNorm, Conv, Dense, Dropout, Flatten, Layer, MaxPool, Model, Relu

STAGES = ((2, 64), (2, 128), (3, 256), (3, 512), (3, 512))
"""(convolutions, channels) between two poolings."""


class Vgg16(Model):
    name = "vgg16"

    @classmethod
    def layers(cls) -> tuple[Layer, ...]:
        convolutions: list[Layer] = []
        for count, channels in STAGES:
            convolutions += [Conv(channels, kernel=3, padding=1), BatchNorm(), Relu()] * count
            convolutions.append(MaxPool(2, 2))
        return (*convolutions, Flatten(), Dense(512), Relu(), Dropout(0.5), Dense(cls.classes))
