"""Chainer links built from the neutral layers. Nothing here knows of ranks, optimizers or files."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

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
    Patches,
    Positions,
    Relu,
    Residual,
    SelfAttention,
    Shape,
    walk,
)

BATCH_NORM = {"decay": 0.9, "eps": 1e-5}
"""As the other frameworks' defaults; Chainer's own eps is 2e-5."""
LAYER_NORM_EPS = 1e-5


def build(layers: tuple[Layer, ...], shape: Shape) -> Any:
    """One link that runs the layers in order; each child carries its place among the layers in its name.

    Chainer's own Sequential numbers its children in another order than it runs them.
    """
    import chainer

    steps = [_step(layer, at) for layer, at in walk(layers, shape)]
    children = {f"layer{n}": step for n, step in enumerate(steps) if isinstance(step, chainer.Link)}

    def forward(_: Any, x: Any) -> Any:
        for step in steps:
            x = step(x)
        return x

    return _chain(forward, **children)


def _chain(forward: Callable[..., Any], **members: Any) -> Any:
    """A Chain of these links and parameters that computes `forward(chain, x)`."""
    import chainer

    class Composed(chainer.Chain):  # type: ignore[misc]  # Chainer has no types
        def __init__(self) -> None:
            super().__init__()
            with self.init_scope():
                for name, member in members.items():
                    setattr(self, name, member)

        def forward(self, x: Any) -> Any:
            return forward(self, x)

    return Composed()


def _step(layer: Layer, shape: Shape) -> Any:
    found = _convolutional(layer, shape) or _of_tokens(layer, shape)
    if found is None:
        raise SpecError(f"Chainer adapters cannot build the layer {type(layer).__name__}")
    return found


def _convolutional(layer: Layer, shape: Shape) -> Any:
    from chainer import functions, links

    match layer:
        case Conv(channels, kernel, stride, padding, bias):
            return links.Convolution2D(shape[0], channels, kernel, stride, padding, nobias=not bias)
        case BatchNorm():
            return links.BatchNormalization(shape[0], **BATCH_NORM)
        case Relu():
            return functions.relu
        case MaxPool(kernel, stride, padding):
            pool = partial(functions.max_pooling_2d, ksize=kernel, stride=stride, pad=padding)
            return partial(pool, cover_all=False)  # Chainer's default would round sizes up
        case GlobalAveragePool():
            return partial(functions.average, axis=(2, 3))
        case Flatten():
            return partial(functions.reshape, shape=(-1, math.prod(shape)))
        case Dropout(share):
            return partial(functions.dropout, ratio=share)
        case Residual(body, shortcut):
            return _residual(build(body, shape), build(shortcut, shape))
    return None


def _of_tokens(layer: Layer, shape: Shape) -> Any:
    from chainer import functions, links

    match layer:
        case Dense(features, bias):
            return _dense(shape, features, bias)
        case Gelu():
            return lambda x: 0.5 * x * (1 + functions.erf(x / math.sqrt(2)))
        case Patches(size):
            return partial(_patches, size=size)
        case Positions():
            return _positions(shape)
        case LayerNorm():
            return _each_token(links.LayerNormalization(shape[-1], eps=LAYER_NORM_EPS))
        case SelfAttention(heads, causal):
            return _attention(shape, heads, causal)
        case MeanOverTokens():
            return partial(functions.average, axis=1)
    return None


def _residual(body: Any, shortcut: Any) -> Any:
    return _chain(lambda chain, x: chain.body(x) + chain.shortcut(x), body=body, shortcut=shortcut)


def _dense(shape: Shape, features: int, bias: bool = True) -> Any:
    from chainer import links

    dense = links.Linear(shape[-1], features, nobias=not bias)
    return dense if len(shape) == 1 else _each_token(dense)


def _each_token(link: Any) -> Any:
    """A link of (batch, features), applied to (batch, tokens, features)."""
    from chainer import functions

    def forward(chain: Any, x: Any) -> Any:
        y = chain.each(functions.reshape(x, (-1, x.shape[-1])))
        return functions.reshape(y, (*x.shape[:-1], -1))

    return _chain(forward, each=link)


def _patches(x: Any, size: int) -> Any:
    from chainer import functions

    batch, channels, height, width = x.shape
    cut = functions.reshape(x, (batch, channels, height // size, size, width // size, size))
    return functions.reshape(functions.transpose(cut, (0, 2, 4, 1, 3, 5)), (batch, -1, channels * size**2))


def _positions(shape: Shape) -> Any:
    import chainer

    place = chainer.Parameter(chainer.initializers.Normal(0.02), shape)
    return _chain(lambda chain, x: x + chainer.functions.broadcast_to(chain.place, x.shape), place=place)


def _attention(shape: Shape, heads: int, causal: bool) -> Any:
    from chainer import functions

    tokens, width = shape
    hidden = np.triu(np.full((tokens, tokens), -np.inf, dtype=np.float32), k=1)

    def split(x: Any) -> Any:
        return functions.transpose(functions.reshape(x, (-1, tokens, heads, width // heads)), (0, 2, 1, 3))

    def forward(chain: Any, x: Any) -> Any:
        query, key, value = (split(part(x)) for part in (chain.query, chain.key, chain.value))
        scores = functions.matmul(query, key, transb=True) / math.sqrt(width // heads)
        if causal:
            scores += chain.xp.broadcast_to(chain.xp.asarray(hidden), scores.shape)
        mixed = functions.matmul(functions.softmax(scores, axis=3), value)
        joined = functions.reshape(functions.transpose(mixed, (0, 2, 1, 3)), (-1, tokens, width))
        return chain.output(joined)

    return _chain(forward, **{name: _dense(shape, width) for name in ("query", "key", "value", "output")})
