"""What was run and where: the facts at the head of the report, its banners, and the campaigns' table.

Only what tables and manifests say; no verdicts, but for whether the numbers can be believed at all.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import msgspec
import polars as pl

from analysis import report_environment as environment
from analysis.cli import exit_code
from analysis.figures import BESIDE_PHASES, COLOURS, HATCHES, MECHANISM
from analysis.finding import counted
from analysis.report_environment import Environment, distinct
from analysis.tables import PHASE_COLUMNS, SAVES, Tables
from analysis.view import View
from hpcckpt.errors import ExitCode

SHOWN_LINES = 10
"""Lines of a fact at the head of the page."""
_AXES = ("framework", "model", "strategy", "format")
_COLUMNS = {"wait_before": "wait_before_s", **PHASE_COLUMNS, "background": "background_s"}
_COLUMNS |= {name: f"{name}_s" for name in BESIDE_PHASES}


class Banner(msgspec.Struct, frozen=True):
    """A sentence that must be read before any number. `tone`: bad, warn or note."""

    tone: str
    head: str
    text: str


class Phase(msgspec.Struct, frozen=True):
    """One colour of the figures, and what it stands for."""

    name: str
    colour: str
    hatched: bool
    meaning: str


def summary(tables: Tables) -> str:
    """The runs in one sentence."""
    runs = tables.runs
    restarts = tables.restarts["run"].n_unique()
    if restarts and not runs.height:
        return f"{counted(restarts, 'run')} of tests of restart; {counted(tables.left_out.height, 'entry')} left out."
    if not runs.height:
        return f"No run can be counted; {counted(tables.left_out.height, 'entry')} left out, with cause."
    spread = span(runs["nodes"].to_list())
    sentence = (
        f"{counted(runs.height, 'run')} with {counted(tables.saves.height, 'checkpoint')}"
        f" in {counted(runs['campaign'].n_unique(), 'campaign')}, on {spread} node{'' if spread == '1' else 's'}"
    )
    out = tables.left_out.filter(~pl.col("run").is_in(runs["run"].implode()))["run"].n_unique()
    sentence += f"; {counted(restarts, 'run')} of tests of restart" if restarts else ""
    return f"{sentence}; {out} left out." if out else f"{sentence}."


def banners(tables: Tables) -> list[Banner]:
    """What must be known first: broken laws, missing runs, one machine, planted faults."""
    found = []
    code = exit_code(tables)
    if code == ExitCode.NOT_TRUSTWORTHY:
        text = "A law that numbers rest on is broken in some runs. Read the section on trust first."
        found.append(Banner("bad", "Not trustworthy as it stands", text))
    elif code == ExitCode.RUNS_FAILED:
        text = "Some of what was planned is not counted. What and why stands under “Left out”."
        found.append(Banner("warn", "Incomplete", text))
    virtual = tables.runs.filter(pl.col("virtual_nodes"))
    if virtual.height:
        found.append(Banner("note", MECHANISM.capitalize(), _one_machine(virtual, tables.runs.height)))
    if faults := list(dict.fromkeys(filter(None, tables.runs["faults"].to_list()))):
        text = f"Some runs had faults planted on purpose and are pooled apart: {'; '.join(faults)}."
        found.append(Banner("note", "Planted faults", text))
    return found


def _one_machine(virtual: pl.DataFrame, of: int) -> str:
    """Who played several nodes and who was one: the first show no scaling, both share one disk."""
    several = virtual.filter(pl.col("nodes") > 1)
    loads = span([round(load, 2) for load in virtual["ranks_per_core"].to_list()])
    played = f"played {span(several['nodes'].to_list())} nodes on one machine" if several.height else ""
    single = virtual.height - several.height
    alone = f"had one node, {_ranks(virtual.filter(pl.col('nodes') == 1)['ranks'].to_list())}" if single else ""
    counts = [(several.height, played), (single, alone)]
    which = "; ".join(f"{_share_of(count, of)} {words}" for count, words in counts if count)
    return (
        f"{which}; {loads} ranks per core and one disk for all."
        " They show who writes, who waits and what is written; nothing is extrapolated from them."
    )


def _ranks(values: list[int]) -> str:
    return "1 rank" if set(values) == {1} else f"{span(values)} ranks"


def _share_of(count: int, of: int) -> str:
    return ("All runs" if of > 1 else "The run") if count == of else f"{count} of {of} runs"


def facts(tables: Tables, found: list[Environment]) -> dict[str, list[str]]:
    """Heading -> lines: what a reader must know to place the numbers."""
    runs = tables.runs
    versions = environment.versions(tables)
    barriers = ["none between phases" if each == "none" else each for each in _of(runs, "barrier")]
    found_facts = {
        "Experiments": _of(runs, "experiment"),
        "Sites": _of(runs, "site"),
        "Machines": environment.machines(found),
        "Frameworks": [f"{name}: {distinct(texts)}" for name, texts in versions.items()],
        "Models": _models(runs),
        "Strategies": [distinct(_of(runs, "strategy"))],
        "Formats": [distinct(_of(runs, "format"))],
        "Data": _of(runs, "data"),
        "MPI": environment.entry(found, "mpi.version"),
        "I/O tracer": [distinct(_of(runs, "tracer"))],
        "Barriers": [distinct(barriers)],
        "GPU": environment.entry(found, "gpu", "gpu.name", "gpu.0.name"),
        "Code": [commit[:12] + commit[40:] if len(commit) >= 40 else commit for commit in _of(runs, "commit")],
        "When": [when(runs)] if runs.height else [],
    }
    return {head: _first(lines) for head, lines in found_facts.items() if any(lines)}


def _first(lines: list[str]) -> list[str]:
    more = len(lines) - SHOWN_LINES
    return lines if more <= 0 else [*lines[:SHOWN_LINES], f"and {more} more, in the tables below"]


def _of(runs: pl.DataFrame, column: str) -> list[str]:
    return [str(value) for value in runs[column].unique(maintain_order=True).to_list()]


def _models(runs: pl.DataFrame) -> list[str]:
    found = runs.select("model", "parameters").unique(maintain_order=True)
    return [f"{model}, {parameters:,} parameters" for model, parameters in found.iter_rows()]


def campaigns(tables: Tables) -> View:
    """One row per campaign: what it planned in words, how much of it is counted."""
    told = [*tables.restarts["run"], *tables.left_out["run"]]
    names = list(dict.fromkeys([*tables.runs["campaign"], *map(_campaign, told)]))
    columns: dict[str, list[str]] = {}
    for name in names:
        for heading, cell in _campaign_row(tables, name).items():
            columns.setdefault(heading, []).append(cell)
    numbers = ("nodes", "ranks\nper node", "runs\ncounted", "left\nout", "checkpoints", "repeats")
    return View(title="Campaigns", columns=columns, left=[heading for heading in columns if heading not in numbers])


def _campaign(run: str) -> str:
    return run.partition("/")[0]


def _campaign_row(tables: Tables, name: str) -> dict[str, str]:
    runs = tables.runs.filter(pl.col("campaign") == name)
    left = {run for run in tables.left_out["run"] if _campaign(run) == name}
    saves = tables.saves.filter(pl.col("run").is_in(runs["run"].implode()))
    restarts = tables.restarts.filter(pl.col("run").str.starts_with(f"{name}/"))
    shared = ["experiment", "site", *_AXES, "nodes", "durable"]
    both = pl.concat([runs.select(shared), restarts.select(shared)])
    return {
        "campaign": name,
        "experiment": distinct(_of(both, "experiment")) or "-",
        "site": distinct(_of(both, "site")) or "-",
        **{axis: distinct(_of(both, axis)) or "-" for axis in _AXES},
        "nodes": distinct(sorted(both["nodes"].unique())) or "-",
        "ranks\nper node": distinct(sorted(runs["ranks_per_node"].unique())) or "-",
        "repeats": str(runs["repeat"].n_unique()),
        "durable": distinct("durable" if each else "buffered" for each in both["durable"]) or "-",
        "runs\ncounted": str(runs.height + restarts["run"].n_unique()),
        "left\nout": str(len(left)),
        "checkpoints": str(saves.height),
        "when": when(runs),
    }


def when(runs: pl.DataFrame) -> str:
    """From the first start to the last end, by the drivers' clocks."""
    started, ended = runs["started"].drop_nulls(), runs["ended"].drop_nulls()
    if not len(started) or not len(ended):
        return environment.NOT_RECORDED
    begin, end = (datetime.fromtimestamp(float(each), UTC) for each in (_low(started), _high(ended)))
    last = f"{end:%H:%M}" if begin.date() == end.date() else f"{end:%Y-%m-%d %H:%M}"
    return f"{begin:%Y-%m-%d %H:%M} to {last} UTC"


def _low(values: pl.Series) -> Any:
    return values.min()


def _high(values: pl.Series) -> Any:
    return values.max()


def span(values: Iterable[float]) -> str:
    """`1 to 8`, or the one value."""
    taken = list(values)
    low, high = min(taken), max(taken)
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"


def phases(tables: Tables) -> list[Phase]:
    """The phases that took any time in these runs, in their order."""
    found = []
    for name, column in _COLUMNS.items():
        seconds = tables.saves[column].sum() if column in tables.saves.columns else 0
        if seconds and seconds > 0:
            colour = COLOURS.get(name) or BESIDE_PHASES[name]
            words = name.replace("_", " ") if name != "release" else "scatter at the barriers"
            found.append(Phase(words, colour, name in HATCHES, SAVES[column][1].replace("`", "")))
    return found
