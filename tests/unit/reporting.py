"""What the tests of the report share: planted runs, questions that misbehave, and a page taken apart."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from analysis.cli import Answer, Question
from analysis.collect import collect
from analysis.finding import Finding
from analysis.tables import Tables
from analysis.view import Drawing, View
from tests.unit.planted import Plan, plant_all, read_trace

HOSTILE = """<script>alert("1")</script><img src=x onerror=alert(2)>' & "quoted" ünïcödé 漢字 {{ 7*7 }}"""
VOID = {"meta", "link", "br", "img", "input", "hr"}


def planted(root: Path, *plans: Plan) -> Tables:
    """Tables of the planned runs; by default three nodes' worth, each with two repeats."""
    nodes = [Plan(nodes=n, repeat=i, write_s=0.05 + 0.001 * i) for n in (1, 2, 4) for i in (1, 2)]
    return collect([plant_all(root, plans or nodes)], read_trace)


def plain_finding(**changes: Any) -> Finding:
    """A finding of which only what matters needs to be said."""
    fields: dict[str, Any] = {
        "code": "XX01",
        "claim": "it is so",
        "verdict": "supports",
        "level": "warning",
        "group": "group",
        "sentence": "it is so, by far",
        "recommendation": "change it",
        "evidence": ["a/b"],
    }
    return Finding(**{**fields, **changes})


class Fake(Question):
    """A question whose answer a test decides."""

    name = "fake"
    asks = "Does the report hold?"
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    shown: tuple[View, ...] = ()
    drawn: tuple[Drawing, ...] = ()
    raises = ""
    """Name of the method that raises."""

    def _raise(self, where: str) -> None:
        if self.raises == where:
            raise RuntimeError(f"planted in {where}")

    def answer(self, tables: Tables, pool_commits: bool = False) -> Answer:
        self._raise("answer")
        return Answer(
            question=self.name,
            rows=[{"n": 1, "words": ["a", "b"]}],
            findings=list(self.findings),
            left_out=list(tables.left_out.iter_rows(named=True)),
            notes=list(self.notes),
        )

    def views(self, answer: Answer) -> list[View]:
        self._raise("views")
        return list(self.shown)

    def drawings(self, answer: Answer) -> list[Drawing]:
        self._raise("drawings")
        return list(self.drawn)


def fake(**fields: Any) -> type[Fake]:
    """A class of its own, so that tests do not meet."""
    return type("Faked", (Fake,), fields)


def drawing(name: str = "one", title: str = "A title") -> Drawing:
    """A small figure with a hatch, a clip and a text."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4, 3))
    place = figure.subplots()
    place.bar([0, 1], [1, 2], hatch="///")
    place.set_title(title)
    return Drawing(name=name, caption=title, figure=figure)


class Page(HTMLParser):
    """The page's ids, texts, scripts and addresses."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.ids: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.unbalanced: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.append((tag, found))
        self.ids += [found["id"] or ""] if "id" in found else []
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID and self.open.pop() != tag:
            self.unbalanced.append(tag)

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("script", "style"):
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def two_campaigns(root: Path) -> Tables:
    """Two campaigns in one set, one of them with a run that was not begun."""
    other = Plan(campaign="other", nodes=4)
    first = plant_all(root, [Plan(nodes=n) for n in (1, 2)])
    second = plant_all(root, [other, replace(other, repeat=2), replace(other, repeat=3, state="queued")])
    return collect([first, second], read_trace)
