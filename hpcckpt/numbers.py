"""Checks of single numbers in specs. Each raises a SpecError that names the key."""

from __future__ import annotations

import math
from collections.abc import Iterable

from hpcckpt.errors import SpecError

MOST_RANKS = 1_000_000
"""Of nodes, of ranks per node, and of ranks that a checkpoint is restored on: more is a slip of the keyboard."""


def at_least(key: str, value: float, least: float) -> None:
    if not value >= least:  # so that nan fails too
        raise SpecError(f"{key}: {value} must be at least {least}")


def at_most(key: str, value: float, most: float) -> None:
    if not value <= most:
        raise SpecError(f"{key}: {value} must be at most {most}")


def positive(key: str, seconds: float) -> None:
    if not (math.isfinite(seconds) and seconds > 0):
        raise SpecError(f"{key}: {seconds} must be finite and more than 0")


def not_negative(key: str, seconds: float) -> None:
    if not (math.isfinite(seconds) and seconds >= 0):
        raise SpecError(f"{key}: {seconds} must be finite and at least 0")


def below(key: str, value: int, counts: Iterable[int], what: str) -> None:
    """The largest count decides: beyond it, what is asked for would happen in no run at all."""
    most = max(counts, default=None)
    if value < 0 or (most is not None and value >= most):
        bound = "" if most is None else f" and less than {most}, the largest {what} of any run"
        raise SpecError(f"{key}: {value} must be at least 0{bound}")
