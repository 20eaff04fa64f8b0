"""Is training deterministic, and is a restart exact? And if not, why not. `python -m analysis.restart_determinism`.

One row per framework, strategy and place: run to run, restart, restart on other ranks, what the
checkpoint carried, where the time of a restart went. Verdicts: `analysis.restart_claims`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from statistics import median
from typing import Any

import polars as pl

from analysis.cli import Answer, Question, main
from analysis.finding import counted
from analysis.pooling import SEPARATE, told_by
from analysis.restart_claims import findings, paper
from analysis.restart_rows import LOST, PLACE
from analysis.restart_show import drawings, in_short, views
from analysis.tables import Tables
from analysis.view import Drawing, View
from hpcckpt import registry
from hpcckpt.errors import HpcCkptError
from hpcckpt.records import RESTART_PARTS, STATE_KINDS

Row = dict[str, Any]
GROUP = (
    "framework", "strategy", "format", "model", "optimizer", "determinism", "nodes", "ranks", "device", "durable",
    "interval_steps", "killed", "faults", "site",
)  # fmt: skip
NOT_ASKED = {
    "again": "settings.restart.again = 0: the reference was not repeated",
    "saving": "the leg that saves was not compared",
    "restart": "nothing was restored",
    "elsewhere": "no other number of ranks was asked for",
}
NOTHING = "No run tests restart; the experiment `restart` does."
METHOD = (
    "Every leg is compared with the reference by digests of all state, gradients, loss and sample ids, on every rank "
    "and at every step. `exact` means that all bits are equal. `trains exactly` means that samples, loss, gradients, "
    "parameters and optimizer have equal bits: batch-norm statistics, which are for evaluation, may differ, and so may "
    "random states that nothing draws from."
)


class RestartDeterminism(Question):
    """Run to run, restart, restart elsewhere, and the cause of what differs."""

    name = "restart_determinism"
    asks = "Is training deterministic and a restart exact, for each framework and strategy, and if not, why not?"

    def answer(self, tables: Tables, pool_commits: bool = False) -> Answer:
        rows = [_row(tables, runs) for runs in _groups(tables.restarts, pool_commits)]
        _tell_apart(rows, SEPARATE[:1] if pool_commits else SEPARATE)
        return Answer(
            question=self.name,
            rows=rows,
            findings=[*(finding for row in rows for finding in findings(row)), paper(rows)],
            left_out=list(tables.left_out.iter_rows(named=True)),
            notes=[METHOD if rows else NOTHING],
        )

    def in_short(self, answer: Answer) -> str:
        return in_short(answer.rows)

    def views(self, answer: Answer) -> list[View]:
        return views(answer.rows)

    def drawings(self, answer: Answer) -> list[Drawing]:
        return drawings(answer.rows)


def _groups(restarts: pl.DataFrame, pool_commits: bool) -> list[list[Row]]:
    """Rows of the table that stand together: planted faults last, each apart."""
    names = (*GROUP, *(SEPARATE[:1] if pool_commits else SEPARATE))
    found: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in restarts.iter_rows(named=True):
        found[tuple(row[name] for name in names)].append(row)
    planted = GROUP.index("faults")
    return [found[key] for key in sorted(found, key=lambda key: (bool(key[planted]), *map(str, key)))]


def _row(tables: Tables, legs: Sequence[Row]) -> Row:
    first = legs[0]
    runs = list({leg["run"]: leg for leg in legs}.values())
    evidence = [run["run"] for run in runs]
    of_runs = tables.carried.filter(pl.col("run").is_in(evidence))
    return {
        "group": _title(first),
        **{name: first[name] for name in (*GROUP, *SEPARATE, "virtual_nodes", "stop", "steps")},
        "runs": len(runs),
        "evidence": evidence,
        **_verdict("again", [leg for leg in legs if leg["about"] == "run_to_run"]),
        **_verdict("saving", [leg for leg in legs if leg["about"] == "saving"]),
        **_verdict("restart", [leg for leg in legs if leg["about"] == "restart"]),
        **_verdict("elsewhere", [leg for leg in legs if leg["about"] == "elsewhere"]),
        "elsewhere_ranks": sorted({leg["leg_ranks"] for leg in legs if _compared_elsewhere(leg)}),
        "transplants": sorted({leg["leg"] for leg in legs if leg["about"] == "transplant"}),
        **_cure([leg for leg in legs if leg["about"] == "restart" and leg["exact"] is False]),
        "known": _known(first["framework"]),
        **_carried(of_runs),
        "lost": _lost(of_runs),
        "notes": list(dict.fromkeys(note for run in runs for note in run["notes"])),
        **_costs(runs),
    }


def _compared_elsewhere(leg: Row) -> bool:
    return leg["about"] == "elsewhere" and leg["exact"] is not None


def _title(row: Row) -> str:
    killed = "" if row["killed"] is None else f", rank {row['killed']} killed in a save"
    planted = f", planted faults: {row['faults']}" if row["faults"] else ""
    head = f"{row['framework']}, {row['strategy']}, {row['format']}, {row['model']} with {row['optimizer']}"
    head = f"{head}, {'durable' if row['durable'] else 'buffered'}, every {counted(row['interval_steps'], 'step')}"
    return f"{head}, {counted(row['ranks'], 'rank')} on {row['device']}, switches {row['determinism']}{killed}{planted}"


def _tell_apart(rows: Sequence[Row], separate: Sequence[str]) -> None:
    """Give rows names that no two share: where only settings or code tell them apart, these stand in the name."""
    names = Counter(row["group"] for row in rows)
    for row in rows:
        if names[row["group"]] > 1:
            row["group"] += told_by({name: row[name] for name in separate})


def _verdict(name: str, legs: Sequence[Row]) -> Row:
    """How many legs were compared and equal, and the earliest difference of them all."""
    compared = [leg for leg in legs if leg["exact"] is not None]
    differing = [leg for leg in compared if not leg["exact"]]
    earliest = min(differing, key=lambda leg: (leg["first_step"], leg["first_when"]), default=None)
    reasons = [leg["reason"] for leg in legs if leg["reason"]]
    return {
        f"{name}_legs": len(compared),
        f"{name}_exact": sum(leg["exact"] for leg in compared),
        f"{name}_trains": sum(leg["trains_exactly"] for leg in compared),
        f"{name}_reason": None if compared else (reasons[0] if reasons else NOT_ASKED[name]),
        f"{name}_failed": list(dict.fromkeys(f"{leg['leg']}: {leg['reason']}" for leg in legs if leg["reason"])),
        f"{name}_kinds": sorted({kind for leg in differing for kind in leg["kinds"]}),
        f"{name}_cause": next((leg["cause"] for leg in differing if leg["cause"]), None),  # of a restart: see _cure
        **_place(f"{name}_first", earliest, "first"),
        **_place(f"{name}_training", next((leg for leg in differing if not leg["trains_exactly"]), None), "training"),
    }


def _place(name: str, leg: Row | None, which: str) -> Row:
    """Where a leg first differs, one column each; all empty where none does."""
    places = {place: leg[f"{which}_{place}"] if leg else None for place in PLACE}
    return {f"{name}_leg": leg["leg"] if leg else None, **{f"{name}_{key}": value for key, value in places.items()}}


def _known(framework: str) -> str | None:
    """Why this framework's sums may have another order after a restart, as its adapter says."""
    try:
        reason: str | None = registry.load("hpcckpt.frameworks", framework).reorders_sums
    except HpcCkptError:
        return None
    return reason


