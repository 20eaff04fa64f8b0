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
    """Largest, in units in the last place; None where nothing is floating point, or one of the two is no number."""
    largest: float | None
    """Largest absolute difference; None where one of the two is no number."""


def distance(ours: np.ndarray, theirs: np.ndarray) -> Distance | str:
    """The distance, or why there is none."""
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return f"{ours.dtype} {list(ours.shape)} against {theirs.dtype} {list(theirs.shape)}"
    mine, others = np.ascontiguousarray(ours).reshape(-1), np.ascontiguousarray(theirs).reshape(-1)
    width = mine.dtype.itemsize
    differing = (mine.view(np.uint8) != others.view(np.uint8)).reshape(len(mine), width).any(axis=1)
    count = int(differing.sum())
    if not count:
        return Distance(0, len(mine), 0 if mine.dtype.kind == "f" else None, 0.0)
    left, right = mine[differing], others[differing]
    if mine.dtype.kind != "f":
        return Distance(count, len(mine), None, _largest(left, right))
    if not (np.isfinite(left).all() and np.isfinite(right).all()):
        return Distance(count, len(mine), None, None)
    return Distance(count, len(mine), _ulps(left, right), _largest(left, right))


def _largest(left: np.ndarray, right: np.ndarray) -> float | None:
    if left.dtype.kind not in "fiub":
        return None
    with np.errstate(over="ignore"):  # of the two largest numbers it is infinite
        return float(np.abs(left.astype(np.float64) - right.astype(np.float64)).max())


def _ulps(left: np.ndarray, right: np.ndarray) -> int | None:
    """Floating-point numbers are as far apart as the places of their bits among all numbers of the type."""
    if left.dtype.itemsize not in (2, 4, 8):
        return None
    a, b = _places(left), _places(right)
    return int((np.maximum(a, b).astype(np.uint64) - np.minimum(a, b).astype(np.uint64)).max())


def _places(values: np.ndarray) -> np.ndarray:
    """Place of each number among all, as int64: negative ones count down from zero."""
    width = values.dtype.itemsize
    bits = values.view(f"u{width}").astype(np.uint64)
    sign = np.uint64(1 << (8 * width - 1))
    magnitude = (bits & ~sign).astype(np.int64)
    return np.where(bits & sign, -magnitude, magnitude)
