"""What every question shares: its command line, its exit codes, its files, and how it is found.

A question is a file of this package that defines one class derived from `Question`; nothing else
lists it. No question's own arithmetic or words here.
"""

from __future__ import annotations

import argparse
import importlib
import io
import os
import pkgutil
import sys
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TextIO

import msgspec
import polars as pl

import analysis
from analysis import laws
from analysis.collect import collect
from analysis.finding import Finding
from analysis.in_short import Measure, in_short
from analysis.locate import newest_campaign
from analysis.printing import print_view
from analysis.tables import Tables
from analysis.view import Drawing, View
from hpcckpt.errors import ExitCode, HpcCkptError, SpecError

if TYPE_CHECKING:
    from rich.console import Console

SCHEMA_VERSION = 1
"""Of what `--json` prints."""
WIDTH = 110
"""Columns of what is printed where there is no terminal."""
MANY = 20
"""Findings from which the terminal shows the good ones by their codes alone; --json and the report have all words."""
RUNS_VARIABLE = "HPCCKPT_RUNS"
RUNS = f"campaigns, runs or a root of campaigns; default: newest campaign in ./runs or ${RUNS_VARIABLE}"
EXIT_CODES = (
    "Exit codes: 0 ok, 1 unexpected, 2 bad input, 4 runs missing or failed, 6 measurement not trustworthy, "
    "130 interrupted."
)
_DECISIVE = (laws.COVERAGE, laws.REPLICAS, laws.READBACK)
"""Broken, these make numbers untrustworthy; unattributed time only flags its checkpoint."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a question found: plain rows and findings, and what could not be counted."""

    question: str
    rows: list[dict[str, Any]]
    findings: list[Finding]
    left_out: list[dict[str, Any]]
    notes: list[str] = []
    """Paragraphs in words."""
    schema_version: int = SCHEMA_VERSION


class Question(ABC):
    """One question of the analysis."""

    name: ClassVar[str]
    asks: ClassVar[str]
    """The question, in one sentence."""
    in_report: ClassVar[bool] = True
    """Whether it can be asked of any one set of runs, as `python -m analysis` and the report do."""
    takes: ClassVar[str] = RUNS
    """What RUNS on its command line are."""
    measures: ClassVar[tuple[Measure, ...]] = ()
    """Columns of its rows that answer it in one sentence."""

    @abstractmethod
    def answer(self, tables: Tables, pool_commits: bool) -> Answer:
        """Rows and findings from the tables; pure."""

    @abstractmethod
    def views(self, answer: Answer) -> list[View]:
        """The rows as tables for a person, on the terminal and in the report."""

    def in_short(self, answer: Answer) -> str:
        """The answer in one sentence; empty where the rows give none."""
        return in_short(self.measures, answer.rows)

    def drawings(self, answer: Answer) -> list[Drawing]:
        """The figures of the answer, the main one first; none where there is nothing to draw."""
        return []

    @classmethod  # noqa: B027  (most questions have no options of their own)
    def add_options(cls, found: argparse.ArgumentParser) -> None:
        """Add the options that only this question has."""

    def take(self, options: argparse.Namespace) -> None:  # noqa: B027
        """Keep the values of its own options. Raises SpecError for what cannot be meant."""

    def from_elsewhere(self) -> tuple[Answer, ExitCode] | None:
        """The answer where its own options name something else than run directories."""
        return None


def questions() -> dict[str, type[Question]]:
    """name -> class of every question in this package, found by looking into its files."""
    found: dict[str, type[Question]] = {}
    for module in pkgutil.iter_modules(analysis.__path__):
        if module.name.startswith("_") or module.ispkg:
            continue
        for value in vars(importlib.import_module(f"analysis.{module.name}")).values():
            if _is_question(value) and value.__module__ == f"analysis.{module.name}":
                found[value.name] = value
    return dict(sorted(found.items()))


def _is_question(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, Question) and value is not Question


def parser(question: Question | type[Question]) -> argparse.ArgumentParser:
    """The command line that all questions share."""
    prog = f"python -m analysis.{question.name}"
    found = argparse.ArgumentParser(prog=prog, description=question.asks, epilog=EXIT_CODES)
    found.add_argument("runs", nargs="*", type=Path, metavar="RUNS", help=question.takes)
    found.add_argument("--json", action="store_true", help="print rows and findings as JSON, nothing else")
    found.add_argument("--csv", type=Path, metavar="DIR", help="write rows, findings and what was left out as CSV")
    found.add_argument("--figure", type=Path, metavar="FILE.svg", help="draw the figures: FILE.svg, FILE-NAME.svg")
    tables = "write the collected tables as Parquet" if question.in_report else argparse.SUPPRESS  # of one set of runs
    found.add_argument("--parquet", type=Path, metavar="DIR", help=tables)
    found.add_argument("--pool-commits", action="store_true", help="let runs of different code stand in one row")
    question.add_options(found)
    return found


def main(question: Question, arguments: Sequence[str] | None = None, out: TextIO | None = None) -> int:
    """Run a question's command line; returns its exit code. Errors are one sentence on stderr."""
    try:
        return int(_main(question, parser(question).parse_args(arguments), out or sys.stdout))
    except HpcCkptError as error:
        print(f"analysis.{question.name}: {error}", file=sys.stderr)
        return int(error.exit_code)
    except BrokenPipeError:
        _give_up_stdout()  # the reader of a pipe has seen enough
        return int(ExitCode.OK)
    except OSError as error:
        where = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        print(f"analysis.{question.name}: {where}", file=sys.stderr)
        return int(ExitCode.BAD_SPEC)
    except KeyboardInterrupt:
        return int(ExitCode.INTERRUPTED)


