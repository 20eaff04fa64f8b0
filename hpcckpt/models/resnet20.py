"""ResNet-20 for CIFAR-10 (He et al. 2016): 0.27 million parameters in many small tensors."""

from __future__ import annotations

from hpcckpt.models.base import BatchNorm, Conv, Dense, GlobalAveragePool, Layer, Model, Relu, Residual

STAGES = ((3, 16, 1), (3, 32, 2), (3, 64, 2))
"""(blocks, channels, stride of the first block)."""


class ResNet20(Model):
    name = "resnet20"

    @classmethod
    def layers(cls) -> tuple[Layer, ...]:
        blocks: list[Layer] = []
        for count, channels, stride in STAGES:
            for index in range(count):
                blocks += [_block(channels, stride if index == 0 else 1), Relu()]
        stem = (Conv(16, kernel=3, padding=1, bias=False), BatchNorm(), Relu())
        return (*stem, *blocks, GlobalAveragePool(), Dense(cls.classes))


def _block(channels: int, stride: int) -> Residual:
    body = (
        Conv(channels, kernel=3, stride=stride, padding=1, bias=False),
        BatchNorm(),
        Relu(),
        Conv(channels, kernel=3, padding=1, bias=False),
        BatchNorm(),
    )
    shortcut = (Conv(channels, kernel=1, stride=stride, bias=False), BatchNorm()) if stride > 1 else ()
    return Residual(body, shortcut)
