"""`python -m analysis`: all questions answered in brief; `report` and `collect` are commands of their own.

Dispatch, the brief answer and its exit code. What a question says is its own business.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from analysis.cli import EXIT_CODES, questions
from analysis.collect import collect
from analysis.finding import LEVELS, counted
from analysis.report_ask import Asked, Digest, ask_all, brief, digests
from hpcckpt.errors import ExitCode, HpcCkptError

WIDTH = 110
MOST_LINES = 2
"""Of one claim; the question's own command says all."""
_COMMANDS: dict[str, tuple[str, str]] = {
    "report": ("analysis.report", "one HTML page with all answers, figures and tables, and the data beside it"),
    "collect": ("analysis.collect_command", "the tables that all questions read, as files"),
}
"""Name -> module, whose `main(arguments)` returns an exit code, and what it makes."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Answer all questions, or run a command. Errors are one sentence on stderr."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if given and given[0] in _COMMANDS:
            return _command(given[0])(given[1:])
        return _brief(given)
    except HpcCkptError as error:
        print(f"analysis: {error}", file=sys.stderr)
        return int(error.exit_code)
    except BrokenPipeError:
        from analysis.cli import _give_up_stdout

        _give_up_stdout()  # the reader of a pipe has seen enough
        return int(ExitCode.OK)
    except OSError as error:
        print(f"analysis: {error.filename or 'output'}: {error.strerror or error}", file=sys.stderr)
        return int(ExitCode.BAD_SPEC)
    except KeyboardInterrupt:
        return int(ExitCode.INTERRUPTED)


def _command(name: str) -> Callable[[Sequence[str]], int]:
    # Imported when asked for: each command has heavy imports that the others need not pay.
    found: Callable[[Sequence[str]], int] = importlib.import_module(_COMMANDS[name][0]).main
    return found


def parser() -> argparse.ArgumentParser:
    """The command line without a command; its help lists the questions and commands."""
    listed = [f"  python -m analysis.{name}\n      {kind.asks}" for name, kind in questions().items()]
    commands = [f"  python -m analysis {name:<8} {words}" for name, (_, words) in _COMMANDS.items()]
    head = ["questions, each with a command of its own:"]
    found = argparse.ArgumentParser(
        prog="python -m analysis",
        description="Answer all questions about the runs, in brief.",
        epilog="\n".join([*head, *listed, "", "commands:", *commands, "", *textwrap.wrap(EXIT_CODES, 100)]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    where = "campaigns, runs or a root of campaigns (default: newest campaign)"
    found.add_argument("runs", nargs="*", type=Path, metavar="RUNS", help=where)
    found.add_argument("--pool-commits", action="store_true", help="let runs of different code stand in one row")
    return found


def _brief(arguments: Sequence[str]) -> int:
    from analysis.report import default_runs, overall

    options = parser().parse_args(arguments)
    paths = default_runs(options.runs)
    tables = collect(paths)
    asked = ask_all(tables, options.pool_commits, draw=False)
    named = " ".join(map(str, options.runs))
    for each in asked:
        print("\n".join(_question(each, named)) + "\n")
    print(f"{counted(tables.run_count, 'run')} of {', '.join(map(str, paths))}", end="")
    print(f"; left out: {tables.left_out.height}" if tables.left_out.height else "", flush=True)
    for each in asked:
        for failure in each.failures:
            print(f"analysis: {each.name}: {failure}", file=sys.stderr)
    return int(overall(tables, asked))


def _question(asked: Asked, named: str) -> list[str]:
    """The question, a line per claim with its verdict, and the command that says more."""
    lines = [f"{asked.name}: {asked.asks}"]
    lines += [f"  failed: {failure}" for failure in asked.failures]
    shown, rest = _of_concern(brief(digests(asked.findings)))
    for text in (asked.short, *map(_verdict, shown), *rest):
        indents: dict[str, Any] = {"initial_indent": "  ", "subsequent_indent": "      "}
        lines += textwrap.wrap(text, WIDTH, max_lines=MOST_LINES, placeholder=" …", **indents)
    if not asked.findings and asked.answer:
        lines.append(f"  no findings; {counted(len(asked.answer.rows), 'row')}")
    return [*lines, f"  python -m analysis.{asked.name} {named}".rstrip()]


def _of_concern(found: list[Digest]) -> tuple[list[Digest], list[str]]:
    """Claims of a line each, the gravest first; where there are many groups, what asks for nothing by its codes."""
    ordered = sorted(found, key=lambda each: -LEVELS.index(each.level))
    quiet = [each for each in ordered if len(each.findings) > 1 and (each.level in ("ok", "info") or not each.measured)]
    parts: dict[str, list[str]] = {}
    for each in quiet:
        parts.setdefault(each.level if each.measured else "not measured", []).append(each.code)
    rest = "; ".join(f"{level}: {', '.join(dict.fromkeys(codes))}" for level, codes in parts.items())
    return [each for each in ordered if each not in quiet], [rest] if rest else []


def _verdict(digest: Digest) -> str:
    """One claim in one line, with the words of the group that says most."""
    level, worst = digest.level if digest.measured else "not measured", digest.worst
    most = "; most" if len(digest.findings) > 1 else ""
    return f"{digest.code} {level}: {digest.claim}: {digest.verdicts}{most}: {worst.reason or worst.sentence}"


if __name__ == "__main__":
    raise SystemExit(main())
