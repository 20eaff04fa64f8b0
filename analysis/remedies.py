"""What would another strategy save, and what does it cost? `python -m analysis.remedies`.

Every strategy against the one that the framework's users have, on as many nodes, with differences
taken between runs of one campaign and repeat. Formulas are in `best_interval`, verdicts in
`remedy_claims`, tables in `remedy_show`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from statistics import median
from typing import Any

from analysis.best_interval import daly_s, lost_share, young_s
from analysis.cli import Answer, Question, main
from analysis.deciding import placed
from analysis.in_short import Measure
from analysis.own import asynchronous, base_strategy, is_own
from analysis.pooling import Group, Pool, Row, pool, writers
from analysis.remedy_claims import findings
from analysis.remedy_runs import per_run
from analysis.remedy_show import drawings, notes, views
from analysis.stats import Interval, median_interval
from analysis.tables import Tables
from analysis.view import Drawing, View
from hpcckpt.errors import SpecError

MTBF_HOURS, INTERVAL_MINUTES = 24.0, 30.0
"""What a job of some hundred nodes sees, and what people set; both are only to compare with."""
ALIKE = ("framework", "model", "durable", "interval_steps", "faults", "site", "commit", "nodes", "ranks_per_node")
"""What two rows must share to be compared."""
METRICS = {
    "stall_s": None,
    "background_s": None,
    "overhead_per_checkpoint_s": "overhead_reason",
    "interval_s": "overhead_reason",
    "checkpoint_bytes": "bytes_reason",
    "files": None,
    "memory_bytes": "memory_reason",
    "read_s": "read_reason",
    "cached": "read_reason",
}
"""Value of a run -> the one that says why it may be missing."""
COMPARED = ("stall_s", "overhead_per_checkpoint_s", "checkpoint_bytes", "files", "memory_bytes", "read_s")


class Remedies(Question):
    """Other strategies against the framework's own."""

    name = "remedies"
    asks = "What does another checkpoint strategy save in stall and bytes, what does it cost, and how often to save?"
    measures = (
        Measure(column="stall_more_s", words="beside its base a strategy's stall differs by", unit="s"),
        Measure(column="checkpoint_ratio", words="its bytes over its base's are", unit="ratio"),
        Measure(column="lost_share", words="lost of the wall clock at the stated interval is", unit="share"),
    )

    def __init__(self) -> None:
        self.mtbf_s, self.every_s = MTBF_HOURS * 3600, INTERVAL_MINUTES * 60
        self.against: str | None = None

    @classmethod
    def add_options(cls, found: argparse.ArgumentParser) -> None:
        more = found.add_argument_group("of this question")
        text = f"mean time between failures of the whole job (default {MTBF_HOURS:g})"
        more.add_argument("--mtbf", type=float, default=MTBF_HOURS, metavar="HOURS", help=text)
        text = f"time between two checkpoints to rate (default {INTERVAL_MINUTES:g})"
        more.add_argument("--interval", type=float, default=INTERVAL_MINUTES, metavar="MINUTES", help=text)
        more.add_argument("--against", metavar="STRATEGY", help="compare with it, not with the framework's own")

    def take(self, options: argparse.Namespace) -> None:
        for name, value in (("--mtbf", options.mtbf), ("--interval", options.interval)):
            if not 0 < value < 1e9:
                raise SpecError(f"{name} {value:g}: must be more than 0")
        self.mtbf_s, self.every_s, self.against = options.mtbf * 3600, options.interval * 60, options.against

    def answer(self, tables: Tables, pool_commits: bool = False) -> Answer:
        runs = per_run(tables)
        rows = [_row(group, each, runs) for group in pool(tables, pool_commits) for each in group.pools]
        if self.against and self.against not in {row["strategy"] for row in rows}:
            known = ", ".join(sorted({row["strategy"] for row in rows})) or "none"
            raise SpecError(f"--against {self.against}: these runs have {known}")
        rows = [self._compared(row, rows, runs) | self._rated(row) for row in rows]
        return Answer(
            question=self.name,
            rows=rows,
            findings=[finding for row in _one_per_group(rows) for finding in findings(row)],
            left_out=list(tables.left_out.iter_rows(named=True)),
            notes=notes(rows, self.mtbf_s, self.every_s),
        )

    def views(self, answer: Answer) -> list[View]:
        return views(answer.rows)

    def drawings(self, answer: Answer) -> list[Drawing]:
        return drawings(answer.rows)

    def _compared(self, row: Row, rows: Sequence[Row], runs: dict[str, Row]) -> Row:
        """The row with its base and the differences to it, one per pair of runs."""
        base = self._base(row, rows, runs)
        found = row | {"base": None, "base_format": None, "pairs": 0}
        if base is None or base is row:
            reason = "it is what the others are compared with" if base else "no other strategy to compare with"
            return found | {"is_base": base is row} | _differences([], reason)
        pairs = _pairs(row, base, runs)
        reason = "no runs of the same campaign and repeat"
        names = {"base": base["strategy"], "base_format": base["format"], "is_base": False, "pairs": len(pairs)}
        return found | names | {"base_stall_s": base["stall_s"]} | _differences(pairs, reason)

    def _base(self, row: Row, rows: Sequence[Row], runs: dict[str, Row]) -> Row | None:
        """The row to compare with: the base strategy on the same point, in the same format where there is one."""
        alike = [each for each in rows if all(each[name] == row[name] for name in ALIKE)]
        everywhere = [each for each in rows if each["framework"] == row["framework"]]
        strategy = self.against or base_strategy(row["framework"], everywhere)
        same = [each for each in alike if each["strategy"] == strategy]
        if row in same and not self.against and len(alike) == len(same):
            return None

        def order(each: Row) -> tuple[bool, bool, bool, str]:
            return each is not row, not _pairs(row, each, runs), each["format"] != row["format"], each["group"]

        return min(same, key=order, default=None)

    def _rated(self, row: Row) -> Row:
        """The best interval with its bounds, and what is lost at it and at the stated one."""
        behind = row["background_s"] or 0.0
        found: Row = {"mtbf_s": self.mtbf_s, "every_s": self.every_s} | _cost(row)
        cost = found["cost_s"]
        if cost is None:
            empty = ("young_s", "best_s", "best_low_s", "best_high_s", "lost_share", "lost_share_at_best")
            return found | dict.fromkeys(empty)
        bounds = [found["cost_low_s"], found["cost_high_s"]]
        # The next save has to wait for the work behind the last one.
        best = [max(daly_s(value, self.mtbf_s), behind) for value in (cost, *bounds)]
        return found | {
            "young_s": young_s(cost, self.mtbf_s),
            "best_s": best[0],
            "best_low_s": best[1],
            "best_high_s": best[2],
            "lost_share": lost_share(cost, self.mtbf_s, max(self.every_s, behind), behind),
            "lost_share_at_best": lost_share(cost, self.mtbf_s, max(best[0], 1e-9), behind),
        }


