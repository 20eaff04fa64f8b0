"""Keras 3 models from the neutral layers. No optimizer and no training here.

Images come in as (channels, height, width), as in every framework; the model's first layer turns
them round, because TensorFlow's kernels for CPUs want the channels last.
"""

from __future__ import annotations

from functools import cache
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
    """The Keras model: from images to logits, every layer named by its place."""
    import keras

    images = keras.Input(model.input_shape, name="images")
    first = keras.layers.Permute((2, 3, 1), name="channels_last")(images)
    logits = _sequence(first, model.layers(), model.input_shape, "layer")
    return keras.Model(images, logits, name=model.name)


def _sequence(x: Any, layers: tuple[Layer, ...], shape: Shape, prefix: str) -> Any:
    """Names go by place, so that they are the same in every process and in a model read from a file."""
    before: Layer | None = None
    for index, (layer, at) in enumerate(walk(layers, shape)):
        if isinstance(layer, MaxPool) and layer.padding and not isinstance(before, Relu):
            raise SpecError("Keras pads with zeros: a padded MaxPool must stand right behind a Relu")
        x = _apply(x, layer, at, f"{prefix}{index:02d}_{type(layer).__name__.lower()}")
        before = layer
    return x


def _apply(x: Any, layer: Layer, shape: Shape, name: str) -> Any:
    if isinstance(layer, Residual):
        ways = ((layer.body, "body"), (layer.shortcut, "shortcut"))
        return _keras("Add", name)([_sequence(x, inner, shape, f"{name}_{way}") for inner, way in ways])
    for builder in (_of_images, _of_tokens, _plain):
        found = builder(x, layer, shape, name)
        if found is not None:
            return found
    raise SpecError(f"Keras adapters cannot build the layer {type(layer).__name__}")


def _keras(kind: str, name: str, *arguments: Any, **options: Any) -> Any:
    """A new layer of Keras's class `kind`."""
    import keras

    return getattr(keras.layers, kind)(*arguments, name=name, **options)


def _plain(x: Any, layer: Layer, shape: Shape, name: str) -> Any:
    match layer:
        case Relu():
            return _keras("ReLU", name)(x)
        case Gelu():
            return _keras("Activation", name, "gelu")(x)
        case Flatten():
            return _keras("Flatten", name)(x)
        case Dense(features, bias):
            return _keras("Dense", name, features, use_bias=bias)(x)
        case Dropout(share):
            return _keras("Dropout", name, share)(x)
    return None


def _of_images(x: Any, layer: Layer, shape: Shape, name: str) -> Any:
    match layer:
        case Conv():
            return _convolution(x, layer, name)
        case BatchNorm():  # PyTorch's numbers; its momentum is the share of the new value, Keras's of the old
            return _keras("BatchNormalization", name, momentum=0.9, epsilon=1e-5)(x)
        case MaxPool(kernel, stride, padding):
            padded = _keras("ZeroPadding2D", f"{name}_pad", padding)(x) if padding else x
            return _keras("MaxPooling2D", name, kernel, stride)(padded)
        case GlobalAveragePool():
            return _keras("GlobalAveragePooling2D", name)(x)
        case Patches(size):
            return _patches(x, size, shape, name)
    return None


def _of_tokens(x: Any, layer: Layer, shape: Shape, name: str) -> Any:
    match layer:
        case Positions():
            return _add_positions()(name=name)(x)
        case LayerNorm():
            return _keras("LayerNormalization", name, epsilon=1e-5)(x)
        case SelfAttention(heads, causal):
            attention = _keras("MultiHeadAttention", name, heads, shape[-1] // heads)
            return attention(x, x, use_causal_mask=causal)
        case MeanOverTokens():
            return _keras("GlobalAveragePooling1D", name)(x)
    return None


def _convolution(x: Any, layer: Conv, name: str) -> Any:
    """Padding is the same on all sides; Keras's own "same" is that only at stride 1."""
    same = layer.stride == 1 and 2 * layer.padding == layer.kernel - 1
    if layer.padding and not same:
        x = _keras("ZeroPadding2D", f"{name}_pad", layer.padding)(x)
    padding = "same" if same else "valid"
    arguments = (layer.channels, layer.kernel, layer.stride, padding)
    return _keras("Conv2D", name, *arguments, use_bias=layer.bias)(x)


def _patches(x: Any, size: int, shape: Shape, name: str) -> Any:
    """Squares row by row; within one, channel by channel, although the channels come last here."""
    channels, height, width = shape
    rows, columns = height // size, width // size
    x = _keras("Reshape", f"{name}_cut", (rows, size, columns, size, channels))(x)
    x = _keras("Permute", f"{name}_sort", (1, 3, 5, 2, 4))(x)
    return _keras("Reshape", name, (rows * columns, channels * size**2))(x)


@cache
def _add_positions() -> Any:
    """Keras has no layer that only adds trained values; this is registered, so that files with it load."""
    import keras

    @keras.saving.register_keras_serializable("hpcckpt")
    class AddPositions(keras.layers.Layer):  # type: ignore[misc]
        def build(self, shape: Any) -> None:
            initial = keras.initializers.RandomNormal(stddev=POSITION_SCALE)
            self.positions = self.add_weight(shape=shape[1:], initializer=initial, name="positions")

        def call(self, x: Any) -> Any:
            return x + self.positions

    return AddPositions
