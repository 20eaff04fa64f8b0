"""Which leg comes next where a restored one differs: the restore once more, with kinds of state from the reference.

One kind after the other, until training goes on with equal bits; where no single one is enough, all of them, and
from these whatever is not needed is left out again. All that differ together must make every bit agree. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator

from hpcckpt.planting import RESTORED
from hpcckpt.records import Comparison, Difference
from hpcckpt.restart.spec import EVERYTHING, TRANSPLANT

SUSPECTS = ("optimizer", "parameter", "rng", "data_position", "other", "buffer")
"""In the order in which they are tried: what no step of training reads comes last, and is left out first."""
MOST = 2 * len(SUSPECTS)
"""Legs of transplants of one run."""
JOIN = "+"
"""Between kinds, in the name of a leg."""

Found = dict[str, Comparison]
"""Leg -> its comparison, so far."""


def next_leg(found: Found) -> str | None:
    """The next leg to run; None where nothing is left to learn."""
    if no_use(found) or any(found[leg].reason for leg in _legs(found)):
        return None
    return next((leg for leg in _wanted(found) if leg not in found), None)


def _wanted(found: Found) -> Iterator[str]:
    """The legs in their order. Each is looked at only once the one before it was compared."""
    restored = found[RESTORED]
    kinds = [kind for kind in SUSPECTS if kind in restored.kinds]
    alone = False
    for kind in [] if restored.trains_exactly and len(kinds) > 1 else kinds:
        yield TRANSPLANT + kind
        if alone := bool(found[TRANSPLANT + kind].trains_exactly):
            break
    if len(kinds) < 2:
        return
    yield TRANSPLANT + EVERYTHING
    if restored.trains_exactly or alone or not found[TRANSPLANT + EVERYTHING].trains_exactly:
        return
    needed = kinds
    for kind in reversed(kinds):
        fewer = [other for other in needed if other != kind]
        if len(fewer) > 1:  # each one alone was not enough
            leg = TRANSPLANT + JOIN.join(fewer)
            yield leg
            needed = fewer if found[leg].trains_exactly else needed


def no_use(found: Found) -> str | None:
    """Why no transplant can tell anything; None where one can."""
    restored = found.get(RESTORED)
    if restored is None or restored.reason:
        return "the restored leg was not compared"
    if restored.exact:
        return "the restart is exact"
    saving = [c for c in found.values() if c.about == "saving"]
    if unseen := next((c for c in saving if c.reason), None):
        return f"the leg that saves was not compared: {unseen.reason}"
    if odd := next((c for c in found.values() if _strays(c)), None):
        return f"leg {odd.leg} differs without a restart as well, so no agreement could be told from chance"
    return None if restored.kinds else "the restored state has equal bits: nothing is left to transplant"


def _strays(found: Comparison) -> bool:
    """Whether a leg that restores nothing differs where it counts: the saved state in anything, repeats in training."""
    return bool(found.first) if found.about == "saving" else found.about == "run_to_run" and bool(found.training)


def cure(found: Found) -> tuple[list[str], str] | None:
    """The kinds with which `all` bits agree, or else all of `training` does where it did not; None where none do."""
    if leg := _exact(found):
        return kinds_of(found, leg), "all"
    needed = _needed(found)
    return (needed, "training") if needed else None


def cause(found: Found) -> list[str] | None:
    """The kinds that training needs where it differs, else those that make all bits agree; None: not found.

    Where training differs although a transplant left no difference in the state, what its digests say is the cause,
    beside the kinds that differed, unless these changed nothing in what came first.
    """
    restored = found.get(RESTORED)
    if restored is None:
        return None
    if restored.trains_exactly:
        leg = _exact(found)
        return kinds_of(found, leg) if leg else None
    if needed := _needed(found):
        return needed
    for equal in (found[leg] for leg in _legs(found) if not found[leg].kinds and found[leg].cause):
        innocent = _place(equal.training) == _place(restored.training)
        return [*([] if innocent else restored.kinds), str(equal.cause)]
    return None


def kinds_of(found: Found, leg: str) -> list[str]:
    """The kinds that a leg takes from the reference."""
    name = leg.removeprefix(TRANSPLANT)
    kinds = found[RESTORED].kinds
    return kinds if name == EVERYTHING else [kind for kind in kinds if kind in name.split(JOIN)]


def _needed(found: Found) -> list[str] | None:
    """The fewest kinds with which training is exact, where it is not without."""
    if RESTORED not in found or found[RESTORED].trains_exactly is not False:
        return None
    enough = [kinds_of(found, leg) for leg in _legs(found) if found[leg].trains_exactly]
    return min(enough, key=len, default=None)


def _place(difference: Difference | None) -> tuple[object, ...] | None:
    if difference is None:
        return None
    return difference.step, difference.when, difference.rank, difference.kind, difference.tensor


def _exact(found: Found) -> str | None:
    return next((leg for leg in _legs(found) if found[leg].exact), None)


def _legs(found: Found) -> list[str]:
    return [leg for leg in found if leg.startswith(TRANSPLANT)]
