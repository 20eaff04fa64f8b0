"""A leg against the reference, digest by digest: equal bits, or the first difference and what it says.

Pure but for `values`, which is asked for the arrays behind two digests that differ. Which legs there
are and what follows from a difference, others decide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from hpcckpt.records import STATE_KINDS, Comparison, Difference, Digests
from hpcckpt.restart.distance import distance
from hpcckpt.restart.spec import Restart, dies, last_step

FRESH, LOADED, STEP, WHOLE = "fresh", "loaded", "step", "whole"
"""Points of `Digests`. `whole`: every shared entry whole, where ranks hold parts of it."""
STEP_KINDS = ("data_order", "loss", "gradient")
"""What belongs to a step and is no state."""
ORDER = ("data_order", "rng", "buffer", "loss", "gradient", "optimizer", "parameter", "data_position", "other")
"""As things come about in a step: what stands first cannot follow from what stands later."""
COMPUTED = ("data_order", "loss", "gradient", "parameter", "optimizer")
"""What training is. Batch-norm statistics are for evaluation: no step of training reads them."""
NOT_KEPT = "its values were not kept: beyond the limit of dumps, or out of the driver's reach"
IDS_ONLY = "of the sample ids only the digest is kept"
REDUCTION_ORDER, FORWARD, BACKWARD = "reduction_order", "forward_arithmetic", "backward_arithmetic"
Point = tuple[str, int]
"""When, and the step."""

Seen = Mapping[int, Mapping[Point, Digests]]
"""Rank -> (when, step) -> its digests."""
Values = Callable[[str, int, str, int, str], np.ndarray | None]
"""(leg, rank, when, step, key) -> the array, None where nobody kept it."""


@dataclass(frozen=True)
class Pair:
    """One point of one rank, in the leg and in the reference."""

    rank: int
    when: str
    step: int
    ours: Digests
    theirs: Digests

    def differing(self, kind: str) -> list[str]:
        """Keys of a kind whose bits are not the same, or that only one of the two has."""
        if kind in self.ours.lacking or kind in self.theirs.lacking:
            return []
        ours, theirs = self.ours.kinds.get(kind, {}), self.theirs.kinds.get(kind, {})
        return sorted(key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key))


def seen(records: Mapping[int, list[Digests]]) -> Seen:
    """Each rank's digests by their point."""
    return {rank: {(d.when, d.step): d for d in found} for rank, found in records.items()}


def due(leg: str, restart: Restart, steps: int, restored: int | None) -> list[Point]:
    """The points that a leg has on every rank, where it ran as it should. `restored`: the step that it began with."""
    last = restart.stop if dies(restart, leg) else last_step(leg, restart, steps)
    if restored is None:
        return [(STEP, step) for step in range(last + 1)]
    return [(LOADED, restored), *((STEP, step) for step in range(restored + 1, last + 1))]


def compare(
    leg: str, about: str, ours: Seen, theirs: Seen, values: Values, reference: str, points: Sequence[Point] = ()
) -> Comparison:  # fmt: skip
    """`ours` against the reference `theirs`, on all ranks: at `points`, and at all others that any rank of it has.

    Where one rank of either lacks one of them nothing is claimed: `reason` says which.
    """
    seen_here = {point for own in ours.values() for point in own if point[0] in (LOADED, STEP)}
    wanted = sorted(seen_here | set(points), key=_in_training)
    kept = Comparison(leg=leg, about=about, ranks=len(ours), points=len(wanted))
    if gap := _gap(ours, theirs, wanted):
        return msgspec.structs.replace(kept, points=0, reason=gap)
    groups = list(_pairs(ours, theirs, wanted))
    steps = [pair for pairs in groups for pair in pairs if pair.when != LOADED]
    lacking = {kind: why for pair in steps for kind, why in pair.ours.lacking.items()}
    first = _first(groups, ORDER)
    training = _first(groups, COMPUTED)
    loaded = [pair for pairs in groups for pair in pairs if pair.when == LOADED]
    kinds = [kind for kind in STATE_KINDS if any(pair.differing(kind) for pair in loaded)]
    alone = len(ours) == 1
    return msgspec.structs.replace(
        kept,
        first=_explained(first, leg, reference, values),
        training=_explained(training, leg, reference, values),
        kinds=kinds,
        cause=_cause(training, kinds, lacking, alone),
        lacking=lacking,
    )


def elsewhere(
    leg: str, ours: Seen, theirs: Seen, values: Values, reference: str, points: Sequence[Point] = ()
) -> Comparison:  # fmt: skip
    """A restore on another number of ranks: what all ranks hold in common against the reference's rank 0.

    Random states belong to single ranks, and other ranks draw other samples, so neither is compared.
    """
    whole = any(point[0] == WHOLE for points in ours.values() for point in points)
    when, other = (WHOLE, WHOLE) if whole else (LOADED, STEP)
    shared = {
        rank: {(LOADED, step): _shared(digests) for (name, step), digests in points.items() if name == when}
        for rank, points in ours.items()
    }
    zero = {(STEP, step): _shared(digests) for (name, step), digests in theirs[0].items() if name == other}
    first = dict.fromkeys(ours, zero)

    def of_rank_0(name: str, rank: int, *place: Any) -> np.ndarray | None:
        return values(name, 0 if name == reference else rank, *place)

    found = compare(leg, "elsewhere", shared, first, of_rank_0, reference, points)
    left = "each rank has its own: not compared on other ranks"
    return msgspec.structs.replace(found, lacking=found.lacking | {"rng": left})


