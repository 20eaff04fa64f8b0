"""How often to save, and what of the time is lost: Young's and Daly's formulas. Plain functions of seconds, no tables.

Failures come at random with a mean time `mtbf_s` between them, of the whole job. Young (1974) is the
first order, Daly (2006) the higher one; `lost_share` is Daly's exact expectation for exponential
failures. The time to restart is not in it: it is not measured here, so a share is a lower bound.
"""

from __future__ import annotations

import math
import sys


def young_s(stall_s: float, mtbf_s: float) -> float:
    """Seconds of work between two checkpoints that lose least, to first order."""
    return math.sqrt(2 * stall_s * mtbf_s)


def daly_s(stall_s: float, mtbf_s: float) -> float:
    """The same, also where a stall is no small part of the time between failures."""
    if stall_s >= 2 * mtbf_s:
        return mtbf_s
    part = stall_s / (2 * mtbf_s)
    return young_s(stall_s, mtbf_s) * (1 + math.sqrt(part) / 3 + part / 9) - stall_s


def lost_share(stall_s: float, mtbf_s: float, interval_s: float, behind_s: float = 0.0) -> float:
    """Share of the wall clock that checkpoints and repeated work take, saving every `interval_s` of work.

    A checkpoint that is written `behind_s` behind its stall is worth nothing before: a failure repeats
    that much more.
    """
    exponent = (interval_s + stall_s) / mtbf_s
    if exponent + behind_s / mtbf_s > 700:  # such a job never ends, and exp would overflow
        return 1.0
    needed = mtbf_s * math.exp(behind_s / mtbf_s) * math.expm1(exponent)
    return 1 - interval_s / needed


if __name__ == "__main__":
    print("analysis.best_interval: formulas; ask python -m analysis.remedies [RUNS] [--mtbf HOURS]", file=sys.stderr)
    raise SystemExit(2)
