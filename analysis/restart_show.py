"""The rows on determinism and restart as a person sees them. Presentation only: no arithmetic on measurements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from analysis.figures import MECHANISM
from analysis.finding import counted
from analysis.restart_claims import where
from analysis.restart_figure import drawings as figures
from analysis.restart_rows import PLACE
from analysis.view import TEXTS, Drawing, Reasons, View, number, told_apart
from hpcckpt.records import RESTART_PARTS, STATE_KINDS

Row = dict[str, Any]
SHORT = {"not_applicable": "-", "unchanged": "same anyway"}
LEFT = [
    "framework", "strategy", "format", "switches", *TEXTS, "run to run", "restart", "cause", "other ranks", "GPUs",
    *STATE_KINDS, "largest part",
]  # fmt: skip


def in_short(rows: Sequence[Row]) -> str:
    """One sentence over all rows without planted faults; empty where nothing was compared."""
    judged = [row for row in rows if not row["faults"]]
    repeated = [row for row in judged if row["again_legs"]]
    restarted = [row for row in judged if row["restart_legs"]]
    parts = []
    if repeated:
        same, fewest = _all_exact(repeated, "again"), min(row["again_legs"] for row in repeated)
        parts.append(
            f"training repeats bit by bit in {len(same)} of {counted(len(repeated), 'configuration')} "
            f"({counted(fewest, 'repeat')} or more)"
        )
    if restarted:
        same = _all_exact(restarted, "restart")
        parts.append(f"a restart is exact in {len(same)} of {len(restarted)}")
        causes = Counter(_cause(row).removesuffix(" (transplant)") for row in restarted if row not in same)
        if causes:
            parts.append(f"the others differ by {', '.join(f'{cause} ({n})' for cause, n in causes.most_common())}")
    text = "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _all_exact(rows: Sequence[Row], name: str) -> list[Row]:
    return [row for row in rows if row[f"{name}_exact"] == row[f"{name}_legs"]]


def views(rows: Sequence[Row]) -> list[View]:
    """For each place: the verdicts, what was carried, and the time of a restart."""
    found = []
    for place, here in _by_place(rows).items():
        found += [_verdicts(place, here), _carried(place, here), _times(place, here)]
    return found


def drawings(rows: Sequence[Row]) -> list[Drawing]:
    """The same for the eye."""
    places = _by_place(rows)
    maps = {place: dict(zip(_labels(here), map(_cells, here), strict=True)) for place, here in places.items()}
    timed = {place: [row for row in here if row["restart_s"] is not None] for place, here in places.items()}
    return figures(maps, {place: dict(zip(_labels(here), here, strict=True)) for place, here in timed.items() if here})


def _cells(row: Row) -> list[str]:
    """The verdicts of a row in its place of the map; reasons for what was not measured stand in the tables."""
    reasons = Reasons()
    heads = [_verdict(row, "again", reasons), _verdict(row, "restart", reasons), _elsewhere(row, reasons)]
    kinds = [_short(row, kind) for kind in STATE_KINDS]
    return ["n.m." if text.startswith("n.m.") else text for text in (*heads, *kinds)]


def _short(row: Row, kind: str) -> str:
    """What became of a kind of state, as a cell says it."""
    said: str = row[f"carried_{kind}"] or "n.m."
    return SHORT.get(said, said)


def _by_place(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The rows that stand in one table, by its heading, in their order."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(_place(row), []).append(row)
    return found


def _place(row: Row) -> str:
    planted = f"; planted faults: {row['faults']}" if row["faults"] else ""
    killed = "" if row["killed"] is None else f"; rank {row['killed']} killed in a save"
    machine = f"; {MECHANISM}" if row["virtual_nodes"] else ""
    head = f"{counted(row['ranks'], 'rank')} on {row['device']}, {row['model']} with {row['optimizer']}"
    return f"{head}, {'durable' if row['durable'] else 'buffered'}{killed}{planted}{machine}"


def _names(rows: Sequence[Row]) -> dict[str, list[str]]:
    """Columns that name the rows of a place, so that no two have the same."""
    found = told_apart(("framework", "strategy", "format", "determinism"), rows)
    return {"switches" if title == "determinism" else title: texts for title, texts in found.items()}


def _labels(rows: Sequence[Row]) -> list[str]:
    """The same in one text each; switches that are as usual go without saying."""
    named = {title.replace("\n", " "): texts for title, texts in _names(rows).items()}
    plain = {title: named.pop(title) for title in ("framework", "strategy", "format")}
    heads = [f"{framework} {strategy}, {format_}" for framework, strategy, format_ in zip(*plain.values(), strict=True)]
    for title, texts in named.items():
        heads = [
            head if (title, text) == ("switches", "default") else f"{head}, {title} {text}"
            for head, text in zip(heads, texts, strict=True)
        ]
    return heads


def _verdicts(place: str, rows: Sequence[Row]) -> View:
    reasons = Reasons()
    columns = {
        **_names(rows),
        "runs": [str(row["runs"]) for row in rows],
        "run to run": [_verdict(row, "again", reasons) for row in rows],
        "restart": [_verdict(row, "restart", reasons) for row in rows],
        "cause": [_cause(row) for row in rows],
        "other ranks": [_elsewhere(row, reasons) for row in rows],
        "GPUs": [reasons.cell(None if row["device"] == "cpu" else "these", "no GPU took part") for row in rows],
    }
    lines = [f"{row['framework']} {row['strategy']}: {line}" for row in rows for line in _differences(row)]
    legend = "exact n/n: all bits equal in n of n legs; trains exactly: all but statistics, random states and counters"
    return View(title=f"Determinism and restart, {place}", columns=columns, left=LEFT, below=[
        legend, *lines, *reasons.lines(),
    ])  # fmt: skip


def _verdict(row: Row, name: str, reasons: Reasons) -> str:
    legs = row[f"{name}_legs"]
    if not legs:
        return reasons.cell(None, row[f"{name}_reason"])
    if row[f"{name}_exact"] == legs:
        return f"exact {legs}/{legs}"
    if name != "elsewhere" and row[f"{name}_trains"] == legs:  # there, nothing was trained
        return f"trains exactly {legs}/{legs}"
    return f"differs {legs - row[f'{name}_exact']}/{legs}"


def _elsewhere(row: Row, reasons: Reasons) -> str:
    ranks = ", ".join(map(str, row["elsewhere_ranks"]))
    said = _verdict(row, "elsewhere", reasons)
    return f"{ranks}: {said}" if row["elsewhere_legs"] else said


def _cause(row: Row) -> str:
    if row["cure"]:
        return f"{' + '.join(row['cure'])} (transplant)"
    if row["restart_exact"] == row["restart_legs"]:
        return "-"
    if row["explanations"]:
        return ", ".join(row["explanations"])
    return row["restart_cause"] or ("not found" if row["transplants"] else "not looked for")


def _differences(row: Row) -> list[str]:
    names = {"again": "run to run", "saving": "the leg that saves", "restart": "restart", "elsewhere": "on other ranks"}
    found = [
        f"{words}: {where(row, f'{name}_first')}" for name, words in names.items() if row[f"{name}_first_leg"]
    ]
    found += [f"not compared: {words}" for words in row["elsewhere_failed"] if row["elsewhere_legs"]]
    same = all(row[f"restart_training_{place}"] == row[f"restart_first_{place}"] for place in PLACE)
    if row["restart_training_leg"] and not same:
        found.append(f"restart, in training: {where(row, 'restart_training')}")
    return found


def _carried(place: str, rows: Sequence[Row]) -> View:
    reasons = Reasons()
    columns = _names(rows) | {
        kind: [
            reasons.cell(None if (text := _short(row, kind)) == "n.m." else text, row["carried_reason"] or "no restore")
            for row in rows
        ]
        for kind in STATE_KINDS
    }
    lost = [
        f"{row['framework']} {row['strategy']}: not as before: {'; '.join(row['lost'])}" for row in rows if row["lost"]
    ]
    legend = [
        "saved: a fresh start has other values, and the restore brought back those that were saved, on every rank",
        "missing: as a fresh start has it; altered: neither that nor as saved; partly: some of it is as saved",
        "same anyway: a fresh start has the same values, so nothing is proved; -: there is no such state",
        "data_position: the order is the suite's own and follows from it; no library's shuffling iterator is in use",
        "other: counters and rates of optimizer and trainer; no adapter has a schedule that would have to be saved",
    ]
    return View(title=f"What the checkpoint carries, {place}", columns=columns, left=LEFT, below=[
        *legend, *lost, *reasons.lines(),
    ])  # fmt: skip


def _times(place: str, rows: Sequence[Row]) -> View:
    reasons = Reasons()
    columns = _names(rows)
    for part in RESTART_PARTS:
        cells = [reasons.cell(number(row[f"{part}_s"]), row["split_reason"] or row["restart_reason"]) for row in rows]
        columns[f"{part.replace('_', ' ')}\ns"] = cells
    shares = [None if row["cached"] is None else 100 * row["cached"] for row in rows]
    costs = [None if row["digest_s"] is None else 1e3 * row["digest_s"] for row in rows]
    steps = [None if row["step_s"] is None else 1e3 * row["step_s"] for row in rows]
    columns |= {
        "largest part": [reasons.cell(row["largest_part"], row["split_reason"]) for row in rows],
        "cached\n%": [reasons.cell(number(share), "the kernel does not say") for share in shares],
        "digests\nms/step": [reasons.cell(number(cost), "no digests") for cost in costs],
        "step\nms": [reasons.cell(number(step), "no steps") for step in steps],
    }
    legend = [
        "median over runs; each part ends when the last rank is through; suite: our own work, no part of a restart",
        "cached: pages of the checkpoint in memory before the read, after the kernel was asked to drop them",
    ]
    return View(title=f"Time of a restart, {place}", columns=columns, left=LEFT, below=[*legend, *reasons.lines()])
