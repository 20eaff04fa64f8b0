"""What an experiment says of a restart test: which legs there are, what each begins with and where it ends.

Words and rules only: no state, no files, no framework.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from hpcckpt.errors import SpecError, nearest
from hpcckpt.numbers import MOST_RANKS, at_least, at_most, not_negative
from hpcckpt.planting import FAULT_PHASES, RESTORED, Fault
from hpcckpt.records import SERIALIZE_WRITE, TRAIN

# Legs of a run that tests restart. `train` stops behind the step `stop`; `restored` has fresh ranks, which restore what
# `train` saved and go on to the last step.
REFERENCE = "reference"
"""All steps without an interruption."""
AGAIN = "again"
"""The same once more: run to run. Further ones are again-02, again-03 ..."""
ELSEWHERE = "elsewhere-"
"""With the number of its ranks: these restore, and train no step that is compared."""
TRANSPLANT = "transplant-"
"""With a kind of state: `restored` once more, with that kind taken from the reference."""
EVERYTHING = "everything"
"""In place of a kind: all kinds that differ."""
MOST_AGAIN = 99


class Restart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a run tests restart."""

    stop: int
    """Step behind which `train` stops; a checkpoint is taken there."""
    again: int = 1
    """How often the reference is repeated."""
    elsewhere: list[int] = []
    """Other numbers of ranks that the checkpoint is restored on, where framework and strategy can."""
    transplant: bool = True
    """Where the restored leg differs, look for the kind of state that is to blame."""
    kill: int | None = None
    """Rank that is killed in the midst of the save behind the one at `stop`; None: the stop is a proper end."""
    kill_at: str = SERIALIZE_WRITE
    """Phase of that save in which it is killed."""
    kill_after_s: float = 0.0
    """How long after that phase began."""
    dump_limit_bytes: int = 1 << 30
    """Of state that a rank writes to scratch in a leg, so that differences can be counted; beyond it, none.

    What a transplant takes from the reference is not counted in it: one whole state, where `transplant` is true.
    """


def planned_legs(restart: Restart) -> list[str]:
    """The legs that run whatever is found, in their order."""
    again = [AGAIN if number == 1 else f"{AGAIN}-{number:02d}" for number in range(1, restart.again + 1)]
    return [REFERENCE, *again, TRAIN, RESTORED]


def extra_legs(restart: Restart) -> int:
    """Most legs that may follow: for time limits."""
    from hpcckpt.restart.transplants import MOST

    return len(restart.elsewhere) + (MOST if restart.transplant else 0)


def restores(leg: str) -> bool:
    """Whether a leg begins with a checkpoint."""
    return leg == RESTORED or leg.startswith((ELSEWHERE, TRANSPLANT))


def saves_or_restores(leg: str) -> bool:
    """Whether a leg needs a strategy; the control and the reference only train."""
    return leg == TRAIN or restores(leg)


def dies(restart: Restart | None, leg: str) -> bool:
    """Whether the leg is meant to end by the death of a rank."""
    return restart is not None and restart.kill is not None and leg == TRAIN


def death(restart: Restart, interval: int) -> Fault:
    """The kill in the midst of the save behind the one at `stop`."""
    assert restart.kill is not None
    generation, seconds = restart.stop // interval, restart.kill_after_s
    return Fault(rank=restart.kill, at=restart.kill_at, action="kill", generation=generation, seconds=seconds)


def transplanted(leg: str) -> str | None:
    """The kind of state that a leg takes from the reference."""
    return leg.removeprefix(TRANSPLANT) if leg.startswith(TRANSPLANT) else None


def last_step(leg: str, restart: Restart, steps: int) -> int:
    """Index of the last step of a leg; of one that is killed, the last that it could come to."""
    if leg.startswith(ELSEWHERE):
        return restart.stop
    return restart.stop if leg == TRAIN and restart.kill is None else steps - 1


def steps_of(leg: str, restart: Restart | None, steps: int) -> range:
    """Indices of the steps of a leg; `restart`: None in runs that measure saves."""
    if restart is None:
        return range(steps)
    return range(restart.stop + 1 if restores(leg) else 0, last_step(leg, restart, steps) + 1)


def saves_in(steps: range, interval: int) -> int:
    """Saves that fall behind these steps; behind the first one of a leg, which is warm-up, there is none."""
    return max(0, (steps.stop - 1) // interval - steps.start // interval)


def check(restart: Restart, settings: Any, intervals: Iterable[int], ranks: Iterable[int]) -> None:
    """Raises SpecError for what no run can mean."""
    _check_stop(restart.stop, settings.steps)
    at_least("settings.restart.again", restart.again, 0)
    at_most("settings.restart.again", restart.again, MOST_AGAIN)
    at_least("settings.restart.dump_limit_bytes", restart.dump_limit_bytes, 0)
    _check_elsewhere(restart.elsewhere)
    if settings.barrier == "none":
        raise SpecError("settings.barrier: 'none' leaves no pause in which states could be compared")
    for interval in intervals:
        _check_interval(restart, interval, settings.steps)
    _check_death(restart, ranks)


def _check_stop(stop: int, steps: int) -> None:
    if steps < 3:
        raise SpecError(f"settings.steps: {steps} leave no step behind a save and a stop; a test of restart needs 3")
    if not 1 <= stop < steps - 1:
        raise SpecError(
            f"settings.restart.stop: {stop} must be at least 1 and less than {steps - 1}, the last step"
        )


def _check_elsewhere(elsewhere: Sequence[int]) -> None:
    key = "settings.restart.elsewhere"
    for index, number in enumerate(elsewhere):
        at_least(key, number, 1)
        at_most(key, number, MOST_RANKS)
        if number in elsewhere[:index]:
            raise SpecError(f"{key}: {number} is listed twice; each number of ranks is one leg")


def _check_death(restart: Restart, ranks: Iterable[int]) -> None:
    if restart.kill is not None:
        fewest = min(ranks, default=restart.kill + 1)
        if not 0 <= restart.kill < fewest:
            least = f"less than {fewest}, the smallest number of ranks of any run"
            raise SpecError(f"settings.restart.kill: {restart.kill} must be at least 0 and {least}")
    if restart.kill_at not in FAULT_PHASES:
        hint = nearest(restart.kill_at, FAULT_PHASES)
        raise SpecError(f"settings.restart.kill_at: {restart.kill_at!r} is no phase that a save enters; {hint}")
    not_negative("settings.restart.kill_after_s", restart.kill_after_s)
    if restart.kill is None and (restart.kill_after_s or restart.kill_at != SERIALIZE_WRITE):
        raise SpecError("settings.restart.kill: is left out, so kill_at and kill_after_s would do nothing; name a rank")


def _check_interval(restart: Restart, interval: int, steps: int) -> None:
    if restart.stop % interval:
        raise SpecError(f"settings.restart.stop: {restart.stop} is no multiple of interval_steps ({interval})")
    if restart.kill is not None and restart.stop + interval >= steps:
        raise SpecError(f"settings.restart.kill: no save follows the one at step {restart.stop}; more steps are needed")
