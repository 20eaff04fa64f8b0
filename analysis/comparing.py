"""Which runs of two sides may be compared, and what their comparison says. No words for people but reasons.

A pair is a point of the axes. What was measured otherwise (faults, site, file system, tracer, the
settings that change the work) is refused by name; what may change a number and is what one compares
(commits, versions) is flagged by name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import median
from typing import Any

import msgspec

from analysis.finding import counted
from analysis.rows import Row
from analysis.stats import FEWEST, Interval, median_interval
from analysis.tables import Tables
from hpcckpt.experiment import AXES

REGRESSED, IMPROVED, SAME, UNDECIDED = "regressed", "improved", "not worse", "undecided"
METRICS: dict[str, tuple[str, str, str, str]] = {
    "stall": ("saves", "stall_s", "s", ""),
    "overhead": ("runs", "overhead_per_checkpoint_s", "s", "overhead_reason"),
    "bytes": ("saves", "checkpoint_bytes", "bytes", "bytes_reason"),
}
"""Metric -> table, column, unit, and the column with the reason. In all of them more is worse."""
REFUSED = frozenset(
    {"site", "scratch_filesystem", "tracer", "virtual_nodes", "steps", "batch_per_rank", "optimizer", "scaling",
     "barrier", "keep", "include", "exclude", "frozen", "digest_every_step", "dataset", "faults"}
)  # fmt: skip
"""Facts that make two measurements of two things."""
CARRIED = frozenset({"data", "leg_limit_s", "drain_limit_s", "keep_files", "verify"})
"""Facts that change no number: paths, limits, and what happens after the last step."""


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One side's runs of a point."""

    name: str
    runs: list[Row]
    saves: dict[str, list[Row]]

    def facts(self) -> dict[str, set[str]]:
        """What its runs say of how they were measured: name -> values."""
        found: dict[str, set[str]] = defaultdict(set)
        for run in self.runs:
            for fact in run["condition_facts"]:
                name, _, value = fact.partition(" = ")
                found[name].add(value)
            for name, column in (("dataset", "data"), ("faults", "faults"), ("cores", "cores")):
                found[name].add(str(run[column]) or "none")
        return found

    def commits(self) -> list[str]:
        """Commits of its code."""
        return sorted({run["commit"] for run in self.runs})

    def interval(self, metric: str) -> Interval:
        """Median over runs with its interval; a reason where nothing was measured."""
        table, column, _, why = METRICS[metric]
        rows = {run["run"]: [run] if table == "runs" else self.saves.get(run["run"], []) for run in self.runs}
        values = {run: [row[column] for row in found] for run, found in rows.items()}
        known = [median(found) for found in values.values() if found and None not in found]
        reasons = [row[why] for found in rows.values() for row in found if why and row[why]]
        return median_interval(known, reason=reasons[0] if reasons else "no checkpoints")


def pairs(base: Tables, new: Tables, metrics: Sequence[str], threshold: float, pool_commits: bool) -> list[Row]:
    """One row per point of BASE and per metric."""
    sides = [_points("BASE", base), _points("NEW", new)]
    points = sorted(sides[0], key=str)
    return [
        _row(dict(zip(AXES, point, strict=True)), sides[0][point], sides[1].get(point), metric, threshold, pool_commits)
        for point in points
        for metric in metrics
    ]


def only_new(base: Tables, new: Tables) -> list[str]:
    """Points that BASE has no runs of."""
    ours, theirs = _points("BASE", base), _points("NEW", new)
    return [_title(dict(zip(AXES, point, strict=True))) for point in sorted(set(theirs) - set(ours), key=str)]


def _points(name: str, tables: Tables) -> dict[tuple[Any, ...], Side]:
    saves: dict[str, list[Row]] = defaultdict(list)
    for save in tables.saves.iter_rows(named=True):
        saves[save["run"]].append(save)
    found: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for run in tables.runs.iter_rows(named=True):
        found[tuple(run[axis] for axis in AXES)].append(run)
    return {point: Side(name=name, runs=runs, saves=saves) for point, runs in found.items()}


def _row(point: Row, base: Side, new: Side | None, metric: str, threshold: float, pool_commits: bool) -> Row:
    new = new or Side(name="NEW", runs=[], saves={})
    row = {"group": _title(point), **point, "metric": metric, "unit": METRICS[metric][2], "threshold": threshold}
    old, fresh = base.interval(metric), new.interval(metric)
    for name, side, item in (("base", base, old), ("new", new, fresh)):
        row |= {name: item.value, f"{name}_low": item.low, f"{name}_high": item.high, f"{name}_runs": item.n}
        row |= {f"{name}_commits": side.commits()}
    row |= ratio(old, fresh)
    reason = refusal(base, new, pool_commits) or unknown(base, new, old, fresh)
    if not reason:
        row["verdict"], reason = decide(row, threshold)
    return {"verdict": UNDECIDED, **row, "reason": reason, "flags": flags(base, new), "evidence": _evidence(base, new)}


