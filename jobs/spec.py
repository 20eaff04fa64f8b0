"""TOML files into typed structs, with errors that name file, key and the nearest known word.

Serves experiments and sites alike. Knows nothing of what a key means; `check_values` compares axis
values with the names that the registry finds.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

from msgspec import inspect

from hpcckpt import registry
from hpcckpt.errors import HpcCkptError, SpecError, nearest
from hpcckpt.experiment import Axes, Experiment, check, check_rules, for_size, points, to_struct

EXPERIMENTS = Path(__file__).with_name("experiments")
PLUGINS = {
    "framework": "hpcckpt.frameworks",
    "model": "hpcckpt.models",
    "strategy": "hpcckpt.strategies",
    "format": "hpcckpt.formats",
}
"""Axes whose values are names of plug-ins."""
SIZES = ("small", "full")
"""What a site can say of itself."""

T = TypeVar("T")


def load(path: Path, kind: type[T], error: type[HpcCkptError] = SpecError) -> T:
    """The struct that a TOML file describes. Raises `error`, in one sentence, for anything else."""
    plain = read_toml(path, error)
    unknown = unknown_key(plain, inspect.type_info(kind))
    if unknown is not None:
        key, known = unknown
        word = key.rpartition(".")[2]
        raise error(f"{path}: unknown key {key!r}; {nearest(word, known)}")
    try:
        return to_struct(plain, kind)
    except SpecError as failure:
        raise error(f"{path}: {failure}") from failure


def read_toml(path: Path, error: type[HpcCkptError] = SpecError) -> dict[str, Any]:
    """The plain content of a TOML file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as failure:
        raise error(f"{path}: cannot be read ({failure.strerror})") from failure
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as failure:
        raise error(f"{path}: not valid TOML: {failure}") from failure


def unknown_key(value: Any, info: inspect.Type, where: str = "") -> tuple[str, list[str]] | None:
    """The first key that no struct knows, dotted, with the names that stand there; None if all are known."""
    if isinstance(info, inspect.UnionType):
        found = [unknown_key(value, part, where) for part in info.types if _fits(value, part)]
        return next(iter(found), None)
    if isinstance(info, inspect.ListType) and isinstance(value, list):
        return _first(unknown_key(item, info.item_type, f"{where}[{i}]") for i, item in enumerate(value))
    if isinstance(info, inspect.DictType) and isinstance(value, dict):
        return _first(unknown_key(item, info.value_type, _dotted(where, key)) for key, item in value.items())
    if not isinstance(info, inspect.StructType) or not isinstance(value, dict):
        return None
    fields = {field.encode_name: field.type for field in info.fields}
    for key, item in value.items():
        if key not in fields:
            return _dotted(where, key), list(fields)
        below = unknown_key(item, fields[key], _dotted(where, key))
        if below is not None:
            return below
    return None


def _fits(value: Any, info: inspect.Type) -> bool:
    kinds: dict[type, type] = {dict: inspect.StructType, list: inspect.ListType}
    return type(value) in kinds and isinstance(info, kinds[type(value)])


def _first(found: Iterable[tuple[str, list[str]] | None]) -> tuple[str, list[str]] | None:
    return next((item for item in found if item is not None), None)


def _dotted(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


def find(name: str, folder: Path, kind: str, error: type[HpcCkptError] = SpecError) -> Path:
    """The file that a command line means: a path to a TOML file, or the name of one in `folder`."""
    if name.endswith(".toml") or "/" in name:
        return Path(name)
    known = sorted(path.stem for path in folder.glob("*.toml"))
    if name not in known:
        raise error(f"unknown {kind} {name!r}; {nearest(name, known)}")
    return folder / f"{name}.toml"


def load_experiment(name: str) -> tuple[Path, Experiment]:
    """The experiment of a name or path, checked for every size that it names."""
    path = find(name, EXPERIMENTS, "experiment")
    experiment = load(path, Experiment)
    try:
        for size in [None, *experiment.sizes]:
            _check_size(experiment, size)
        check_rules(experiment)
    except SpecError as failure:
        raise SpecError(f"{path}: {failure}") from failure
    return path, experiment


def _check_size(experiment: Experiment, size: str | None) -> None:
    """Raises SpecError, with the size's own key in front, for what cannot run in this size; None: in no size."""
    if size is not None and size not in SIZES:
        raise SpecError(f"unknown key 'sizes.{size}'; {nearest(size, SIZES)}")
    try:
        sized = experiment if size is None else for_size(experiment, size)
        check_values(sized.axes)
        check(sized)
        points(sized)
    except SpecError as failure:
        text = str(failure)
        if size is None or text.startswith("sizes."):
            raise
        inside = text.startswith(("axes.", "settings."))
        raise SpecError(f"sizes.{size}.{text}" if inside else f"{text} (in size {size!r})") from failure


def check_values(axes: Axes) -> None:
    """Raises SpecError for a value that names no plug-in."""
    for axis, package in PLUGINS.items():
        known = registry.names(package)
        for value in getattr(axes, axis):
            if value not in known:
                raise SpecError(f"axes.{axis}: unknown {axis} {value!r}; {nearest(value, known)}")
