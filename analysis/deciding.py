"""When runs decide a difference of times, and when they cannot tell. One rule for all questions, with its words.

For numbers that scatter from run to run (stalls, overhead, steps, rates); bytes, writers and copies are
counted, and few runs decide those. No claim, no table and no threshold of a question here.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from analysis.finding import counted, signed
from analysis.stats import FEWEST, Fit

Side = Literal["below", "within", "above"]
FEW = 3
"""Two values of mere noise agree too often: no factor that is of use makes their agreement rare."""
FAR = 3.0
"""Three values of mere noise lie three times their range beyond a bound in fewer than one of a hundred cases."""
WIDE = "the spread between runs is too large to tell"
MECHANISM_NOTE = "one machine: mechanism, not scaling"


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """Where runs lie against bounds, or why that cannot be told."""

    side: Side | None = None
    reason: str | None = None
    note: str = ""
    """What a sentence has to add where few runs decided."""


def placed(
    low: float, high: float, n: int, bottom: float = -float("inf"), top: float = float("inf"), what: str = "run"
) -> Decision:
    """Where [low, high] of n runs lies: below `bottom`, above `top`, within both, or not to be told.

    From 5 runs on the interval decides; 3 or 4 decide where all lie beyond by FAR times their range.
    """
    if n < FEW:
        return Decision(reason=f"{counted(n, what)}: fewer than {FEW} decide no difference of times")
    margin = FAR * (high - low) if n < FEWEST else 0.0
    note = f" ({counted(n, what)} decide, as all lie more than {FAR:g} times their range beyond)" if margin else ""
    if low > top + margin:
        return Decision(side="above", note=note)
    if high < bottom - margin:
        return Decision(side="below", note=note)
    if low >= bottom + margin and high <= top - margin:
        return Decision(side="within", note=note)
    few = f" ({counted(n, what)}: fewer than {FEWEST} decide only where all lie {FAR:g} times their range beyond)"
    return Decision(reason=WIDE + (few if n < FEWEST else ""))


def grows(fit: Fit, smallest_growth: float, unit: str, over: str) -> Decision:
    """Whether a line rises: `above`, or `within` where it stays below `smallest_growth` of the unit; else why not.

    `over` says what it is laid over, for the reason.
    """
    if fit.slope is None or fit.slope_low is None or fit.slope_high is None:
        return Decision(reason=f"{over} counts: {fit.reason}")
    if fit.n < FEWEST:
        return Decision(reason=f"{counted(fit.n, 'run')}: fewer than {FEWEST} give no interval of a slope")
    if fit.slope_low > 0:
        return Decision(side="above")
    if fit.slope_high <= max(smallest_growth, 0.0):
        return Decision(side="below" if fit.slope_high < 0 else "within")
    return Decision(reason=f"{WIDE}: {slope_words(fit, unit)}")


def slope_words(fit: Fit, unit: str) -> str:
    """Slope and interval of a line that was fitted."""
    assert fit.slope is not None and fit.slope_low is not None and fit.slope_high is not None
    return f"{signed(fit.slope)} {unit} [{signed(fit.slope_low)}, {signed(fit.slope_high)}], {counted(fit.n, 'run')}"
