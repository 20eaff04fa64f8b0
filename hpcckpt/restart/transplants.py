"""Which leg comes next where a restored one differs: the restore once more, with a kind of state from the reference.

One kind after the other, until training goes on with equal bits: that kind is the cause. Then, where
more differs than training shows, all kinds together, until all bits agree. Pure.
"""

from __future__ import annotations

from hpcckpt.planting import RESTORED
from hpcckpt.records import Comparison
from hpcckpt.restart.spec import EVERYTHING, TRANSPLANT

SUSPECTS = ("optimizer", "parameter", "rng", "data_position", "other", "buffer")
"""In the order in which they are tried: what no step of training reads comes last."""
MOST = len(SUSPECTS) + 1
"""Legs of transplants of one run."""

Found = dict[str, Comparison]
"""Leg -> its comparison, so far."""


def next_leg(found: Found) -> str | None:
    """The next leg to run; None where nothing is left to learn."""
    if no_use(found) or _exact(found):
        return None
    kinds = found[RESTORED].kinds
    single = [] if len(kinds) > 1 and trains(found) else [kind for kind in SUSPECTS if kind in kinds]
    wanted = single + ([EVERYTHING] if len(kinds) > 1 else [])
    return next((leg for kind in wanted if (leg := TRANSPLANT + kind) not in found), None)


def no_use(found: Found) -> str | None:
    """Why no transplant can tell anything; None where one can."""
    restored = found.get(RESTORED)
    if restored is None or restored.reason:
        return "the restored leg was not compared"
    if restored.exact:
        return "the restart is exact"
    if any(c.about in ("run_to_run", "saving") and c.training for c in found.values()):
        return "training differs without a restart as well, so no agreement could be told from chance"
    return None if restored.kinds else "the restored state has equal bits: nothing is left to transplant"


def cure(found: Found) -> list[str] | None:
    """The kinds that make all bits agree, or at least training; None where none does."""
    leg = _exact(found) or _training(found)
    return _kinds(found, leg) if leg else None


def cause(found: Found) -> list[str] | None:
    """The kinds that make training exact where it was not, else those that make all bits agree; None: not found.

    Where training differs although a transplant left no difference in the state, what its digests say is the cause.
    """
    if RESTORED not in found:
        return None
    leg = _training(found) if found[RESTORED].trains_exactly is False else _exact(found)
    if leg:
        return _kinds(found, leg)
    equal = [found[name] for name in _legs(found) if not found[name].kinds and found[name].cause]
    return [str(equal[0].cause)] if equal else None


def trains(found: Found) -> bool:
    """Whether training is exact, with a transplant or without."""
    return bool(found[RESTORED].trains_exactly) or _training(found) is not None


def _training(found: Found) -> str | None:
    return next((leg for leg in _legs(found) if found[leg].trains_exactly), None)


def _exact(found: Found) -> str | None:
    return next((leg for leg in _legs(found) if found[leg].exact), None)


def _legs(found: Found) -> list[str]:
    return [leg for leg in found if leg.startswith(TRANSPLANT)]


def _kinds(found: Found, leg: str) -> list[str]:
    kind = leg.removeprefix(TRANSPLANT)
    return found[RESTORED].kinds if kind == EVERYTHING else [kind]
