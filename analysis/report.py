"""`python -m analysis report`: every question asked of the same runs, in one page and in files beside it.

The order of things, the command line and the exit code; each part of the page is made elsewhere.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from analysis import report_files, report_page
from analysis.cli import RUNS_VARIABLE, exit_code
from analysis.collect import collect
from analysis.finding import counted
from analysis.locate import newest_campaign
from analysis.report_ask import Asked, ask_all, level_counts
from analysis.report_files import Places
from analysis.tables import Tables
from hpcckpt.errors import ExitCode, SpecError
from hpcckpt.rundir import write_bytes

_FILES = """\
FILE.html is one page that needs nothing else: figures and all are in it, and it loads nothing from anywhere.
Beside it, from the same answers:
  FILE.json                   every answer: rows, findings, what was left out; carries schema_version
  FILE-data/QUESTION.csv      rows of a question; QUESTION-findings.csv and QUESTION-left-out.csv
  FILE-data/tables/*.parquet  what was collected from the runs, before any question
  FILE-data/figures/*.svg     the figures one by one
  FILE-data/table-*.csv       tables that are too long for the page, whole

exit codes: 0 ok, 1 a question failed (the page says which; all else is in it), 2 bad input,
4 runs missing or failed, 6 measurement not trustworthy"""


@dataclass(frozen=True)
class Report:
    """What was written, and what came of the questions."""

    places: Places
    tables: Tables
    asked: list[Asked]
    code: ExitCode


def parser() -> argparse.ArgumentParser:
    """The command line of the report."""
    found = argparse.ArgumentParser(
        prog="python -m analysis report",
        description="Write the answers to all questions as one HTML page, with their data beside it.",
        epilog=_FILES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    where = f"campaigns, runs or a root of campaigns; default: newest campaign in ./runs or ${RUNS_VARIABLE}"
    found.add_argument("runs", nargs="*", type=Path, metavar="RUNS", help=where)
    page = "the page to write (default: report.html)"
    found.add_argument("--out", type=Path, default=Path("report.html"), metavar="FILE.html", help=page)
    found.add_argument("--pool-commits", action="store_true", help="let runs of different code stand in one row")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the report that the command line asks for; returns its exit code. Raises HpcCkptError, OSError."""
    options = parser().parse_args(arguments)
    if options.out.suffix != ".html":
        raise SpecError(f"--out {options.out}: the report is written as .html")
    report = write(collect(default_runs(options.runs)), options.out, options.pool_commits)
    print(_closing(report))
    for each in report.asked:
        for failure in each.failures:
            print(f"analysis report: {each.name}: {failure}", file=sys.stderr)
    return int(report.code)


def default_runs(named: Sequence[Path]) -> list[Path]:
    """The runs that were named, else the newest campaign."""
    return list(named) or [newest_campaign(Path(os.environ.get(RUNS_VARIABLE, "runs")))]


def write(tables: Tables, page: Path, pool_commits: bool = False) -> Report:
    """The page and all files beside it. A question that fails is named in the page."""
    places = Places(page)
    with warnings.catch_warnings():
        # Texts stay texts in the SVG: a character that this machine's font lacks is no loss there.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        asked = ask_all(tables, pool_commits)
        files = report_files.write_data(places, tables, asked)
        html = report_page.render(places, tables, asked, files, pool_commits)
    code = overall(tables, asked)  # drawing and writing may fail too
    report_files.write_json(places, tables, asked, int(code))
    write_bytes(page, html.encode())
    return Report(places, tables, asked, code)


def overall(tables: Tables, asked: Sequence[Asked]) -> ExitCode:
    """1 where a question failed, else what the runs themselves give."""
    return ExitCode.UNEXPECTED if any(each.failures for each in asked) else exit_code(tables)


def _closing(report: Report) -> str:
    places, findings = report.places, [f for each in report.asked for f in each.findings]
    size = places.page.stat().st_size / 1e6
    return (
        f"{places.page}: {counted(len(report.asked), 'question')}, {counted(report.tables.run_count, 'run')},"
        f" {level_counts(findings) or 'no findings'} ({size:.1f} MB)\n{places.json}\n{places.data}/"
    )


if __name__ == "__main__":
    from analysis.__main__ import main as command

    raise SystemExit(command(["report", *sys.argv[1:]]))
