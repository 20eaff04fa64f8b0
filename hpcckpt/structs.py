"""Plain data (of TOML, of a command line) becomes a struct, and the error of a wrong value names its key.

Knows msgspec's types and no struct of ours.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from hpcckpt.errors import SpecError, nearest

T = TypeVar("T")


def to_struct(plain: dict[str, Any], kind: type[T], where: str = "") -> T:
    """The struct of plain data; the SpecError of a wrong value has its dotted key, below `where`, in front."""
    values = list(_walk(plain, inspect.type_info(kind), where))
    for key, value, info in values:
        known = _choices(value, _alternatives(info)) if isinstance(value, str) else None
        if known is not None:
            raise SpecError(f"{key}: unknown value {value!r}; {known}")
    try:
        return msgspec.convert(plain, kind)
    except msgspec.ValidationError as failure:
        raise SpecError(_explain(failure, where, [(key, value) for key, value, _ in values])) from failure


def _explain(failure: msgspec.ValidationError, where: str, values: list[tuple[str, Any]]) -> str:
    """The decoder's complaint with the key in front: `axes.nodes[1]: expected int, got str`."""
    text, _, path = str(failure).replace("`", "").partition(" - at ")
    path = _dotted(where, re.sub(r"^\$\.?", "", path).replace("[...]", ".*"))
    missing = re.fullmatch("Object missing required field (.*)", text)
    if "*" in path:  # the decoder hides a table's own keys; what it got there, or missed, tells which one it is
        pattern, got = re.escape(path).replace(r"\*", r"[^.\[]+"), text.rpartition("got ")[2]
        for key, value in values:
            if not re.fullmatch(pattern, key):
                continue
            if missing[1] not in value if missing else _TOML_TYPES.get(type(value)) == got:
                path = key
                break
    if missing:
        return f"missing required key {_dotted(path, missing[1])!r}; add it"
    text = f"{text[0].lower()}{text[1:]}"
    return f"{path}: {text}" if path else text


_TOML_TYPES = {dict: "object", list: "array", str: "str", int: "int", float: "float", bool: "bool"}


def _walk(value: Any, info: inspect.Type, where: str) -> Iterator[tuple[str, Any, inspect.Type]]:
    """Each value with its dotted key and the type that belongs there, outermost first."""
    yield where, value, info
    for key, item, below in _children(value, info, where):
        yield from _walk(item, below, key)


def _children(value: Any, info: inspect.Type, where: str) -> Iterator[tuple[str, Any, inspect.Type]]:
    tables = [part for part in _alternatives(info) if isinstance(part, inspect.StructType)]
    if tables and isinstance(value, dict):
        fields = ((field.encode_name, field.type) for part in tables for field in part.fields)
        yield from ((_dotted(where, key), value[key], kind) for key, kind in fields if key in value)
    elif isinstance(info, inspect.DictType) and isinstance(value, dict):
        yield from ((_dotted(where, key), item, info.value_type) for key, item in value.items())
    elif isinstance(value, list):
        lists = (part for part in _alternatives(info) if isinstance(part, inspect.ListType))
        yield from ((f"{where}[{i}]", item, part.item_type) for part in lists for i, item in enumerate(value))


def _choices(word: str, alternatives: tuple[inspect.Type, ...]) -> str | None:
    """What could be meant by a word that is none of the literals; None where it may stand."""
    literals = [name for part in alternatives if isinstance(part, inspect.LiteralType) for name in part.values]
    if not literals or word in literals:
        return None
    hint = nearest(word, map(str, literals))
    others = {inspect.IntType: "a whole number", inspect.ListType: "a list"}
    also = [others[type(part)] for part in alternatives if type(part) in others]
    return hint if hint.endswith("?") else " or ".join([hint, *also])


def _alternatives(info: inspect.Type) -> tuple[inspect.Type, ...]:
    return info.types if isinstance(info, inspect.UnionType) else (info,)


def _dotted(where: str, key: str) -> str:
    return f"{where}.{key}" if where and key else where or key
