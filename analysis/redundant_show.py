"""The rows on redundant copies as a person sees them. Presentation only: rounding, no arithmetic on measurements."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.rows import Row, places
from analysis.view import TEXTS, Reasons, View, mega, number, told_apart

SHOWN = 0.01
FEWEST_BYTES = 1000
"""Counters that are equal by chance have no line of their own."""
LEFT = ["framework", "strategy", "format", "model", "kind", "kinds", "ranks", *TEXTS]


def views(rows: Sequence[Row]) -> list[View]:
    """Per place: bytes and copies, by kind, who holds what, and what fewer copies would save."""
    found = []
    for place in places(rows):
        here = [row for row in rows if row["place"] == place]
        parts = {about: [row for row in here if row["about"] == about] for about in ("checkpoint", "kind", "holders")}
        found += [_copies(place, parts["checkpoint"]), _savings(parts["checkpoint"])]
        twice = [row for row in parts["kind"] if _twice(row)]
        found += [_kinds(twice)] if twice else []
        found += [_holders(parts["holders"])] if parts["holders"] else []
    return found


def _names(rows: Sequence[Row]) -> dict[str, list[str]]:
    return told_apart(("framework", "strategy", "format", "model"), rows)


def _share(value: float | None) -> str | None:
    return None if value is None else f"{100 * value:.1f}"


def _copies(place: str, rows: Sequence[Row]) -> View:
    reasons = Reasons()

    def cells(name: str, unit: str = "bytes") -> list[str]:
        text = mega if unit == "bytes" else _share
        return [reasons.cell(text(row[f"{name}_{unit}"]), row[f"{name}_reason"]) for row in rows]

    columns = {
        "runs": [str(row["runs"]) for row in rows],
        "on nodes": [reasons.cell(number(row["writer_nodes"]), "no files are listed") for row in rows],
        "MB\nlogical": cells("logical"),
        "MB\non disk": cells("disk"),
        "same name\nMB": cells("replica_redundant"),
        "\n%": cells("replica_redundant", "share"),
        "same content\nMB": cells("content_redundant"),
        "\n %": cells("content_redundant", "share"),
        "constant\nMB": cells("constant"),
    }
    legend = "median over runs; same name, same content: logical bytes beyond the first; constant: all zero or all one"
    return View(title=place, columns=_names(rows) | columns, left=LEFT, below=[legend, *reasons.lines()])


def _savings(rows: Sequence[Row]) -> View:
    reasons = Reasons()
    known = [row["content_redundant_disk_reason"] or row["disk_reason"] for row in rows]

    def cells(name: str) -> list[str]:
        return [reasons.cell(mega(row[name]), why or "no files") for row, why in zip(rows, known, strict=True)]

    kept = [reasons.cell(mega(row["kept_bytes"]), row["kept_reason"]) for row in rows]
    columns = {
        "copies\nMB on disk": cells("content_redundant_disk_bytes"),
        "written once\nMB": cells("once_disk_bytes"),
        "fullest rank\nMB now": cells("fullest_rank_bytes"),
        "if all share\nMB a rank": cells("sharded_rank_bytes"),
        "generations\nkept": [reasons.cell(number(row["generations_kept"]), row["kept_reason"]) for row in rows],
        "at most": ["all" if row["generations_most"] is None else str(row["generations_most"]) for row in rows],
        "MB kept\nat the end": kept,
    }
    return View(title="", columns=_names(rows) | columns, left=LEFT, below=reasons.lines())


def _kinds(rows: Sequence[Row]) -> View:
    reasons = Reasons()
    headings = {
        "MB\nlogical": "logical_bytes",
        "MB\non disk": "disk_bytes",
        "same name\nMB": "replica_redundant_bytes",
        "same content\nMB": "content_redundant_bytes",
        "constant\nMB": "constant_bytes",
    }
    columns = {"kind": [row["kind"] for row in rows]}
    for heading, name in headings.items():
        columns[heading] = [reasons.cell(mega(row[name]), "no digests or sizes") for row in rows]
    legend = f"kinds of state of which at least {SHOWN:.0%} is there twice, by name or by content"
    return View(title="", columns=_names(rows) | columns, left=LEFT, below=[legend, *reasons.lines()])


def _twice(row: Row) -> bool:
    copies = max(row["replica_redundant_bytes"] or 0, row["content_redundant_bytes"] or 0)
    return bool(row["logical_bytes"] and copies >= SHOWN * row["logical_bytes"] and copies >= FEWEST_BYTES)


def _holders(rows: Sequence[Row]) -> View:
    columns = {
        "kinds": [", ".join(row["kinds"]) + (" (constant)" if row["constant"] else "") for row in rows],
        "ranks": [stretches(row["ranks_holding"]) + (" (each its own)" if _alone(row) else "") for row in rows],
        "nodes": [str(row["nodes"]) for row in rows],
        "pieces": [str(row["tensors"]) for row in rows],
        "MB\none copy": [mega(row["bytes_each"]) or "" for row in rows],
        "MB\ncopies": [mega(row["copies_bytes"]) or "" for row in rows],
    }
    legend = "who holds the same contents, in the last checkpoint of the first run"
    return View(title="", columns=_names(rows) | columns, left=LEFT, below=[legend])


def _alone(row: Row) -> bool:
    return "," not in row["holders"] and len(row["ranks_holding"]) > 1


def stretches(ranks: Sequence[int]) -> str:
    """0-3, 8 for 0, 1, 2, 3, 8."""
    found: list[list[int]] = []
    for rank in ranks:
        if found and found[-1][1] == rank - 1:
            found[-1][1] = rank
        else:
            found.append([rank, rank])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in found)
