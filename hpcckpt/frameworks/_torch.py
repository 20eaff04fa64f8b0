"""What PyTorch adapters share: modules built from the neutral layers, and optimizer state as named arrays."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from hpcckpt.errors import SpecError
from hpcckpt.frameworks.base import Entry, entry
from hpcckpt.models.base import (
    BatchNorm,
    Conv,
    Dense,
    Dropout,
    Flatten,
    GlobalAveragePool,
    Layer,
    MaxPool,
    Model,
    Relu,
    Residual,
    Shape,
    walk,
)


def build(model: type[Model]) -> Any:
    """The torch module of a model."""
    return _sequence(model.layers(), model.input_shape)


def _sequence(layers: tuple[Layer, ...], shape: Shape) -> Any:
    from torch import nn

    return nn.Sequential(*(_module(layer, at) for layer, at in walk(layers, shape)))


def _module(layer: Layer, shape: Shape) -> Any:
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
            return nn.Linear(shape[0], features, bias=bias)
        case Dropout(share):
            return nn.Dropout(share)
        case Residual():
            return _residual(layer, shape)
    raise SpecError(f"PyTorch adapters cannot build the layer {type(layer).__name__}")


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


def make_optimizer(name: str, parameters: Iterable[Any], rate: float) -> Any:
    """The torch optimizer of that name."""
    import torch

    if name == "adam":
        return torch.optim.Adam(parameters, lr=rate)
    return torch.optim.SGD(parameters, lr=rate, momentum=0.9 if name == "momentum" else 0.0)


def optimizer_entries(optimizer: Any, module: Any) -> list[Entry]:
    """Optimizer state by parameter name and slot, and each group's plain numbers."""
    found = []
    for name, parameter in module.named_parameters():
        for slot, value in optimizer.state.get(parameter, {}).items():
            if value is not None:
                found.append(entry(f"optimizer.{slot}.{name}", "optimizer", _array(value)))
    for index, group in enumerate(optimizer.param_groups):
        for key, value in group.items():
            if isinstance(value, int | float):
                found.append(entry(f"optimizer.group{index}.{key}", "other", np.asarray(float(value))))
    return found


def optimizer_load(optimizer: Any, module: Any, arrays: dict[str, np.ndarray]) -> None:
    """Inverse of `optimizer_entries`; slots that the arrays lack are left empty."""
    optimizer.state.clear()
    for name, parameter in module.named_parameters():
        suffix = f".{name}"
        for key, array in arrays.items():
            if key.startswith("optimizer.") and key.endswith(suffix):
                slot = key[len("optimizer.") : -len(suffix)]
                if "." not in slot:
                    optimizer.state[parameter][slot] = tensor_of(array).clone()
    for index, group in enumerate(optimizer.param_groups):
        for key, value in group.items():
            saved = arrays.get(f"optimizer.group{index}.{key}")
            if saved is not None and isinstance(value, int | float):
                group[key] = type(value)(saved)


def tensor_of(array: np.ndarray) -> Any:
    """A torch tensor over the array's memory, or over a copy where that memory is read-only."""
    import torch

    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _array(value: Any) -> np.ndarray:
    return value.detach().numpy() if hasattr(value, "detach") else np.asarray(value)
