"""What a run's train leg leaves on disk at its end: how many generations, by its strategy's own rule, and their bytes.

Nobody lists scratch at a leg's end, so this is the rule applied to the sizes that the inventory has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcckpt import registry
from hpcckpt.errors import HpcCkptError

Row = dict[str, Any]
NAMES = ("generations_kept", "generations_most", "kept_bytes", "kept_reason")
LONG = 64
"""Checkpoints of a long job: a rule that prunes at all has pruned by then."""


def columns(strategy: str, keep: Any, saves: Sequence[Row]) -> Row:
    """Columns of `runs` on what is left of `saves`, the rows of the run's checkpoints."""
    try:
        rule = registry.load("hpcckpt.strategies", strategy).kept
    except (HpcCkptError, AttributeError):
        return _row(None, None, None, f"this release knows no strategy {strategy}, so not what it keeps")
    count = rule(len(saves), keep)
    most = max(rule(made, keep) for made in range(1, LONG + 1))
    limit = None if most == LONG else most
    newest = sorted(saves, key=lambda save: save["generation"])[len(saves) - count :]
    unknown = next((save["bytes_reason"] for save in newest if save["checkpoint_bytes"] is None), None)
    if unknown or not newest:
        return _row(count, limit, None, unknown or "no checkpoints")
    return _row(count, limit, sum(save["checkpoint_bytes"] for save in newest), None)


def _row(*values: Any) -> Row:
    return dict(zip(NAMES, values, strict=True))
