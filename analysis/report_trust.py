"""Whether the runs can be believed: the six laws run by run, what is left out, what was not measured and why.

Laws 1 to 4 are judged by `analysis.laws`. Law 5 is checked here over all tables, by the reason that each
column names; law 6 is what `analysis.collect` counts or leaves out. No other judging here.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import polars as pl

from analysis import laws
from analysis.finding import counted
from analysis.report_ask import Asked
from analysis.tables import TABLES, Tables
from analysis.view import View

Row = dict[str, Any]
REASONED, COMPLETE = "L5_reasons", "L6_complete"
LAWS: dict[str, tuple[str, str]] = {
    laws.COVERAGE: ("1 coverage", "traced bytes over bytes on disk lie within the format's declared interval"),
    laws.UNATTRIBUTED: ("2 attribution", "what no phase explains is at most 1 % of a stall or 1 ms, on every rank"),
    laws.REPLICAS: ("3 replicas", "all ranks of a replica group hold equal parameters"),
    laws.READBACK: ("4 read-back", "what is read back equals what was saved, at least first and last checkpoint"),
    REASONED: ("5 reasons", "a number that could not be measured says why, and is never 0"),
    COMPLETE: ("6 complete", "the state file says done, and every rank's record ends with its closing line"),
}
_WORDS = {laws.KEPT: "kept", laws.BROKEN: "broken", laws.NOT_MEASURED: "n.m."}
_REASON = re.compile(r"reason: (\w+)(?: or (\w+))?")
_CELL_REASON = re.compile(r"\(\d+\) not measured: (.*)", re.DOTALL)


def rows(tables: Tables) -> list[Row]:
    """A row per law and run: those of the table `laws`, and laws 5 and 6."""
    broken = dict(_without_reason(tables))
    found = list(tables.laws.iter_rows(named=True))
    for run in tables.runs["run"].to_list():
        verdict = laws.BROKEN if run in broken else laws.KEPT
        found.append(laws.law(run, REASONED, verdict, broken.get(run, "every missing number has its reason")))
        found.append(laws.law(run, COMPLETE, laws.KEPT, "all ranks' records are closed"))
    counted_runs = set(tables.runs["run"].to_list())
    return found + [
        laws.law(left["run"], COMPLETE, laws.BROKEN, f"{left['code']}: {left['reason']}")
        for left in tables.left_out.filter(pl.col("scope") == "run").iter_rows(named=True)
        if left["run"] not in counted_runs
    ]


def _without_reason(tables: Tables) -> Iterator[tuple[str, str]]:
    """Runs with a null number whose reason is null as well, and its place."""
    for name, column, reasons in reasoned_columns():
        frame: pl.DataFrame = getattr(tables, name)
        silent = frame.filter(pl.all_horizontal(pl.col(each).is_null() for each in [column, *reasons]))
        for run in silent["run"].unique().to_list():
            yield run, f"{name}.{column} holds neither a number nor a reason"


def reasoned_columns() -> Iterator[tuple[str, str, list[str]]]:
    """Table, column, and the columns that say why it holds no number, as the tables' own words name them."""
    for name, columns in TABLES.items():
        for column, (_, words) in columns.items():
            if found := _REASON.search(words):
                yield name, column, [reason for reason in found.groups() if reason and reason in columns]


def matrix(tables: Tables, found: list[Row]) -> View:
    """Runs down, laws across; coverage beside, since law 1 speaks of it."""
    verdicts: dict[str, dict[str, str]] = defaultdict(dict)
    for row in found:
        verdicts[row["run"]][row["law"]] = _WORDS[row["verdict"]]
    runs = list(verdicts)
    columns = {"run": runs}
    for law, (words, _) in LAWS.items():
        columns["\n".join(words.split(" "))] = [verdicts[run].get(law, "-") for run in runs]
    coverages = _coverages(tables)
    columns["coverage\nleast"], columns["coverage\nmost"] = (
        [coverages.get(run, ("-", "-"))[i] for run in runs] for i in (0, 1)
    )
    trusted = {run: "yes" if ok else "no" for run, ok in tables.runs.select("run", "trusted").iter_rows()}
    columns["in pooled\nnumbers"] = [trusted.get(run, "no") for run in runs]
    flags = dict(tables.runs.select("run", "flags").iter_rows())
    columns["flags"] = ["; ".join(flags.get(run, [])) for run in runs]
    text = [heading for heading in columns if not heading.startswith("coverage\n")]
    return View(title="Laws, run by run", columns=columns, left=text)


