"""ResNet-50 (He et al. 2016) with bottleneck blocks and ten classes, for 32 x 32 images."""

from __future__ import annotations

from hpcckpt.models.base import (
    BatchNorm,
    Conv,
    Dense,
    GlobalAveragePool,
    Layer,
    MaxPool,
    Model,
    Relu,
    Residual,
)

STAGES = ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2))
"""(blocks, inner channels, stride of the first block); a block ends with four times the inner channels."""


class ResNet50(Model):
    name = "resnet50"

    @classmethod
    def layers(cls) -> tuple[Layer, ...]:
        blocks: list[Layer] = []
        for count, inner, stride in STAGES:
            for index in range(count):
                blocks += [_bottleneck(inner, stride if index == 0 else 1, first=index == 0), Relu()]
        stem = (Conv(64, kernel=7, stride=2, padding=3, bias=False), BatchNorm(), Relu(), MaxPool(3, 2, 1))
        return (*stem, *blocks, GlobalAveragePool(), Dense(cls.classes))


def _bottleneck(inner: int, stride: int, first: bool) -> Residual:
    body = (
        Conv(inner, kernel=1, bias=False),
        BatchNorm(),
        Relu(),
        Conv(inner, kernel=3, stride=stride, padding=1, bias=False),
        BatchNorm(),
        Relu(),
        Conv(4 * inner, kernel=1, bias=False),
        BatchNorm(),
    )
    shortcut = (Conv(4 * inner, kernel=1, stride=stride, bias=False), BatchNorm()) if first else ()
    return Residual(body, shortcut)