def _cost(row: Row) -> Row:
    """What a checkpoint costs training: its overhead where that is surely more than the stall, else the stall."""
    name, kind = "stall", "stall"
    if row["overhead_per_checkpoint_s"] is not None and row["stall_s"] is not None:
        low, high = row["overhead_per_checkpoint_low_s"], row["overhead_per_checkpoint_high_s"]
        if placed(low, high, row["overhead_per_checkpoint_runs"], top=row["stall_s"]).side == "above":
            name, kind = "overhead_per_checkpoint", "overhead against the control"
    bounds = {f"cost{bound}_s": row[f"{name}{bound}_s"] for bound in ("", "_low", "_high")}
    return {**bounds, "cost_kind": kind}


def _one_per_group(rows: Sequence[Row]) -> list[Row]:
    """The row that a group's findings speak of: the one with most ranks among those that were compared."""
    found: dict[str, Row] = {}
    for row in rows:
        known = found.setdefault(row["group"], row)
        if (row["pairs"] > 0, row["ranks"]) > (known["pairs"] > 0, known["ranks"]):
            found[row["group"]] = row
    return list(found.values())


def _row(group: Group, each: Pool, runs: dict[str, Row]) -> Row:
    """One strategy and format at one point; numbers are medians over runs."""
    mine = [] if each.reason else [runs[name] for name in each.evidence]
    row: Row = {
        "group": group.title,
        "commit": None,
        **group.key,
        "place": each.place,
        "nodes": each.nodes,
        "ranks_per_node": each.ranks_per_node,
        "ranks": each.ranks,
        "virtual_nodes": any(run["virtual_nodes"] for run in each.runs),
        "ranks_per_core": max((run["ranks_per_core"] for run in each.runs), default=None),
        "own": is_own(group.key["framework"], group.key["strategy"]),
        "asynchronous": asynchronous(group.key["strategy"]),
        "runs": len(each.runs),
        **writers(each),
        "evidence": each.evidence,
    }
    for name, reason in METRICS.items():
        why = each.reason or next((run[reason] for run in mine if reason and run[reason]), None)
        fallback = "no trusted run" if not each.runs else "no checkpoints" if reason is None else "not recorded"
        values = [run[name] for run in mine if run[name] is not None]
        row |= _numbers(name, median_interval(values, reason=why or fallback))
    return row


def _numbers(name: str, item: Interval) -> Row:
    stem, unit = next(((name.removesuffix(u), u) for u in ("_bytes", "_s") if name.endswith(u)), (name, ""))
    bounds = {f"{stem}_low{unit}": item.low, f"{stem}_high{unit}": item.high}
    return {name: item.value, **bounds, f"{stem}_reason": item.reason, f"{stem}_runs": item.n}


def _pairs(row: Row, base: Row, runs: dict[str, Row]) -> list[tuple[Row, Row]]:
    """(run, run of the base) of one campaign and repeat: they ran in the same days on the same machine."""
    by_place = {(runs[name]["campaign"], runs[name]["repeat"]): runs[name] for name in base["evidence"]}
    places = [(runs[name], by_place.get((runs[name]["campaign"], runs[name]["repeat"]))) for name in row["evidence"]]
    return [(mine, other) for mine, other in places if other is not None]


def _differences(pairs: list[tuple[Row, Row]], reason: str) -> Row:
    """Per compared number: the median difference over pairs with its bounds, and the median ratio."""
    found: Row = {}
    for name in COMPARED:
        known: list[tuple[Any, Any]] = [
            (mine[name], base[name]) for mine, base in pairs if mine[name] is not None and base[name] is not None
        ]
        item = median_interval([mine - base for mine, base in known], reason=reason if not pairs else "not recorded")
        ratios = [mine / base for mine, base in known if base]
        stem, unit = next(((name.removesuffix(u), u) for u in ("_bytes", "_s") if name.endswith(u)), (name, ""))
        found |= {
            f"{stem}_more{unit}": item.value,
            f"{stem}_more_low{unit}": item.low,
            f"{stem}_more_high{unit}": item.high,
            f"{stem}_more_runs": item.n,
            f"{stem}_more_reason": item.reason,
            f"{stem}_ratio": median(ratios) if ratios else None,
        }
    return found


if __name__ == "__main__":
    raise SystemExit(main(Remedies()))
