"""Asks every question of the same tables, so that one that fails costs no other; digests their findings.

Which questions there are, `analysis.cli` finds; how an answer is shown, others decide.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from analysis.cli import Answer, Question, parser, questions
from analysis.finding import LEVELS, Finding, Level, counted, worst
from analysis.report_impact import worst_of
from analysis.tables import Tables
from analysis.view import Drawing, View
from hpcckpt.errors import HpcCkptError

T = TypeVar("T")
MOST_CLAIMS = 3
"""Claims of one code that stand one by one where answers are brief."""
_VERDICTS = (("supports", "holds"), ("contradicts", "does not hold"), ("not_measured", "not measured"))


@dataclass(kw_only=True)
class Asked:
    """One question with what came of it; `failures` say in words what did not come."""

    name: str
    asks: str
    short: str = ""
    """The answer in one sentence with its numbers; empty where it has none."""
    answer: Answer | None = None
    views: list[View] = field(default_factory=list)
    drawings: list[Drawing] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    @property
    def findings(self) -> list[Finding]:
        """Those of the answer; none where there is no answer."""
        return self.answer.findings if self.answer else []

    def attempt(self, what: str, make: Callable[[], T], otherwise: T) -> T:
        """What `make` returns; where it raises, `otherwise` and a failure of `what`."""
        try:
            return make()
        except (Exception, SystemExit) as error:  # whatever a question does, the others are still to be asked
            self.failures.append(f"{what} failed: {_reason(error)}")
            return otherwise


class Digest(msgspec.Struct, frozen=True, kw_only=True):
    """All findings of one code: one line of an answer in words."""

    code: str
    claim: str
    level: Level
    findings: list[Finding]

    @property
    def worst(self) -> Finding:
        """The finding that says most."""
        return worst_of(self.findings)

    @property
    def measured(self) -> bool:
        """Whether any group supports or contradicts the claim."""
        return any(finding.verdict != "not_measured" for finding in self.findings)

    @property
    def verdicts(self) -> str:
        """`holds`, or `holds in 2, not measured in 1 of 3`."""
        found = self._counts()
        if len(found) == 1:
            words, count = found[0]
            return words if count == 1 else f"{words} in all {count}"
        return f"{self.counts} of {len(self.findings)}"

    @property
    def counts(self) -> str:
        """`holds in 2, not measured in 1`."""
        return ", ".join(f"{words} in {count}" for words, count in self._counts())

    def _counts(self) -> list[tuple[str, int]]:
        counts = [(words, sum(f.verdict == verdict for f in self.findings)) for verdict, words in _VERDICTS]
        return [(words, count) for words, count in counts if count]


def ask_all(tables: Tables, pool_commits: bool, draw: bool = True) -> list[Asked]:
    """Every question of the report with its answer; with `draw` also its tables and figures."""
    kinds = [kind for kind in questions().values() if kind.in_report]
    return [ask(kind, tables, pool_commits, draw) for kind in kinds]


def ask(kind: type[Question], tables: Tables, pool_commits: bool, draw: bool = True) -> Asked:
    """One question's answer. Never raises for what the question does."""
    asked = Asked(name=kind.name, asks=kind.asks)
    question = asked.attempt("the question", lambda: _by_default(kind), None)
    if question is None:
        return asked
    answer = asked.attempt("the answer", lambda: question.answer(tables, pool_commits), None)
    asked.answer = answer
    if answer is not None:
        asked.short = asked.attempt("the answer in short", lambda: question.in_short(answer), "")
    if answer is not None and draw:
        asked.views = asked.attempt("the tables", lambda: _checked(question.views(answer)), [])
        asked.drawings = asked.attempt("the figures", lambda: question.drawings(answer), [])
    return asked


def _by_default(kind: type[Question]) -> Question:
    """The question with its own options as they are where nobody gives any."""
    question = kind()
    question.take(parser(kind).parse_args([]))
    return question


def digests(findings: Iterable[Finding]) -> list[Digest]:
    """One digest per code and claim, in the order of the codes."""
    by_claim: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        by_claim.setdefault((finding.code, finding.claim), []).append(finding)
    return [
        Digest(code=code, claim=claim, level=worst(mine), findings=mine)
        for (code, claim), mine in sorted(by_claim.items())
    ]


def brief(found: list[Digest]) -> list[Digest]:
    """The digests, but one for all claims of a code that makes many: one claim per pair, say."""
    by_code: dict[str, list[Digest]] = {}
    for digest in found:
        by_code.setdefault(digest.code, []).append(digest)
    return [each for mine in by_code.values() for each in (mine if len(mine) <= MOST_CLAIMS else [_merged(mine)])]


def _merged(mine: list[Digest]) -> Digest:
    gravest = max(mine, key=lambda digest: (LEVELS.index(digest.level), digest.measured))
    findings = [finding for digest in mine for finding in digest.findings]
    claim = f"{len(mine)} claims, as “{gravest.claim}”"
    return Digest(code=gravest.code, claim=claim, level=gravest.level, findings=findings)


def by_level(findings: Iterable[Finding]) -> dict[Level, list[Finding]]:
    """Findings under their level, critical first; levels without any are left out."""
    taken = list(findings)
    found = {level: [f for f in taken if f.level == level] for level in reversed(LEVELS)}
    return {level: mine for level, mine in found.items() if mine}


def level_counts(findings: Iterable[Finding]) -> str:
    """`2 critical, 1 warning, 7 not measured` of the findings; empty for none."""
    taken = list(findings)
    unmeasured = sum(finding.verdict == "not_measured" for finding in taken)
    counts = {level: len(mine) for level, mine in by_level(taken).items() if level in ("critical", "warning")}
    parts = [f"{count} {level}" for level, count in counts.items()]
    parts += [f"{unmeasured} not measured"] if unmeasured else []
    return f"{counted(len(taken), 'finding')}: {', '.join(parts) or 'none of concern'}" if taken else ""


def _checked(views: list[View]) -> list[View]:
    """The views; a table whose columns differ in length would lose rows without a word."""
    for view in views:
        lengths = {heading: len(cells) for heading, cells in view.columns.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"table {view.title!r}: columns of different lengths {lengths}")
    return views


def _reason(error: BaseException) -> str:
    """The error in one sentence; one that nobody foresaw is named with its place."""
    if isinstance(error, HpcCkptError):
        return str(error)
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({place.filename.rpartition('/')[2]}:{place.lineno})"
