"""Did checkpoints get dearer? `python -m analysis.compare BASE NEW`: two sets of runs, point by point.

Exit 5: a regression whose whole interval lies beyond the threshold. Exit 6: the data cannot decide
somewhere, or a point of BASE has no partner. 0 otherwise. Which runs may be compared, and what the
interval is, says `analysis.comparing`; here are the command line, the findings and the exit code.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from analysis import charts
from analysis.cli import Answer, Question, main
from analysis.collect import collect
from analysis.compare_show import label, views
from analysis.comparing import METRICS, REGRESSED, UNDECIDED, only_new, pairs
from analysis.finding import Finding, counted, not_measured
from analysis.rows import Row
from analysis.stats import Interval
from analysis.tables import Tables
from analysis.view import Drawing, View
from hpcckpt.errors import ExitCode, SpecError

THRESHOLD = 0.1
"""Growth that is called a regression: what runs of one campaign differ by on a quiet machine is less."""
DEFAULT = ("stall", "bytes")
_CODES = {"stall": "CO01", "overhead": "CO02", "bytes": "CO03"}
_WORDS = {
    "stall": "the stall of a checkpoint",
    "overhead": "the overhead per checkpoint",
    "bytes": "the bytes of a checkpoint",
}
METHOD = (
    "Runs are the unit. A run's number is the median of its checkpoints, a side's the median of its runs with a "
    "distribution-free interval from the order statistics. The ratio's interval runs from new low over base high to "
    "new high over base low: it holds the true ratio at least as often as both intervals hold their medians (88 % for "
    "5 runs a side, over 90 % from 6 on). Nothing is drawn at random: the same runs always give the same answer."
)


class Compare(Question):
    """Two sets of runs, paired by their points."""

    name = "compare"
    asks = "Did the stall, the overhead or the bytes of checkpoints grow from BASE to NEW?"
    in_report: ClassVar[bool] = False
    takes: ClassVar[str] = "two, BASE and NEW: each a run, a campaign or a root of campaigns; there is no default"

    def __init__(self) -> None:
        self.sides: tuple[Path, Path] | None = None
        self.threshold = THRESHOLD
        self.metrics: tuple[str, ...] = DEFAULT
        self.pool_commits = False

    @classmethod
    def add_options(cls, found: argparse.ArgumentParser) -> None:
        options = "[--threshold SHARE] [--metric NAME]... [--json] [--csv DIR] [--figure FILE.svg] [--pool-commits]"
        found.usage = f"%(prog)s BASE NEW {options}"
        found.epilog = (
            "Exit codes: 0 no regression, 2 bad input, 4 runs missing or failed, 5 regression, 6 the data cannot "
            "decide, or a measurement is not trustworthy."
        )
        found.add_argument("--threshold", type=float, default=THRESHOLD, metavar="SHARE", help="default 0.1: 10 %%")
        names = {"choices": list(METRICS), "metavar": "NAME", "help": f"{', '.join(METRICS)}; default stall and bytes"}
        found.add_argument("--metric", action="append", **names)  # type: ignore[arg-type]

    def take(self, options: argparse.Namespace) -> None:
        if len(options.runs) != 2:
            raise SpecError(f"give two sets of runs, BASE and NEW, not {len(options.runs)}")
        if not 0 < options.threshold < float("inf"):
            raise SpecError(f"--threshold {options.threshold}: must be more than 0 and finite; 0.1 is 10 %")
        if options.parquet:
            raise SpecError("--parquet: two sets of runs are two sets of tables; ask another question of each")
        self.sides = (options.runs[0], options.runs[1])
        self.threshold = options.threshold
        self.metrics = tuple(dict.fromkeys(options.metric or DEFAULT))
        self.pool_commits = options.pool_commits

    def from_elsewhere(self) -> tuple[Answer, ExitCode] | None:
        assert self.sides is not None
        answer = self.compared(collect([self.sides[0]]), collect([self.sides[1]]))
        return answer, exit_code(answer.rows)

    def compared(self, base: Tables, new: Tables) -> Answer:
        """The answer from both sides' tables; pure."""
        rows = pairs(base, new, self.metrics, self.threshold, self.pool_commits)
        left = [{**row, "scope": f"{side}: {row['scope']}"} for side, tables in (("BASE", base), ("NEW", new))
                for row in tables.left_out.iter_rows(named=True)]  # fmt: skip
        findings = [_finding(row) for row in rows]
        alone = only_new(base, new)
        notes = [METHOD, f"Only NEW has {counted(len(alone), 'point')}: {'; '.join(alone)}."] if alone else [METHOD]
        notes += [_nothing(side, tables) for side, tables in (("BASE", base), ("NEW", new)) if not tables.runs.height]
        return Answer(question=self.name, rows=rows, findings=findings, left_out=left, notes=notes)

    def answer(self, tables: Tables, pool_commits: bool = False) -> Answer:
        raise SpecError("one set of runs has nothing to be compared with; give BASE and NEW")

    def views(self, answer: Answer) -> list[View]:
        return views(answer.rows)

    def drawings(self, answer: Answer) -> list[Drawing]:
        return [drawing for metric in METRICS for drawing in _drawing(answer.rows, metric, self.threshold)]


