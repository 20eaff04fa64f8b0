"""torch modules built from the neutral layers. No distribution and no optimizer here."""

from __future__ import annotations

from typing import Any

from hpcckpt.errors import SpecError
from hpcckpt.models.base import (
    BatchNorm,
    Conv,
    Dense,
    Dropout,
    Flatten,
    Gelu,
    GlobalAveragePool,
    Layer,
    LayerNorm,
    MaxPool,
    MeanOverTokens,
    Model,
    Patches,
    Positions,
    Relu,
    Residual,
    SelfAttention,
    Shape,
    walk,
)

POSITION_SCALE = 0.02
"""Standard deviation of the initial position vectors, as in GPT-2."""


def build(model: type[Model]) -> Any:
    """The torch module of a model."""
    return _sequence(model.layers(), model.input_shape)


def _sequence(layers: tuple[Layer, ...], shape: Shape) -> Any:
    from torch import nn

    return nn.Sequential(*(_module(layer, at) for layer, at in walk(layers, shape)))


def _module(layer: Layer, shape: Shape) -> Any:
    found = _plain(layer, shape)
    if found is None:
        found = _of_tokens(layer, shape)
    if found is None:
        raise SpecError(f"PyTorch adapters cannot build the layer {type(layer).__name__}")
    return found


def _plain(layer: Layer, shape: Shape) -> Any:
    from torch import nn

    match layer:
        case Conv(channels, kernel, stride, padding, bias):
            return nn.Conv2d(shape[0], channels, kernel, stride, padding, bias=bias)
        case BatchNorm():
            return nn.BatchNorm2d(shape[0])
        case Relu():
            return nn.ReLU()
        case MaxPool(kernel, stride, padding):
            return nn.MaxPool2d(kernel, stride, padding)
        case GlobalAveragePool():
            return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        case Flatten():
            return nn.Flatten()
        case Dense(features, bias):
            return nn.Linear(shape[-1], features, bias=bias)
        case Dropout(share):
            return nn.Dropout(share)
        case Residual():
            return _residual(layer, shape)
    return None


def _of_tokens(layer: Layer, shape: Shape) -> Any:
    from torch import nn

    match layer:
        case Patches(size):
            return _patches(size)
        case Positions():
            return _positions(shape)
        case LayerNorm():
            return nn.LayerNorm(shape[-1])
        case Gelu():
            return nn.GELU()
        case SelfAttention(heads, causal):
            return _attention(heads, causal, shape)
        case MeanOverTokens():
            return _mean_over_tokens()
    return None


def _residual(layer: Residual, shape: Shape) -> Any:
    from torch import nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = _sequence(layer.body, shape)
            self.shortcut = _sequence(layer.shortcut, shape)

        def forward(self, x: Any) -> Any:
            return self.body(x) + self.shortcut(x)

    return Block()


def _patches(size: int) -> Any:
    from torch import nn

    class PatchRows(nn.Unfold):
        def forward(self, x: Any) -> Any:
            return super().forward(x).transpose(1, 2)

    return PatchRows(size, stride=size)


def _positions(shape: Shape) -> Any:
    import torch
    from torch import nn

    class AddPositions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(shape) * POSITION_SCALE)

        def forward(self, x: Any) -> Any:
            return x + self.weight

    return AddPositions()


def _attention(heads: int, causal: bool, shape: Shape) -> Any:
    from torch import nn
    from torch.nn.functional import scaled_dot_product_attention

    width = shape[-1]

    class Attention(nn.Module):
        """Three projections and not one fused, so that each can be dealt out to ranks by whole heads."""

        def __init__(self) -> None:
            super().__init__()
            self.heads = heads
            self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

        def forward(self, x: Any) -> Any:
            # The number of heads comes from the width that is here: a rank may hold some of them only.
            q, k, v = (
                p(x).unflatten(-1, (-1, width // heads)).transpose(1, 2)
                for p in (self.query, self.key, self.value)
            )
            mixed = scaled_dot_product_attention(q, k, v, is_causal=causal)
            return self.out(mixed.transpose(1, 2).flatten(2))

    return Attention()


def _mean_over_tokens() -> Any:
    from torch import nn

    class MeanRows(nn.Module):
        def forward(self, x: Any) -> Any:
            return x.mean(dim=1)

    return MeanRows()