def _coverages(tables: Tables) -> dict[str, tuple[str, str]]:
    found = tables.saves.group_by("run").agg(pl.col("coverage_min").min(), pl.col("coverage_max").max())
    return {
        run: ("n.m.", "n.m.") if low is None or high is None else (f"{low:.4f}", f"{high:.4f}")
        for run, low, high in found.iter_rows()
    }


def tally(found: list[Row]) -> View:
    """Each law in words, and how many runs keep it."""
    columns: dict[str, list[str]] = {"law": [], "what it says": [], "kept": [], "broken": [], "not measured": []}
    keys = dict(zip((laws.KEPT, laws.BROKEN, laws.NOT_MEASURED), list(columns)[2:], strict=True))
    for law, (short, words) in LAWS.items():
        columns["law"].append(short)
        columns["what it says"].append(words)
        for verdict, heading in keys.items():
            columns[heading].append(str(sum(row["law"] == law and row["verdict"] == verdict for row in found)))
    return View(title="The six laws", columns=columns, left=["law", "what it says"])


def details(found: list[Row]) -> View:
    """What is broken or not measured, and read-back in any case: equal words once, with their runs."""
    runs: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for row in found:
        if row["verdict"] != laws.KEPT or row["law"] == laws.READBACK:
            runs[row["verdict"], row["law"], row["detail"]].append(row["run"])
    order = {verdict: rank for rank, verdict in enumerate((laws.BROKEN, laws.NOT_MEASURED, laws.KEPT))}
    keys = sorted(runs, key=lambda key: (order[key[0]], key[1], -len(runs[key])))
    columns = {
        "law": [LAWS[law][0] for _, law, _ in keys],
        "verdict": [_WORDS[verdict] for verdict, _, _ in keys],
        "what was found": [detail for _, _, detail in keys],
        "runs": [str(len(runs[key])) for key in keys],
        "which": [some(runs[key]) for key in keys],
    }
    return View(title="Laws in detail", columns=columns, left=["law", "verdict", "what was found", "which"])


def some(names: list[str], shown: int = 3) -> str:
    """The first names, and how many more there are."""
    more = len(names) - shown
    return "; ".join(names[:shown]) + (f"; and {more} more" if more > 0 else "")


def left_out(tables: Tables) -> View:
    """What is counted nowhere, with cause and file."""
    columns = {name: list(map(str, tables.left_out[name].to_list())) for name in TABLES["left_out"]}
    return View(title=f"Left out ({counted(tables.left_out.height, 'entry')})", columns=columns, left=list(columns))


def not_measured(tables: Tables, asked: Iterable[Asked]) -> View:
    """Every reason why a number is missing, once, with where it is missing and how often."""
    places: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for place, reason in (*_of_findings(asked), *_of_views(asked)):
        places[reason][place] += 1
    for place, reason, count in _of_tables(tables):
        places[reason][place] += count
    keys = sorted(places, key=lambda reason: -sum(places[reason].values()))
    columns = {
        "reason": keys,
        "missing": ["; ".join(f"{place} ({n})" for place, n in places[reason].items()) for reason in keys],
        "times": [str(sum(places[reason].values())) for reason in keys],
    }
    return View(title="Not measured, and why", columns=columns, left=["reason", "missing"])


def _of_findings(asked: Iterable[Asked]) -> Iterator[tuple[str, str]]:
    for each in asked:
        yield from ((f"finding {found.code}", found.reason) for found in each.findings if found.reason)


def _of_views(asked: Iterable[Asked]) -> Iterator[tuple[str, str]]:
    for each in asked:
        for line in (line for view in each.views for line in view.below):
            if found := _CELL_REASON.fullmatch(line):
                yield f"cells of {each.name}", found.group(1)


def _of_tables(tables: Tables) -> Iterator[tuple[str, str, int]]:
    for name, column, reasons in reasoned_columns():
        frame: pl.DataFrame = getattr(tables, name)
        missing = frame.filter(pl.col(column).is_null()).select(pl.coalesce(reasons).alias("reason"))
        for reason, count in missing.drop_nulls().group_by("reason").len().sort("reason").iter_rows():
            yield f"{name}.{column}", reason.removeprefix("not measured: "), count
