"""Which strategies are a framework's own, and which of those measured is what its users do: the base to compare with.

Asks the plug-ins, which import no framework; knows none of them by name. No numbers here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcckpt import registry
from hpcckpt.errors import HpcCkptError

Row = dict[str, Any]


def _plug_in(kind: str, name: str) -> Any:
    """The plug-in's class; None for one that this release does not have."""
    try:
        return registry.load(f"hpcckpt.{kind}", name)
    except HpcCkptError:
        return None


def is_own(framework: str, strategy: str) -> bool:
    """Whether the strategy is a mechanism that the framework, or its library, brings along."""
    served = getattr(_plug_in("strategies", strategy), "frameworks", None)
    return bool(served and served & {framework, framework.partition("_")[0]})


def asynchronous(strategy: str) -> bool:
    """Whether it goes on working behind the save."""
    return bool(getattr(_plug_in("strategies", strategy), "asynchronous", False))


def compresses(format_: str) -> bool:
    """Whether the format says that it compresses what it writes."""
    return bool(getattr(_plug_in("formats", format_), "compressed", False))


def base_strategy(framework: str, rows: Sequence[Row]) -> str | None:
    """Of the strategies in `rows`, what the framework's users do: its own single writer, else one
    writer by hand, else its own with several. Where no rank holds the whole state, its own comes first.
    """
    whole = getattr(_plug_in("frameworks", framework), "holds_whole", True)

    def order(strategy: str) -> tuple[int, bool, int, str]:
        mine = [row for row in rows if row["strategy"] == strategy]
        several = [row for row in mine if row["ranks"] > 1]
        one = bool(several) and all(row["writers_declared_max"] == 1 for row in several)
        own = is_own(framework, strategy)
        by_hand = one or not (own or several)
        place = (1 - own) if not whole else (0 if own and one else 1 if by_hand else 2 if own else 3)
        # On one node a writer per node is one writer, but it is meant to write copies.
        copies = getattr(_plug_in("strategies", strategy), "content", None) == "redundant"
        return place, copies, -sum(row["runs"] for row in mine), strategy

    names = {row["strategy"] for row in rows if not asynchronous(row["strategy"])}
    return min(names, key=order, default=None)
