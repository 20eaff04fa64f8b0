"""The page: what the template is given, and the one place where HTML comes from.

Everything in it is escaped by jinja2, but for the figures (made by matplotlib, which escapes its texts)
and our own style sheet and script. The policy in its head lets it load nothing and run no other script.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any

import msgspec

from analysis import report_costs, report_runs, report_trust
from analysis import report_environment as environment
from analysis.finding import LEVELS, Finding, Level
from analysis.report_ask import Asked, Digest, brief, digests
from analysis.report_files import SHOWN_FIGURES, Figure, Places, figures
from analysis.report_impact import Stakes, worst_per_code
from analysis.report_tables import FOLDED_LINES, SHOWN_ROWS, Block, blocks, tables
from analysis.tables import Tables
from analysis.view import View

TEMPLATES = Path(__file__).resolve().parent.parent / "templates" / "report"
HEADLINES = 10
"""Codes of concern that stand at the head of the page."""
CONCERN = ("critical", "warning")
SHOWN_NOTES = 4
"""Paragraphs of an answer before the rest is folded away."""
OPEN_FIGURES = 4
"""Figures of a question before the rest is folded away."""
SHOWN_BLOCKS = 2
"""Titled tables of a question that stand open; the others are folded under their titles."""
SHOWN_FINDINGS = 100
"""Findings of one claim and level in the page; all are in the files beside it."""
SYMBOLS: dict[str, str] = {"critical": "✖", "warning": "▲", "info": "○", "ok": "✓"}
LEVEL_WORDS = {
    "critical": "numbers cannot be believed, or training is lost",
    "warning": "costs time or space, or may mislead",
    "info": "to be known; most say why something was not measured",
    "ok": "checked, and as it should be",
}
_CONSTANTS: dict[str, Any] = {
    "shown_headlines": HEADLINES,
    "shown_notes": SHOWN_NOTES,
    "shown_blocks": SHOWN_BLOCKS,
    "shown_findings": SHOWN_FINDINGS,
    "shown_figures": SHOWN_FIGURES,
    "open_figures": OPEN_FIGURES,
    "shown_rows": SHOWN_ROWS,
    "folded_lines": FOLDED_LINES,
    "symbols": SYMBOLS,
    "level_words": LEVEL_WORDS,
}


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """One question in the page."""

    name: str
    asks: str
    short: str
    digests: list[Digest]
    notes: list[str]
    blocks: list[Block]
    figures: list[Figure]
    drawings: int
    """Figures that the question has; more than stand here, where there are many."""
    files: list[str]
    failures: list[str]


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """The findings of one claim and level; advice that all of them share stands once, at their head."""

    question: str
    digest: Digest
    advice: str | None
    for_developers: str | None

    @property
    def size(self) -> int:
        """How many findings."""
        return len(self.digest.findings)


class Headline(msgspec.Struct, frozen=True, kw_only=True):
    """A code of concern: its worst finding stands for all of its groups."""

    finding: Finding
    groups: int


def render(
    places: Places, found: Tables, asked: list[Asked], files: dict[str, list[str]], pool_commits: bool = False
) -> str:
    """The whole page as text."""
    import jinja2

    loader = jinja2.FileSystemLoader(TEMPLATES)
    engine = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    engine.filters["bracket"] = bracket
    script, style = ((TEMPLATES / name).read_text(encoding="utf-8") for name in ("script.js.j2", "style.css.j2"))
    return engine.get_template("page.html.j2").render(
        script=script, style=style, policy=policy(script), **_content(places, found, asked, files, pool_commits)
    )


def policy(script: str) -> str:
    """Nothing from elsewhere, and this script alone: a name that slipped through unescaped would not run."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"


