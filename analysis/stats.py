"""Medians, intervals and fits. The unit is the run: never a step, a checkpoint or a rank.

No assumption about distributions where none is needed: the interval of a median comes from the
order statistics and states its exact coverage. No table, no file, no figure here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Literal

import msgspec

CONFIDENCE = 0.95
FEWEST = 5
"""Runs below which no interval is claimed: four values cover their median with 87.5 % at most."""


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """The median of a row's runs with what is known about it. `value` is None where nothing was measured."""

    value: float | None
    low: float | None = None
    high: float | None = None
    n: int = 0
    kind: Literal["interval", "range", "none"] = "none"
    coverage: float | None = None
    """Chance that such an interval holds the true median; None for a range."""
    reason: str | None = None
    """Why there is no value."""

    @property
    def relative_width(self) -> float | None:
        """Width over median; None for fewer than two runs or a median of zero."""
        if self.value is None or self.low is None or self.high is None or self.n < 2 or not self.value:
            return None
        return (self.high - self.low) / abs(self.value)


def coverage_of(n: int, k: int) -> float:
    """Chance that the k-th smallest and k-th largest of n values enclose the median."""
    below: int = sum(math.comb(n, i) for i in range(k))
    return 1 - 2 * below / float(2**n)


def median_interval(
    values: Sequence[float], confidence: float = CONFIDENCE, reason: str | None = None
) -> Interval:
    """Median and distribution-free interval; the range for fewer than 5 values; `reason` where none are.

    The innermost pair of order statistics that reaches `confidence` is taken. Five values do not
    reach 95 %: their interval is smallest to largest, and says 93.75 %.
    """
    ordered = sorted(values)
    n = len(ordered)
    if not n:
        return Interval(value=None, reason=reason or "no runs")
    if n < FEWEST:
        return Interval(value=median(ordered), low=ordered[0], high=ordered[-1], n=n, kind="range")
    k = max((k for k in range(1, n // 2 + 1) if coverage_of(n, k) >= confidence), default=1)
    return Interval(
        value=median(ordered),
        low=ordered[k - 1],
        high=ordered[-k],
        n=n,
        kind="interval",
        coverage=coverage_of(n, k),
    )


def interval_words(intervals: Sequence[Interval]) -> str:
    """What the brackets of a table hold, in words, over all its rows."""
    kinds = {(i.kind, i.n, i.coverage) for i in intervals if i.n}
    words = []
    for kind, n, coverage in sorted(kinds, key=lambda kind: -kind[1]):
        if kind == "interval" and coverage is not None:
            words.append(f"interval of the median over {n} runs, coverage {100 * coverage:.2f} %")
        else:
            words.append(
                f"range of {n} runs, no interval" if n > 1 else "one run, neither interval nor range"
            )
    return "; ".join(words) or "no runs"


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """A straight line through runs. Without slope, `reason` says why there is none."""

    slope: float | None = None
    slope_low: float | None = None
    slope_high: float | None = None
    intercept: float | None = None
    r2: float | None = None
    """Share of the variance over runs that the line explains."""
    n: int = 0
    distinct: int = 0
    """How many different x values carry it."""
    confidence: float = CONFIDENCE
    reason: str | None = None


def fit_line(x: Sequence[float], y: Sequence[float], confidence: float = CONFIDENCE) -> Fit:
    """Least squares of y over x, one point per run, with the interval of the slope by Student's t."""
    n, distinct = len(x), len(set(x))
    if distinct < 3:
        reason = f"a line needs at least 3 different values, these runs have {distinct}"
        return Fit(n=n, distinct=distinct, reason=reason)
    from scipy import stats

    line = stats.linregress(x, y)
    # Equal values lie on their line; scipy divides by their variance, which is 0.
    error = float(line.stderr) if len(set(y)) > 1 else 0.0
    half = float(stats.t.ppf((1 + confidence) / 2, n - 2)) * error
    slope = float(line.slope)
    return Fit(
        slope=slope,
        slope_low=slope - half,
        slope_high=slope + half,
        intercept=float(line.intercept),
        r2=float(line.rvalue) ** 2 if len(set(y)) > 1 else 1.0,
        n=n,
        distinct=distinct,
        confidence=confidence,
    )


class LackOfFit(msgspec.Struct, frozen=True, kw_only=True):
    """Whether groups of repeats depart from a line by more than repeats of one group differ; or why not to be told."""

    p: float | None = None
    """Chance of such a departure, or a larger one, where the line holds."""
    f: float | None = None
    between_repeats: float | None = None
    """Share of what the line leaves over that lies between repeats."""
    reason: str | None = None


def lack_of_fit(groups: Sequence[tuple[float, Sequence[float]]]) -> LackOfFit:
    """The F test of lack of fit against pure error, for groups of values that were measured alike, each at one x."""
    found = [(x, list(values)) for x, values in groups if values]
    n, m = sum(len(values) for _, values in found), len(found)
    if len({x for x, _ in found}) < 3:
        return LackOfFit(reason=f"a line needs at least 3 different values, these have {len({x for x, _ in found})}")
    if n <= m:
        return LackOfFit(reason="no repeats tell the scatter of one from the differences between them")
    from scipy import stats

    line = stats.linregress([x for x, values in found for _ in values], [y for _, values in found for y in values])
    means = [(x, sum(values) / len(values), values) for x, values in found]
    pure = sum((y - mean) ** 2 for _, mean, values in means for y in values)
    lack = sum(len(values) * (mean - line.intercept - line.slope * x) ** 2 for x, mean, values in means)
    if not pure:
        return LackOfFit(p=float(not lack), between_repeats=0.0)
    f = (lack / (m - 2)) / (pure / (n - m))
    return LackOfFit(p=float(stats.f.sf(f, m - 2, n - m)), f=float(f), between_repeats=float(pure / (pure + lack)))