def _give_up_stdout() -> None:
    """Send what is still pending nowhere: Python would complain once more when it closes stdout."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print(text: str, out: TextIO) -> None:
    """Write all of it, now, so that a failure can be told. Raises OSError that names the output."""
    try:
        out.write(text)
        out.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        _give_up_stdout()
        raise OSError(error.errno, error.strerror, "standard output") from error


def _main(question: Question, options: argparse.Namespace, out: TextIO) -> ExitCode:
    if options.figure and options.figure.suffix != ".svg":
        raise SpecError(f"--figure {options.figure}: figures are written as .svg")
    question.take(options)
    answer, code = question.from_elsewhere() or _from_runs(question, options)
    if options.json:
        _print(msgspec.json.format(msgspec.json.encode(answer), indent=2).decode() + "\n", out)
    else:
        _print(_shown(question, answer, out), out)
    if options.csv:
        write_csv(answer, options.csv)
    if options.figure:
        _draw(question, answer, options.figure)
    return code


def _from_runs(question: Question, options: argparse.Namespace) -> tuple[Answer, ExitCode]:
    tables = collect(options.runs or [newest_campaign(Path(os.environ.get(RUNS_VARIABLE, "runs")))])
    if options.parquet:
        tables.write_parquet(options.parquet)
    return question.answer(tables, options.pool_commits), exit_code(tables)


def exit_code(tables: Tables) -> ExitCode:
    """6 where a broken law spoils numbers, else 4 where something was left out or is not there, else 0."""
    broken = tables.laws.filter((pl.col("verdict") == laws.BROKEN) & pl.col("law").is_in(_DECISIVE))
    if broken.height:
        return ExitCode.NOT_TRUSTWORTHY
    nothing = not (tables.runs.height or tables.restarts.height)
    return ExitCode.RUNS_FAILED if tables.left_out.height or nothing else ExitCode.OK


def console(out: TextIO, terminal: bool = False) -> Console:
    """A console that is never narrower than the tables need, and plain where it is no terminal."""
    from rich.console import Console

    found = Console(file=out, force_terminal=terminal or None, highlight=False, soft_wrap=False)
    found.width = max(found.width, WIDTH) if found.is_terminal else WIDTH
    return found


def _shown(question: Question, answer: Answer, out: TextIO) -> str:
    """The answer as `out` shows it. Rich only makes the text: at a closed pipe it would end the program."""
    text = io.StringIO()
    _show(question, answer, console(text, terminal=out.isatty()))
    return text.getvalue()


def _show(question: Question, answer: Answer, screen: Console) -> None:
    from rich.markup import escape

    for view in question.views(answer):
        print_view(screen, view)
    for note in answer.notes:
        screen.print(escape(note) + "\n")
    for group in dict.fromkeys(finding.group for finding in answer.findings):
        _show_findings(screen, [each for each in answer.findings if each.group == group], len(answer.findings) > MANY)
    if answer.left_out:
        screen.print(f"\nLeft out ({len(answer.left_out)})")
    for left in answer.left_out:
        _hanging(screen, f"  {left['scope']} {left['run']}: ", f"{left['code']}: {left['reason']}")
        screen.print(f"      {escape(left['file'])}", soft_wrap=True)


def _show_findings(screen: Console, findings: list[Finding], brief: bool) -> None:
    """One group's; where there are many, those that ask for nothing stand in one line by their codes."""
    from rich.markup import escape

    fine = [finding for finding in findings if brief and finding.level == "ok"]
    screen.print(f"Findings: {escape(findings[0].group)}")
    for finding in (each for each in findings if each not in fine):
        _hanging(screen, f"  {finding.code} {finding.level}: ", finding.sentence)
        if finding.recommendation and finding.level in ("warning", "critical"):
            _hanging(screen, "      -> ", finding.recommendation)
        if finding.for_developers and finding.level in ("warning", "critical"):
            _hanging(screen, "      developers: ", finding.for_developers)
    if fine:
        screen.print(f"  ok: {', '.join(dict.fromkeys(finding.code for finding in fine))}")


def _hanging(screen: Console, head: str, text: str) -> None:
    """A paragraph whose later lines are set in; a path is never broken."""
    lines = textwrap.wrap(head + text, screen.width, subsequent_indent="      ", break_long_words=False)
    screen.print("\n".join(lines), markup=False, soft_wrap=True)


def write_csv(answer: Answer, directory: Path) -> list[Path]:
    """Rows, findings and what was left out, one file each below `directory`; lists joined by `; `."""
    directory.mkdir(parents=True, exist_ok=True)
    parts: dict[str, list[dict[str, Any]]] = {
        answer.question: answer.rows,
        f"{answer.question}-findings": [msgspec.to_builtins(finding) for finding in answer.findings],
        f"{answer.question}-left-out": answer.left_out,
    }
    paths = []
    for name, rows in parts.items():
        flat = [{key: "; ".join(map(str, v)) if isinstance(v, list) else v for key, v in row.items()} for row in rows]
        paths.append(directory / f"{name}.csv")
        pl.DataFrame(flat, infer_schema_length=None).write_csv(paths[-1])
    return paths


def _draw(question: Question, answer: Answer, path: Path) -> None:
    from analysis.figures import save_svg

    drawings = question.drawings(answer)
    if not drawings:
        print(f"analysis.{question.name}: {path}: nothing to draw, no file written", file=sys.stderr)
    for number, drawing in enumerate(drawings):
        save_svg(drawing.figure, path if number == 0 else path.with_stem(f"{path.stem}-{drawing.name}"))
