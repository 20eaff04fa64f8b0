"""Planted faults as an experiment names them, and which of them can never happen. What they do: `hpcckpt.faults`.

A state fault changes a training state: what a restore loads (`at = "restore"`), or what a step begins with.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from hpcckpt.errors import SpecError, nearest
from hpcckpt.numbers import below, not_negative, positive
from hpcckpt.records import CONTROL, STALL_PHASES, TRAIN, WAIT_AFTER

# Where a fault can be planted.
AFTER_SAVE = "after_save"
RESTORE = "restore"
RESTORED = "restored"
"""The leg that restores, in runs that test restart."""
CONTROL_POINTS = ("before_save", "step")
FAULT_PHASES = tuple(phase for phase in STALL_PHASES if phase != WAIT_AFTER)
"""Phases of a save that a mechanism enters; the waits before and behind it are the suite's own."""
FAULT_POINTS = (*CONTROL_POINTS, AFTER_SAVE, *FAULT_PHASES)

STATE_ACTIONS = ("drop", "shift", "swap", "flip", "reorder")
"""What can be done to a training state, in runs that test restart."""
LASTING = ("sleep", "kill")
"""What has a time: how long it sleeps, or how long after the point it kills."""


class Fault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A planted fault, to prove that the suite sees it. Runs with faults are never pooled with others."""

    rank: int | Literal["all"]
    at: str
    """`before_save`, `step`, the name of a phase that the rank enters, `after_save` (for `corrupt`), or `restore`."""
    action: Literal["sleep", "kill", "raise", "hang", "corrupt", "drop", "shift", "swap", "flip", "reorder"]
    """The last five change a state: leave out, shift the data position by one step, exchange two tensors of equal
    shape, flip the lowest bit of one element, add the ranks' gradients up in another order from then on."""
    seconds: float = 0.0
    """Of `sleep`; `kill` waits so long before it acts, while the rank goes on."""
    generation: int | None = None
    """Which generation (or step, where `at = "step"`); every one when left out. A restore has none."""
    leg: str = TRAIN
    what: str | None = None
    """For `drop`: a kind of state, or a pattern of entry keys. For `flip`: a pattern of keys."""

    def hits(self, rank: int) -> bool:
        """Whether it is planted on this rank."""
        return self.rank in ("all", rank)


def check_words(where: str, fault: Fault, barrier: str, legs: Sequence[str]) -> None:
    """A fault that is planted where nothing ever happens would prove nothing. `legs`: of the restart test, if any."""
    points = (*FAULT_POINTS, RESTORE) if legs else FAULT_POINTS
    for key, word, known in (("leg", fault.leg, legs or (TRAIN, CONTROL)), ("at", fault.at, points)):
        if word not in known:
            raise SpecError(f"{where}.{key}: unknown value {word!r}; {nearest(word, known)}")
    if fault.seconds and fault.action not in LASTING:
        raise SpecError(f"{where}.seconds: {fault.action!r} has no use for it; leave it out ({_either(LASTING)} has)")
    if fault.action in STATE_ACTIONS or fault.at == RESTORE:
        _check_state_fault(where, fault, legs)
        return
    if fault.what is not None:
        raise SpecError(f"{where}.what: {fault.action!r} has no use for it; leave it out ('drop' or 'flip' has)")
    if (fault.action == "corrupt") != (fault.at == AFTER_SAVE):
        raise SpecError(
            f"{where}.at: {fault.at!r} with action {fault.action!r} can never happen: "
            f"'corrupt' needs at = {AFTER_SAVE!r}, and nothing else can be planted there"
        )
    if fault.leg != TRAIN and fault.at not in CONTROL_POINTS:
        raise SpecError(
            f"{where}.at: {fault.at!r} can never happen in the {fault.leg}, which saves nothing; "
            f"known there: {', '.join(CONTROL_POINTS)}"
        )
    if fault.at == AFTER_SAVE and barrier == "none":
        raise SpecError(
            f"{where}.at: {fault.at!r} can never happen with settings.barrier = 'none', "
            "which leaves no pause behind a save"
        )


def _check_state_fault(where: str, fault: Fault, legs: Sequence[str]) -> None:
    if fault.action not in STATE_ACTIONS:
        raise SpecError(f"{where}.action: {fault.action!r} changes no state; at restore: {', '.join(STATE_ACTIONS)}")
    if not legs:
        raise SpecError(f"{where}.action: {fault.action!r} needs settings.restart: elsewhere no state is compared")
    if fault.at not in (RESTORE, "step"):
        raise SpecError(f"{where}.at: {fault.action!r} can happen at 'restore' and at 'step', not at {fault.at!r}")
    if (fault.at == RESTORE) != (fault.leg == RESTORED):
        raise SpecError(f"{where}.leg: only leg {RESTORED!r} restores, and state faults of it are at = {RESTORE!r}")
    if fault.action == "reorder" and fault.rank != "all":
        raise SpecError(f"{where}.rank: 'reorder' is of a sum of all ranks: rank = 'all'")
    if (fault.action == "drop") != (fault.what is not None) and fault.action != "flip":
        raise SpecError(f"{where}.what: 'drop' says what it leaves out, 'flip' may, and nothing else does")
    if fault.action == "drop" and fault.at != RESTORE:
        raise SpecError(f"{where}.at: 'drop' leaves something out of what is loaded: at = {RESTORE!r}")
    if fault.at == RESTORE and fault.generation is not None:
        raise SpecError(f"{where}.generation: a leg restores once, and from the newest generation; leave it out")


def _either(words: Iterable[str]) -> str:
    return " or ".join(map(repr, words))


def check_twice(faults: Sequence[Fault]) -> None:
    """The same fault twice is a slip: of two flips nothing is left, and a state drops nothing twice."""
    for index, fault in enumerate(faults):
        if (first := faults.index(fault)) < index:
            raise SpecError(f"faults[{index}]: the same as faults[{first}]; leave one of them out")


def check_numbers(
    where: str, fault: Fault, steps: int, sizes: Iterable[tuple[int, int]], first_step: int = 0
) -> None:
    """Of the fault's leg, which takes the steps from `first_step` on that are less than `steps`.

    `sizes`: (ranks, generations in that leg) of each point.
    """
    ranks, saves = zip(*sizes, strict=True) if (sizes := list(sizes)) else ((), ())
    if fault.rank != "all":
        below(f"{where}.rank", fault.rank, ranks, "number of ranks")
    taken = f"leg {fault.leg!r}, which takes the steps {first_step} to {steps - 1}"
    if fault.at == "step":
        if fault.generation is not None and not first_step <= fault.generation < steps:
            raise SpecError(f"{where}.generation: {fault.generation} is no step of {taken}")
    elif fault.at != RESTORE:
        if saves and not any(saves):
            raise SpecError(f"{where}.at: {fault.at!r} can never happen in {taken}: no save falls behind them")
        below(f"{where}.generation", fault.generation or 0, saves, "number of generations")
    not_negative(f"{where}.seconds", fault.seconds)
    if fault.action == "sleep":
        positive(f"{where}.seconds", fault.seconds)