def _shared(digests: Digests) -> Digests:
    kinds = {
        kind: {key: digest for key, digest in found.items() if "@" not in key}
        for kind, found in digests.kinds.items()
        if kind in STATE_KINDS and kind != "rng"
    }
    return msgspec.structs.replace(digests, kinds=kinds)


def _gap(ours: Seen, theirs: Seen, points: Iterable[Point]) -> str | None:
    """What is missing for a comparison at these points; None where nothing is."""
    if not any(ours.values()):
        return "the leg recorded no digests"
    for when, step in points:
        for rank, own in ours.items():
            if (when, step) not in own:
                return f"rank {rank} has no digests of step {step} ({when})"
            if (STEP, step) not in theirs.get(rank, {}):
                return f"the reference's rank {rank} has no digests of step {step}"
    return None


def _pairs(ours: Seen, theirs: Seen, points: Iterable[Point]) -> Iterator[list[Pair]]:
    """All ranks' pairs of each point."""
    for when, step in points:
        yield [
            Pair(rank, when, step, _state_only(own[when, step], when), theirs[rank][STEP, step])
            for rank, own in ours.items()
        ]


def _in_training(point: Point) -> tuple[int, str]:
    """`loaded` comes before `step` of the same number: the latter is of a step that was made anew."""
    return point[1], point[0]


def _state_only(digests: Digests, when: str) -> Digests:
    """Behind a restore no step was made: what belongs to a step cannot be compared there."""
    if when != LOADED:
        return digests
    reason = "no step was made yet"
    return msgspec.structs.replace(digests, lacking={**digests.lacking, **dict.fromkeys(STEP_KINDS, reason)})


@dataclass(frozen=True)
class _Found:
    pair: Pair
    kind: str
    key: str
    tensors: int
    ranks: list[int]


def _first(groups: list[list[Pair]], kinds: tuple[str, ...]) -> _Found | None:
    """The first difference: of the first point, its first kind, the lowest rank, the first key."""
    for pairs in groups:
        for kind in (kind for kind in ORDER if kind in kinds):
            found = {pair.rank: (pair, keys) for pair in pairs if (keys := pair.differing(kind))}
            if found:
                pair, keys = found[min(found)]
                total = sum(len(keys) for _, keys in found.values())
                return _Found(pair, kind, keys[0], total, sorted(found))
    return None


def _cause(training: _Found | None, kinds: list[str], lacking: Mapping[str, str], alone: bool) -> str | None:
    """What the first difference in training follows from, where the digests alone can tell."""
    if training is None or kinds:
        return None  # nothing, or the state that training went on with: a transplant tells which of it
    if training.kind == "data_order":
        return training.kind
    if training.kind == "gradient" or (training.kind in ("optimizer", "parameter") and "gradient" in lacking):
        # Equal samples, equal state, equal loss on this rank: what is left is how gradients are made and added up.
        return BACKWARD if alone else REDUCTION_ORDER
    return FORWARD if training.kind == "loss" else training.kind


def _explained(found: _Found | None, leg: str, reference: str, values: Values) -> Difference | None:
    if found is None:
        return None
    pair = found.pair
    place = Difference(
        step=pair.step,
        when=pair.when,
        rank=pair.rank,
        kind=found.kind,
        tensor=found.key,
        tensors=found.tensors,
        ranks=found.ranks,
    )
    sides = [digests.kinds.get(found.kind, {}).get(found.key) for digests in (pair.ours, pair.theirs)]
    if None in sides:
        holder = "the reference" if sides[0] is None else "this leg"
        return msgspec.structs.replace(place, reason=f"only {holder} has it")
    if found.kind == "data_order":
        return msgspec.structs.replace(place, reason=IDS_ONLY)
    if found.kind == "loss":
        return msgspec.structs.replace(place, elements=1, of_elements=1, **_losses(sides))
    ours = values(leg, pair.rank, pair.when, pair.step, found.key)
    theirs = values(reference, pair.rank, STEP, pair.step, found.key)
    if theirs is None:
        theirs = values(reference, 0, STEP, pair.step, found.key)
    if ours is None or theirs is None:
        return msgspec.structs.replace(place, reason=NOT_KEPT)
    measured = distance(ours, theirs)
    if isinstance(measured, str):
        return msgspec.structs.replace(place, reason=measured)
    return msgspec.structs.replace(
        place,
        elements=measured.elements,
        of_elements=measured.of_elements,
        ulp=measured.ulp,
        largest=measured.largest,
        reason=measured.reason,
    )


def _losses(sides: list[str | None]) -> dict[str, Any]:
    """A loss is its own digest: its value, in hexadecimal."""
    wide = [np.array(float.fromhex(str(side)), dtype=np.float64) for side in sides]
    with np.errstate(over="ignore"):
        narrow = [value.astype(np.float32) for value in wide]
    # Most frameworks compute it in single precision, and then its unit in the last place is that of a float32.
    single = all(a == b or (np.isnan(a) and np.isnan(b)) for a, b in zip(wide, narrow, strict=True))
    measured = distance(*(narrow if single else wide))
    assert not isinstance(measured, str)
    return {"ulp": measured.ulp, "largest": measured.largest, "reason": measured.reason}
