"""What checkpoints cost, at the head of the report: stall, overhead, waiting, bytes and copies, typical and largest.

One cost is one configuration: runs that may be pooled, at one point. Typical is the configuration in the
middle by its stall, not a mean over several: what differs is not added up. No verdicts here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import median

import msgspec
import polars as pl

from analysis.finding import counted
from analysis.in_short import MILLISECONDS_BELOW_S, seconds
from analysis.pooling import Group, Pool, pool
from analysis.stats import Interval, interval_words
from analysis.tables import Tables
from analysis.view import Reasons, View, mega, number

NOTHING = "No stall was measured in these runs."
LEAST_IDLE_S = 0.001
"""Rank-seconds below which nobody waits to speak of: the barriers' own scatter."""
_LEFT = ["framework", "strategy", "kind", "largest at"]


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """One configuration's checkpoint."""

    framework: str
    strategy: str
    durable: bool
    place: str
    """Format, model and point."""
    ranks: int
    interval_steps: int
    stall: Interval
    overhead: Interval
    """Seconds per checkpoint against the control."""
    idle: Interval
    """Rank-seconds that ranks wait inside the stall."""
    bytes: Interval
    copies: float | None
    """Share of the contents that the checkpoint holds more than once."""

    @property
    def kind(self) -> str:
        """Never in one line with the other one."""
        return "durable" if self.durable else "buffered"


def costs(tables: Tables, pool_commits: bool = False) -> list[Cost]:
    """Every configuration with a measured stall, the largest first; those with planted faults left out."""
    copies = _copies(tables)
    groups = [group for group in pool(tables, pool_commits) if not group.key["faults"]]
    found = [_cost(group, each, copies) for group in groups for each in group.pools]
    known = (cost for cost in found if cost.stall.value is not None)
    return sorted(known, key=lambda cost: (-(cost.stall.value or 0), -cost.ranks))


def _cost(group: Group, each: Pool, copies: dict[str, float]) -> Cost:
    key = group.key
    shares = [copies[run] for run in each.evidence if run in copies]
    return Cost(
        framework=key["framework"],
        strategy=key["strategy"],
        durable=group.durable,
        place=f"{key['format']}, {key['model']}, {each.place}",
        ranks=each.ranks,
        interval_steps=key["interval_steps"],
        stall=each.over_saves("stall_s"),
        overhead=each.over_runs("overhead_per_checkpoint_s", "overhead_reason"),
        idle=each.over_saves("idle_rank_s"),
        bytes=each.over_saves("checkpoint_bytes", "bytes_reason"),
        copies=median(shares) if shares else None,
    )


def _copies(tables: Tables) -> dict[str, float]:
    """run -> share of its checkpoints' contents that is there already, by digest; by name without digests."""
    known = pl.coalesce("content_redundant_bytes", "replica_redundant_bytes").sum()
    parts = tables.contents.group_by("run").agg(twice=known, all=pl.col("logical_bytes").sum())
    return {run: twice / whole for run, twice, whole in parts.iter_rows() if whole}


