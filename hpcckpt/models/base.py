"""The neutral description of a network: layers, shapes, and how many values they hold.

A framework adapter builds its own modules from these layers, so that the same name means the same
parameters in every framework. Shapes are (channels, height, width), (tokens, features) or
(features,); no framework here. An adapter refuses a layer that it does not know with a SpecError.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Layer:
    """Base of all layers; one without values of its own keeps the defaults."""

    def output(self, shape: Shape) -> Shape:
        """Shape behind this layer, for one sample of `shape`."""
        return shape

    def parameters(self, shape: Shape) -> int:
        """Trainable values."""
        return 0

    def buffers(self, shape: Shape) -> int:
        """Values that are saved but not trained: running statistics."""
        return 0


@dataclass(frozen=True)
class Conv(Layer):
    """Square 2-D convolution."""

    channels: int
    kernel: int
    stride: int = 1
    padding: int = 0
    bias: bool = True

    def output(self, shape: Shape) -> Shape:
        return (self.channels, *(_slide(n, self.kernel, self.stride, self.padding) for n in shape[1:]))

    def parameters(self, shape: Shape) -> int:
        return self.channels * (shape[0] * self.kernel**2 + self.bias)


@dataclass(frozen=True)
class BatchNorm(Layer):
    """Per channel: scale and shift (trained), running mean and variance (buffers)."""

    def parameters(self, shape: Shape) -> int:
        return 2 * shape[0]

    def buffers(self, shape: Shape) -> int:
        return 2 * shape[0]


@dataclass(frozen=True)
class Relu(Layer):
    """max(x, 0)."""


@dataclass(frozen=True)
class MaxPool(Layer):
    """Square maximum pooling."""

    kernel: int
    stride: int
    padding: int = 0

    def output(self, shape: Shape) -> Shape:
        return (shape[0], *(_slide(n, self.kernel, self.stride, self.padding) for n in shape[1:]))


@dataclass(frozen=True)
class GlobalAveragePool(Layer):
    """Mean over height and width; leaves (channels,)."""

    def output(self, shape: Shape) -> Shape:
        return (shape[0],)


@dataclass(frozen=True)
class Flatten(Layer):
    """All of a sample in one row."""

    def output(self, shape: Shape) -> Shape:
        return (math.prod(shape),)


@dataclass(frozen=True)
class Dense(Layer):
    """Fully connected; of (tokens, features), each token by itself."""

    features: int
    bias: bool = True

    def output(self, shape: Shape) -> Shape:
        return (*shape[:-1], self.features)

    def parameters(self, shape: Shape) -> int:
        return self.features * (shape[-1] + self.bias)


@dataclass(frozen=True)
class Dropout(Layer):
    """Zeroes a share of the values while training: it draws from the framework's random state."""

    share: float


@dataclass(frozen=True)
class Gelu(Layer):
    """x times the normal distribution's share below x (the exact form, not the one by tanh)."""


@dataclass(frozen=True)
class Patches(Layer):
    """Cuts an image into squares, row by row: each becomes a token of its values, channel by channel."""

    size: int

    def output(self, shape: Shape) -> Shape:
        channels, height, width = shape
        return ((height // self.size) * (width // self.size), channels * self.size**2)


@dataclass(frozen=True)
class Positions(Layer):
    """Adds a trained vector to each token, by its place."""

    def parameters(self, shape: Shape) -> int:
        return math.prod(shape)


@dataclass(frozen=True)
class LayerNorm(Layer):
    """Each token to mean 0 and variance 1, then scale and shift (trained)."""

    def parameters(self, shape: Shape) -> int:
        return 2 * shape[-1]


@dataclass(frozen=True)
class SelfAttention(Layer):
    """Scaled dot-product attention: query, key, value and output projections of the tokens' width and biases.

    `causal`: a token sees itself and those before it.
    """

    heads: int
    causal: bool = True

    def parameters(self, shape: Shape) -> int:
        return 4 * shape[-1] * (shape[-1] + 1)


@dataclass(frozen=True)
class MeanOverTokens(Layer):
    """Leaves (features,)."""

    def output(self, shape: Shape) -> Shape:
        return (shape[-1],)


@dataclass(frozen=True)
class Residual(Layer):
    """body(x) + shortcut(x); an empty shortcut is the identity."""

    body: tuple[Layer, ...]
    shortcut: tuple[Layer, ...] = ()

    def output(self, shape: Shape) -> Shape:
        return output_shape(self.body, shape)

    def parameters(self, shape: Shape) -> int:
        return count(self.body, shape)[0] + count(self.shortcut, shape)[0]

    def buffers(self, shape: Shape) -> int:
        return count(self.body, shape)[1] + count(self.shortcut, shape)[1]


class Model:
    """A named network for CIFAR-10-shaped images."""

    name: ClassVar[str]
    input_shape: ClassVar[Shape] = (3, 32, 32)
    classes: ClassVar[int] = 10

    @classmethod
    def layers(cls) -> tuple[Layer, ...]:
        """From input to logits."""
        raise NotImplementedError

    @classmethod
    def parameter_count(cls) -> int:
        return count(cls.layers(), cls.input_shape)[0]

    @classmethod
    def buffer_count(cls) -> int:
        return count(cls.layers(), cls.input_shape)[1]


Base = Model


def _slide(size: int, kernel: int, stride: int, padding: int) -> int:
    return (size + 2 * padding - kernel) // stride + 1


def walk(layers: tuple[Layer, ...], shape: Shape) -> Iterator[tuple[Layer, Shape]]:
    """Each layer with the shape of what enters it."""
    for layer in layers:
        yield layer, shape
        shape = layer.output(shape)


def output_shape(layers: tuple[Layer, ...], shape: Shape) -> Shape:
    for layer in layers:
        shape = layer.output(shape)
    return shape


def count(layers: tuple[Layer, ...], shape: Shape) -> tuple[int, int]:
    """(parameters, buffers) of the layers together."""
    found = [(layer.parameters(at), layer.buffers(at)) for layer, at in walk(layers, shape)]
    return sum(p for p, _ in found), sum(b for _, b in found)
