"""Which finding comes first: by level, then by how much is at stake. Arithmetic on findings alone; no words.

Findings have units of their own. They are compared by the seconds of a checkpoint's stall that they concern:
seconds as they are, shares and ratios as their part of the stall of the runs behind them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from statistics import median

import polars as pl

from analysis.finding import LEVELS, Finding
from analysis.tables import Tables


class Stakes:
    """What the checkpoints of runs take: the scale that findings are put on."""

    def __init__(self, tables: Tables) -> None:
        columns = [pl.col(name).median() for name in ("stall_s", "checkpoint_bytes")]
        found = tables.saves.group_by("run").agg(columns)
        self._runs = {run: (stall or 0.0, size or 0.0) for run, stall, size in found.iter_rows()}
        self._ranks: dict[str, int] = dict(tables.runs.select("run", "ranks").iter_rows())

    def seconds(self, finding: Finding) -> float:
        """Seconds of stall per checkpoint that the finding concerns; 0 where it has no number."""
        value, unit = finding.value, finding.unit or ""
        if value is None or not math.isfinite(value):
            return 0.0
        known = [self._runs[run] for run in finding.evidence if run in self._runs]
        stall = median(stall for stall, _ in known) if known else 0.0
        if unit.startswith("rank-s"):
            ranks = [self._ranks[run] for run in finding.evidence if run in self._ranks]
            return abs(value) / max(ranks, default=1)
        if unit == "s" or unit.startswith("s/"):
            return abs(value)
        if unit == "bytes":
            size = median(size for _, size in known) if known else 0.0
            return stall * min(abs(value) / size, 1.0) if size else 0.0
        return stall * _share(value, unit)

    def order(self, finding: Finding) -> tuple[int, int, float]:
        """Sorts the gravest first; of a level, what was measured in seconds before bytes, and these before shares."""
        return -LEVELS.index(finding.level), _kind(finding.unit or ""), -self.seconds(finding)


def _kind(unit: str) -> int:
    """Seconds are lost for certain; what of a share is lost, depends on what would be done with it."""
    return 0 if unit.startswith(("s/", "rank-s")) or unit == "s" else 1 if unit == "bytes" else 2


def _share(value: float, unit: str) -> float:
    """The part of a whole that a share, or a ratio of two numbers, is about."""
    if unit.startswith("fraction"):
        return min(abs(value), 1.0)
    ratio = abs(value)
    return 1 - min(ratio, 1 / ratio) if ratio else 1.0


def worst_of(findings: Iterable[Finding]) -> Finding:
    """Of one code's findings the one that says most: by level, whether measured, then by its number."""
    return max(findings, key=_severity)


def _severity(finding: Finding) -> tuple[int, bool, int, float]:
    value, unit = finding.value, finding.unit or ""
    size = 0.0 if value is None or not math.isfinite(value) else abs(value)
    if unit == "ratio" and size:
        size = abs(math.log(size))  # half is as far from equal as twice
    level = LEVELS.index(finding.level)
    # What was not measured is `info`, and says less than what was measured and is in order.
    return max(level, LEVELS.index("info")), finding.verdict != "not_measured", level, size


def worst_per_code(findings: Mapping[str, Iterable[Finding]], stakes: Stakes) -> list[Finding]:
    """The worst finding of every code, the gravest first."""
    return sorted((worst_of(mine) for mine in findings.values()), key=stakes.order)