def _evidence(*sides: Side) -> list[str]:
    return [run["run"] for side in sides for run in side.runs]


def _title(point: Row) -> str:
    kind = "durable" if point["durable"] else "buffered"
    where = f"{point['nodes']} x {point['ranks_per_node']}"
    names = ", ".join(str(point[name]) for name in ("framework", "strategy", "format", "model"))
    return f"{names}, {kind}, every {point['interval_steps']} steps, {where}"


def ratio(old: Interval, fresh: Interval) -> Row:
    """New over base; nothing where base is not above zero, as an overhead may come out."""
    empty: Row = dict.fromkeys(("ratio", "ratio_low", "ratio_high", "coverage"))
    if old.value is None or old.low is None or old.high is None or old.low <= 0:
        return empty
    if fresh.value is None or fresh.low is None or fresh.high is None:
        return empty
    low = fresh.low / (old.high if fresh.low > 0 else old.low)
    high = fresh.high / (old.low if fresh.high > 0 else old.high)
    both = old.coverage * fresh.coverage if old.coverage and fresh.coverage else None
    return {"ratio": fresh.value / old.value, "ratio_low": low, "ratio_high": high, "coverage": both}


def refusal(base: Side, new: Side, pool_commits: bool) -> str | None:
    """Why these runs are no measurements of the same thing; names what differs."""
    if not new.runs:
        return "NEW has no such runs"
    facts = (base.facts(), new.facts())
    for side, found in zip((base, new), facts, strict=True):
        if mixed := [name for name in sorted(REFUSED & set(found)) if len(found[name]) > 1]:
            return f"{side.name} holds runs that were measured in several ways: {_values(mixed[0], found)}"
        if len(side.commits()) > 1 and not pool_commits:
            commits = ", ".join(commit[:12] for commit in side.commits())
            return f"{side.name} holds runs of several commits ({commits}); --pool-commits joins them"
    different = _differing(*facts)
    words = [f"{name} ({_one(facts[0], name)} and {_one(facts[1], name)})" for name in different if name in REFUSED]
    return f"BASE and NEW differ in {', '.join(words)}" if words else None


def unknown(base: Side, new: Side, old: Interval, fresh: Interval) -> str | None:
    """Why the runs that may be compared say nothing."""
    for side, item in ((base, old), (new, fresh)):
        if untrusted := [run for run in side.runs if not run["trusted"]]:
            cause = next(iter(untrusted[0]["flags"]), "a law is broken")
            return f"{side.name} holds {counted(len(untrusted), 'untrusted run')} of {len(side.runs)}: {cause}"
        if durable := next((run["durable_reason"] for run in side.runs if run["durable_reason"]), None):
            return f"{side.name}: {durable}"
        if item.value is None:
            return f"{side.name}: {item.reason}"
        if item.n < FEWEST:
            return f"{side.name} has {counted(item.n, 'run')}, and fewer than {FEWEST} give no interval"
    return None


def decide(row: Row, threshold: float) -> tuple[str, str | None]:
    """Verdict from the ratio's interval, and the reason where it decides nothing."""
    low, high, limit = row["ratio_low"], row["ratio_high"], 1 + threshold
    if row["ratio"] is None:
        return UNDECIDED, "BASE is not above zero: there is no ratio"
    if low > limit:
        return REGRESSED, None
    if high > limit:
        return UNDECIDED, f"the interval of the ratio [{low:.3f}, {high:.3f}] holds the threshold {limit:.3f}"
    return (IMPROVED if high < 1 else SAME), None


def flags(base: Side, new: Side) -> list[str]:
    """What differs and does not forbid the comparison."""
    if not new.runs:
        return []
    facts = (base.facts(), new.facts())
    names = [name for name in _differing(*facts) if name not in REFUSED | CARRIED]
    found = [f"{name}: {_one(facts[0], name)} and {_one(facts[1], name)}" for name in names]
    if base.commits() == new.commits():
        found.append(f"both sides are of commit {', '.join(commit[:12] for commit in base.commits())}")
    return found


def _differing(ours: dict[str, set[str]], theirs: dict[str, set[str]]) -> list[str]:
    return [name for name in sorted(set(ours) | set(theirs)) if ours.get(name) != theirs.get(name)]


def _one(facts: dict[str, set[str]], name: str) -> str:
    return " or ".join(sorted(facts.get(name, {"not recorded"})))


def _values(name: str, facts: dict[str, set[str]]) -> str:
    return f"{name} is {' or '.join(sorted(facts[name]))}"