def _nothing(side: str, tables: Tables) -> str:
    """Why a side has nothing to compare."""
    restarts = tables.restarts["run"].n_unique()
    tests = f"; {counted(restarts, 'test')} of restart measure none" if restarts else ""
    return f"{side} holds no run that measures a checkpoint's cost{tests}."


def exit_code(rows: Sequence[Row]) -> ExitCode:
    """5 before 6 before 0: what is known to be worse is said, whatever else is not known."""
    verdicts = {row["verdict"] for row in rows}
    if REGRESSED in verdicts:
        return ExitCode.REGRESSION
    return ExitCode.NOT_TRUSTWORTHY if UNDECIDED in verdicts or not rows else ExitCode.OK


def _finding(row: Row) -> Finding:
    """CO01 to CO03: a metric grew by more than the threshold, at one point."""
    code = _CODES[row["metric"]]
    claim = f"{_WORDS[row['metric']]} grew by more than {row['threshold']:.0%}"
    if row["verdict"] == UNDECIDED:
        return not_measured(code, claim, row["group"], row["reason"], row["evidence"])
    grew = row["verdict"] == REGRESSED
    change = f"{row['base']:.4g} to {row['new']:.4g} {row['unit']}"
    bounds = f"{row['ratio']:.3f} times [{row['ratio_low']:.3f}, {row['ratio_high']:.3f}]"
    return Finding(
        code=code, claim=claim, group=row["group"], value=row["ratio"], unit="new/base", evidence=row["evidence"],
        low=row["ratio_low"], high=row["ratio_high"],
        verdict="supports" if grew else "contradicts", level="critical" if grew else "ok",
        sentence=f"{row['verdict']}: {bounds}, {change}, {row['base_runs']} and {row['new_runs']} runs",
        recommendation="Bisect the commits between the sides; the stall's phases say where to look." if grew else None,
    )  # fmt: skip


def _drawing(rows: Sequence[Row], metric: str, threshold: float) -> list[Drawing]:
    mine = [row for row in rows if row["metric"] == metric and row["ratio"] is not None]
    if not mine:
        return []
    shown = sorted(mine, key=lambda row: -row["ratio"])[: charts.LARGEST]
    items = [Interval(value=row["ratio"], low=row["ratio_low"], high=row["ratio_high"], n=1) for row in shown]
    title = f"{_WORDS[metric][0].upper()}{_WORDS[metric][1:]}: NEW over BASE"
    left = f"; the {len(shown)} of {len(mine)} points that grew most" if len(shown) < len(mine) else ""
    under = f"ratio of medians with its interval; dashed: a regression of {threshold:.0%}{left}"
    panel = charts.intervals(list(map(label, shown)), items, "new over base", "", 1 + threshold)
    figure = charts.sheet(title, under, [panel], [0.42 * len(shown) + 0.6])
    return [Drawing(name=metric, caption=title, figure=figure)]


if __name__ == "__main__":
    raise SystemExit(main(Compare()))