def typical(found: Sequence[Cost]) -> Cost:
    """The configuration in the middle by its stall; of two, the lower."""
    return sorted(found, key=lambda cost: cost.stall.value or 0)[(len(found) - 1) // 2]


def lede(found: Sequence[Cost]) -> str:
    """All configurations in one sentence; empty where there are few enough to be read one by one."""
    if len({(cost.framework, cost.durable) for cost in found}) < 2:
        return ""
    most, usual = found[0], typical(found)
    return (
        f"A checkpoint stalls training for {_bracket(usual.stall)} in the middle of {len(found)} configurations, "
        f"and for {_bracket(most.stall)} at most. By framework:"
    )


def sentences(found: Sequence[Cost]) -> list[tuple[str, str]]:
    """(framework, what its checkpoints cost), the framework with the largest stall first."""
    return [(head, _sentence(mine)) for head, mine in _by(found, lambda cost: (cost.framework, cost.kind)).items()]


def _by(found: Iterable[Cost], key: Callable[[Cost], tuple[str, ...]]) -> dict[str, list[Cost]]:
    parts: dict[str, list[Cost]] = {}
    for cost in found:
        parts.setdefault(", ".join(key(cost)), []).append(cost)
    return parts


def _sentence(mine: Sequence[Cost]) -> str:
    most, usual = mine[0], typical(mine)
    if len(mine) == 1:
        return f"a checkpoint stalls training for {_bracket(most.stall)} ({_where(most)}). {_beside(most)}"
    return (
        f"a checkpoint typically stalls training for {_bracket(usual.stall)} ({_where(usual)}; the middle of "
        f"{counted(len(mine), 'configuration')}), at most for {_bracket(most.stall)} ({_where(most)}). "
        f"At the most, {_beside(most)[:1].lower()}{_beside(most)[1:]}"
    )


def _where(cost: Cost) -> str:
    return f"{cost.strategy}, {cost.place}"


def _beside(cost: Cost) -> str:
    """The other numbers of the same checkpoint; what was not measured says so."""
    lost = "the overhead against the control was not measured"
    if cost.overhead.value is not None:
        every = f"with one every {counted(cost.interval_steps, 'step')}"
        lost = f"the overhead is {_bracket(cost.overhead)} per checkpoint {every}"
    idle = "" if (cost.idle.value or 0) < LEAST_IDLE_S else f", ranks idle {number(cost.idle.value)} rank-seconds"
    size = "bytes not measured" if cost.bytes.value is None else f"{mega(cost.bytes.value)} MB are written"
    copies = "" if not cost.copies or cost.copies < 0.0005 else f", {100 * cost.copies:.3g} % of it copies"
    text = f"{lost}{idle}; {size}{copies}."
    return f"{text[:1].upper()}{text[1:]}"


def _bracket(item: Interval) -> str:
    """Median with bounds where several runs give any."""
    if item.value is None:
        return "not measured"
    if item.n < 2 or item.low is None or item.high is None:
        return seconds(item.value)
    factor, unit = (1e3, "ms") if item.high < MILLISECONDS_BELOW_S else (1.0, "s")
    value, low, high = (number(each * factor) for each in (item.value, item.low, item.high))
    return f"{value} {unit} [{low}, {high}]"


def view(found: Sequence[Cost]) -> View:
    """A row per framework and strategy: the typical and the largest stall, and all else at the largest."""
    parts = _by(found, lambda cost: (cost.framework, cost.strategy, cost.kind))
    reasons = Reasons()
    rows = [_cells(mine, reasons) for mine in parts.values()]
    kinds = {cost.kind for cost in found}
    headings = [heading for heading in (rows[0] if rows else {}) if heading != "kind" or len(kinds) > 1]
    columns = {heading: [row[heading] for row in rows] for heading in headings}
    below = [
        *(f"all of these checkpoints are {kind}" for kind in kinds if len(kinds) == 1),
        "typical: the configuration in the middle by its stall; all columns behind are of the one with the largest",
        f"brackets: {interval_words([cost.stall for cost in found])}; overhead: against the run's own control",
        "copies: share of the contents that the checkpoint holds more than once, constants left out",
    ]
    title = "Framework by framework, strategy by strategy"
    return View(title=title, columns=columns, left=_LEFT, below=[*reasons.lines(), *below])


def _cells(mine: Sequence[Cost], reasons: Reasons) -> dict[str, str]:
    most, usual = mine[0], typical(mine)
    copies = None if most.copies is None else f"{100 * most.copies:.1f} %"
    return {
        "framework": most.framework,
        "strategy": most.strategy,
        "kind": most.kind,
        "configu-\nrations": str(len(mine)),
        "typical\nstall ms": _ms(usual.stall, reasons),
        "largest stall ms\n[low, high]": _ms(most.stall, reasons),
        "overhead ms a checkpoint\n[low, high]": _ms(most.overhead, reasons),
        "every\nsteps": str(most.interval_steps),
        "idle\nrank-s": reasons.cell(number(most.idle.value), most.idle.reason),
        "MB": reasons.cell(mega(most.bytes.value), most.bytes.reason),
        "copies": reasons.cell(copies, "no inventory of the contents"),
        "largest at": most.place,
    }


def _ms(item: Interval, reasons: Reasons) -> str:
    if item.value is None:
        return reasons.cell(None, item.reason)
    texts = [number(value * 1e3) for value in (item.value, item.low, item.high) if value is not None]
    return str(texts[0]) if item.n < 2 or len(texts) < 3 else f"{texts[0]} [{texts[1]}, {texts[2]}]"