def _cure(differing: Sequence[Row]) -> Row:
    """What explains the runs whose restart differs: one thing for all of them, or how often which."""
    said = Counter(_explanation(leg) for leg in differing)
    alike = differing[0] if len(said) == 1 else None
    return {
        "cure": alike["cure"] if alike else None,
        "cured": alike["cured"] if alike else None,
        "restart_cause": alike["cause"] if alike else None,
        "explanations": [f"{words} ({count})" for words, count in said.most_common()] if len(said) > 1 else [],
    }


def _explanation(leg: Row) -> str:
    """What a run's restart differs by, as its transplants and digests showed."""
    if leg["cure"]:
        return " + ".join(leg["cure"]) + (" for training" if leg["cured"] == "training" else "")
    return leg["cause"] or "not found"


def _carried(carried: pl.DataFrame) -> dict[str, str | None]:
    """Verdict of each kind, several where runs disagree; None where nothing was restored, or not all of it seen."""
    found: dict[str, list[str]] = {kind: [] for kind in STATE_KINDS}
    for row in carried.filter(pl.col("verdict") != "not_measured").iter_rows(named=True):
        found[row["kind"]].append(row["verdict"])
    reasons = carried.filter(pl.col("verdict") == "not_measured")["reason"].to_list()
    verdicts = {f"carried_{kind}": " / ".join(dict.fromkeys(said)) or None for kind, said in found.items()}
    return {**verdicts, "carried_reason": next(iter(reasons), None)}


def _lost(carried: pl.DataFrame) -> list[str]:
    """What was not as before, by its keys."""
    rows = carried.filter(pl.col("verdict").is_in(LOST))
    named = (f"{row['kind']} {key}" for row in rows.iter_rows(named=True) for key in row["differing"])
    return list(dict.fromkeys(named))


def _costs(runs: Sequence[Row]) -> Row:
    def middle(name: str) -> float | None:
        values = [run[name] for run in runs if run[name] is not None]
        return median(values) if values else None

    parts = {f"{part}_s": middle(f"{part}_s") for part in RESTART_PARTS}
    own = {part: seconds for part in RESTART_PARTS if part != "suite" and (seconds := parts[f"{part}_s"]) is not None}
    reasons = [run["split_reason"] for run in runs if run["split_reason"]]
    return {
        **parts,
        "restart_s": sum(own.values()) if own else None,
        "largest_part": max(own, key=lambda part: own[part]) if own else None,
        "split_reason": reasons[0] if reasons else None,
        "cached": middle("cached"),
        "digest_s": middle("digest_s"),
        "digest_bytes": middle("digest_bytes"),
        "step_s": middle("step_s"),
    }


if __name__ == "__main__":
    raise SystemExit(main(RestartDeterminism()))