def _content(
    places: Places, found: Tables, asked: list[Asked], files: dict[str, list[str]], pool_commits: bool
) -> dict[str, Any]:
    link = f"{places.link(places.data)}/"
    machines = environment.environments(found)
    verdicts = report_trust.rows(found)
    prices = report_costs.costs(found, pool_commits)
    sections = [_section(places, each, files.get(each.name, []), link) for each in asked]
    trust = [report_trust.tally(verdicts), report_trust.matrix(found, verdicts), report_trust.details(verdicts)]
    gaps = [report_trust.left_out(found), report_trust.not_measured(found, asked)]

    def shown(views: list[View], prefix: str) -> list[Block]:
        return blocks(tables([view for view in views if any(view.columns.values())], prefix, places.data, link))

    return {
        "summary": report_runs.summary(found),
        "banners": report_runs.banners(found),
        "facts": report_runs.facts(found, machines),
        "campaigns": shown([report_runs.campaigns(found)], "campaigns"),
        "campaign_names": found.runs["campaign"].unique(maintain_order=True).to_list(),
        "phases": report_runs.phases(found),
        "sections": sections,
        "headlines": headlines(asked, Stakes(found)),
        "cost_lede": report_costs.lede(prices),
        "costs": report_costs.sentences(prices),
        "no_costs": report_costs.NOTHING,
        "cost_table": shown([report_costs.view(prices)], "costs"),
        "levels": _levels(asked),
        "trust": shown(trust, "trust"),
        "gaps": shown(gaps, "gaps"),
        "environment": shown(environment.views(machines), "environment"),
        "json_link": places.link(places.json),
        "tables_link": places.link(places.tables),
        "data_name": places.data.name,
        **_CONSTANTS,
    }


def _section(places: Places, asked: Asked, files: list[str], link: str) -> Section:
    prefix = f"table-{asked.name}"
    none: list[Block] = []
    shown = asked.attempt("the tables", lambda: blocks(tables(asked.views, prefix, places.data, link)), none)
    drawn = figures(places, asked)
    return Section(
        name=asked.name,
        asks=asked.asks,
        short=asked.short,
        digests=brief(digests(asked.findings)),
        notes=asked.answer.notes if asked.answer else [],
        blocks=shown,
        figures=drawn,
        drawings=len(asked.drawings),
        files=files,
        failures=list(asked.failures),
    )


def headlines(asked: list[Asked], stakes: Stakes) -> list[Headline]:
    """Codes with a critical or warning finding, each by its worst; the gravest first, then what is most at stake."""
    by_code: dict[str, list[Finding]] = {}
    for finding in (finding for each in asked for finding in each.findings if finding.level in CONCERN):
        by_code.setdefault(finding.code, []).append(finding)
    found = worst_per_code(by_code, stakes)
    return [
        Headline(finding=each, groups=sum(f.level == each.level for f in by_code[each.code])) for each in found
    ]


def _levels(asked: list[Asked]) -> dict[Level, list[Cluster]]:
    """Every finding under its level and claim."""
    found: dict[Level, list[Cluster]] = {}
    for level in reversed(LEVELS):
        for each in asked:
            mine = [finding for finding in each.findings if finding.level == level]
            found.setdefault(level, []).extend(_cluster(each.name, digest) for digest in digests(mine))
    return {level: clusters for level, clusters in found.items() if clusters}


def _cluster(question: str, digest: Digest) -> Cluster:
    return Cluster(
        question=question,
        digest=digest,
        advice=_shared({finding.recommendation for finding in digest.findings}),
        for_developers=_shared({finding.for_developers for finding in digest.findings}),
    )


def _shared(texts: set[str | None]) -> str | None:
    return next(iter(texts)) if len(texts) == 1 else None


def bracket(finding: Finding) -> str:
    """Its number with bounds and unit; empty where it has none."""
    if finding.value is None:
        return ""
    known = finding.low is not None and finding.high is not None
    bounds = f" [{_number(finding.low)}, {_number(finding.high)}]" if known else ""
    return f"{_number(finding.value)}{bounds} {finding.unit or ''}".rstrip()


def _number(value: float | None) -> str:
    """Four digits; large ones whole, since an exponent is hard to read."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"
