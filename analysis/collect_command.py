"""`python -m analysis collect`: the tables that all questions read, as Parquet files for other programs.

Command line and progress only: what is collected, `analysis.collect` says.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from analysis.cli import EXIT_CODES, RUNS_VARIABLE, exit_code
from analysis.collect import collect
from analysis.finding import counted
from analysis.locate import newest_campaign
from analysis.tables import TABLES, Tables

QUIET_S = 2.0
"""Work that is over before that needs no progress."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Collect and write; returns the exit code. Raises SpecError, RunError and OSError."""
    options = parser().parse_args(arguments)
    paths = options.runs or [newest_campaign(Path(os.environ.get(RUNS_VARIABLE, "runs")))]
    progress = Progress(sys.stderr.isatty())
    found = collect(paths, keep=not options.fresh, progress=progress)
    progress.close()
    written = found.write_parquet(options.out)
    print("\n".join(_said(found, written)))
    return int(exit_code(found))


def parser() -> argparse.ArgumentParser:
    """The command line."""
    does = "Write the tables that all questions read as Parquet files, for other programs."
    found = argparse.ArgumentParser(prog="python -m analysis collect", description=does, epilog=EXIT_CODES)
    where = f"campaigns, runs or a root of campaigns; default: newest campaign in ./runs or ${RUNS_VARIABLE}"
    found.add_argument("runs", nargs="*", type=Path, metavar="RUNS", help=where)
    found.add_argument("--out", type=Path, required=True, metavar="DIR", help="directory of the Parquet files")
    found.add_argument("--fresh", action="store_true", help="read all runs again, whatever is kept beside them")
    return found


class Progress:
    """Says on stderr which run is being read, once it takes long: in place on a terminal, else now and then."""

    def __init__(self, terminal: bool) -> None:
        self.terminal = terminal
        self.said = time.monotonic() + QUIET_S - self._pause
        self.shown = False

    @property
    def _pause(self) -> float:
        return 0.2 if self.terminal else 10.0

    def __call__(self, done: int, runs: int, path: Path) -> None:
        now = time.monotonic()
        if now - self.said < self._pause:
            return
        self.said, self.shown = now, True
        begin, end = ("\r\033[K", "") if self.terminal else ("", "\n")
        words = f"{done} of {counted(runs, 'run')} collected, next {path.name}"
        print(f"{begin}{words}", end=end, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Leave the terminal's line."""
        if self.shown and self.terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def _said(found: Tables, written: Sequence[Path]) -> list[str]:
    """What lies where, and what was not counted."""
    width = max(map(len, TABLES))
    lines = [f"  {path.stem:<{width}}  {getattr(found, path.stem).height:>9} rows" for path in written]
    lines = [f"{counted(found.run_count, 'run')} collected to {written[0].parent}", *lines]
    if found.left_out.height:
        lines.append(f"left out: {found.left_out.height}")
    for left in found.left_out.iter_rows(named=True):
        lines += [f"  {left['scope']} {left['run']}: {left['code']}: {left['reason']}", f"      {left['file']}"]
    return lines


if __name__ == "__main__":
    from analysis.__main__ import main as command

    raise SystemExit(command(["collect", *sys.argv[1:]]))
