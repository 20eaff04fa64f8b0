"""How far two arrays lie apart: elements that differ in any bit, and the largest distance. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Distance:
    """Of two arrays of one shape and type."""

    elements: int
    of_elements: int
    ulp: int | None
    """Largest, in units in the last place, of the pairs of finite numbers."""
    largest: float | None
    """Largest absolute difference, of the pairs of finite numbers."""
    reason: str | None = None
    """Why `ulp` or `largest` is None, is 0 although bits differ, or is of a part of the elements that differ."""


Measured = tuple[int | None, float | None, str | None]
"""The last three of a Distance."""


def distance(ours: np.ndarray, theirs: np.ndarray) -> Distance | str:
    """The distance, or why there is none."""
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return f"{ours.dtype} {list(ours.shape)} against {theirs.dtype} {list(theirs.shape)}"
    if ours.dtype.hasobject:
        return f"{ours.dtype.name}: objects have no bits that could be compared"
    mine, others = np.ascontiguousarray(ours).reshape(-1), np.ascontiguousarray(theirs).reshape(-1)
    width = mine.dtype.itemsize
    differing = (mine.view(np.uint8) != others.view(np.uint8)).reshape(len(mine), width).any(axis=1)
    count = int(differing.sum())
    if not count:
        return Distance(0, len(mine), *_of_equals(mine.dtype))
    native = mine.dtype.newbyteorder("=")
    left, right = mine[differing].astype(native), others[differing].astype(native)
    return Distance(count, len(mine), *_measured(left, right))


def _of_equals(dtype: np.dtype) -> Measured:
    reason = None if dtype.kind == "f" else _without_ulps(dtype)
    return (None if reason else 0), 0.0, reason


def _measured(left: np.ndarray, right: np.ndarray) -> Measured:
    dtype = left.dtype
    if dtype.kind in "iub":
        return None, _of_integers(left, right), _without_ulps(dtype)
    if dtype.kind in "fc" or _bits_are_ordered(dtype):
        with np.errstate(over="ignore", invalid="ignore"):  # of the two largest numbers the difference is infinite
            return _of_floats(left, right)
    return None, None, f"{dtype.name}: no distance is known"


def _without_ulps(dtype: np.dtype) -> str | None:
    """Why numbers of this type have no units in the last place, or none that are known here."""
    if _bits_are_ordered(dtype):
        return None
    kinds = {"b": "truth values", "i": "integers", "u": "integers", "c": "complex numbers"}
    if dtype.kind in kinds:
        return f"{kinds[dtype.kind]} have no units in the last place"
    return f"{dtype.name}: no units in the last place are known"


def _bits_are_ordered(dtype: np.dtype) -> bool:
    """Whether the bits are a sign and a magnitude that grows with the number; the small types are ml_dtypes' own."""
    small = dtype.name == "bfloat16" or (dtype.name.startswith("float8_") and dtype.name != "float8_e8m0fnu")
    return small or (dtype.kind == "f" and dtype.itemsize in (2, 4, 8))


def _of_integers(left: np.ndarray, right: np.ndarray) -> float:
    """Without a sign, and not as floating-point numbers: beyond 2**53 these would miss a difference of 1."""
    more, less = np.maximum(left, right).astype(np.uint64), np.minimum(left, right).astype(np.uint64)
    return float((more - less).max())


def _of_floats(left: np.ndarray, right: np.ndarray) -> Measured:
    ours, theirs = _wide(left), _wide(right)
    finite = np.isfinite(ours) & np.isfinite(theirs)
    lost = int((~finite).sum())
    if lost == len(left):
        return None, None, "none of them is a finite number on both sides"
    ours, theirs = ours[finite], theirs[finite]
    largest = float(np.abs(ours - theirs).max())
    no_ulps = _without_ulps(left.dtype)
    reasons = [_lost(lost), no_ulps, _of_one_value(ours, theirs, lost)]
    ulp = None if no_ulps else _ulps(left[finite], right[finite])
    return ulp, largest, "; ".join(filter(None, reasons)) or None


def _wide(values: np.ndarray) -> np.ndarray:
    """In a type that holds these numbers and their differences well."""
    if values.dtype.kind == "c":
        return values.astype(np.clongdouble)
    return values.astype(np.float64) if values.dtype.itemsize <= 8 else values


def _lost(count: int) -> str | None:
    if not count:
        return None
    return f"{count} of them {'is no finite number' if count == 1 else 'are no finite numbers'} on one side"


def _of_one_value(ours: np.ndarray, theirs: np.ndarray, lost: int) -> str | None:
    """What differs where all the values are equal."""
    if not (ours == theirs).all():
        return None
    what = "only bits that are no part of the value differ" if ours.any() else "only the sign of zero differs"
    return f"of the others, {what}" if lost else what


def _ulps(left: np.ndarray, right: np.ndarray) -> int:
    """Floating-point numbers are as far apart as the places of their bits among all numbers of the type."""
    a, b = _places(left), _places(right)
    return int((np.maximum(a, b).astype(np.uint64) - np.minimum(a, b).astype(np.uint64)).max())


def _places(values: np.ndarray) -> np.ndarray:
    """Place of each number among all, as int64: negative ones count down from zero."""
    width = values.dtype.itemsize
    bits = values.view(f"u{width}").astype(np.uint64)
    sign = np.uint64(1 << (8 * width - 1))
    magnitude = (bits & ~sign).astype(np.int64)
    return np.where(bits & sign, -magnitude, magnitude)
