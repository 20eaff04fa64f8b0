"""The files beside the report: JSON of all answers, CSV per question, the tables as Parquet, the figures.

Their layout is decided here and described in `python -m analysis report --help`. No HTML here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from analysis.cli import SCHEMA_VERSION, write_csv
from analysis.figures import save_svg
from analysis.report_ask import Asked
from analysis.report_svg import inline
from analysis.tables import Tables
from analysis.view import Drawing
from hpcckpt.rundir import write_bytes

TALL = 1.3
"""Height over width from which a figure may be cut at the end of a printed page, not shrunk to it."""

SHOWN_FIGURES = 12
"""Figures of one question in the page; its own command draws all."""


@dataclass(frozen=True)
class Places:
    """Where everything goes, all from the name of the page."""

    page: Path

    @property
    def json(self) -> Path:
        """All answers."""
        return self.page.with_suffix(".json")

    @property
    def data(self) -> Path:
        """The folder beside the page."""
        return self.page.with_name(f"{self.page.stem}-data")

    @property
    def tables(self) -> Path:
        """What was collected, as Parquet."""
        return self.data / "tables"

    @property
    def figures(self) -> Path:
        """One SVG per drawing."""
        return self.data / "figures"

    def link(self, path: Path) -> str:
        """A path beside the page as an address in it."""
        return quote(path.relative_to(self.page.parent).as_posix())


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """A drawing in the page."""

    anchor: str
    caption: str
    svg: str
    """The element, ready to stand in the page."""
    tall: bool
    """More than a printed page has room for."""
    link: str
    file: str


def write_data(places: Places, tables: Tables, asked: list[Asked]) -> dict[str, list[str]]:
    """CSV and Parquet. Returns the addresses of each question's CSV files."""
    places.data.mkdir(parents=True, exist_ok=True)
    tables.write_parquet(places.tables)
    return {each.name: _csv(places, each) for each in asked}


def write_json(places: Places, tables: Tables, asked: list[Asked], code: int) -> None:
    """All answers, and whatever failed up to now."""
    write_bytes(places.json, msgspec.json.format(msgspec.json.encode(document(tables, asked, code)), indent=1))


def document(tables: Tables, asked: list[Asked], code: int) -> dict[str, Any]:
    """What the JSON file says: the runs, every answer, and what failed."""
    return {
        "schema_version": SCHEMA_VERSION,
        "exit_code": code,
        "runs": tables.runs["run"].to_list(),
        "answers": [each.answer for each in asked if each.answer],
        "failures": {each.name: each.failures for each in asked if each.failures},
    }


def _csv(places: Places, asked: Asked) -> list[str]:
    answer = asked.answer
    if answer is None:
        return []
    none: list[Path] = []
    paths = asked.attempt("the CSV files", lambda: write_csv(answer, places.data), none)
    return [places.link(path) for path in paths if path.stat().st_size > 1]  # no rows: an empty line


def figures(places: Places, asked: Asked) -> list[Figure]:
    """The question's first drawings, each written as a file and made fit for the page."""
    found = []
    for number, drawing in enumerate(asked.drawings[:SHOWN_FIGURES], start=1):
        path = places.figures / f"{asked.name}-{drawing.name}.svg"
        none: Figure | None = None
        make = partial(_figure, places, drawing, path, f"figure-{asked.name}-{number}")
        figure = asked.attempt(f"figure {drawing.name}", make, none)
        found += [figure] if figure else []
    return found


def _figure(places: Places, drawing: Drawing, path: Path, anchor: str) -> Figure:
    save_svg(drawing.figure, path)
    width, height = drawing.figure.get_size_inches()
    return Figure(
        anchor=anchor,
        caption=drawing.caption,
        svg=inline(path.read_text(encoding="utf-8"), anchor, drawing.caption),
        tall=bool(height > TALL * width),
        link=places.link(path),
        file=path.name,
    )
