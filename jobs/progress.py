"""What a person sees while runs go on: a live line on a terminal, plain lines in a log.

Also guesses what is left from the durations of runs that are done. Decides nothing.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from statistics import mean
from typing import Any, Protocol, TextIO

from hpcckpt.experiment import Run
from hpcckpt.rundir import State


class Durations:
    """Measured seconds of whole runs, by their size."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[str, str, int], list[float]] = {}

    def add(self, run: Run, state: State) -> None:
        """Count a run that ended; one without both times says nothing."""
        if state.started is not None and state.ended is not None and state.ended > state.started:
            self._seconds.setdefault(_size(run), []).append(state.ended - state.started)

    def of(self, run: Run) -> float | None:
        """Expected seconds of a run: the mean of its own size, else of the nearest one. None before any."""
        if not self._seconds:
            return None
        same = [s for s in self._seconds if s[:2] == _size(run)[:2]] or list(self._seconds)
        return mean(self._seconds[min(same, key=lambda size: abs(size[2] - run.ranks))])

    def left(self, runs: Iterable[Run]) -> float | None:
        """Expected seconds of all `runs`, one after the other. None where nothing was measured yet."""
        guesses = [self.of(run) for run in runs]
        return None if None in guesses else sum(guess for guess in guesses if guess is not None)


def _size(run: Run) -> tuple[str, str, int]:
    return run.point.framework, run.point.model, run.ranks


def duration(seconds: float | None) -> str:
    """Seconds in words: `41 s`, `3 min 05 s`, `2 h 04 min`."""
    if seconds is None:
        return "not known yet"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def describe(run: Run, virtual: bool) -> str:
    """A run in words, without what all runs of a campaign share."""
    p = run.point
    nodes = f"{p.nodes} {'virtual ' if virtual else ''}node{'s' if p.nodes > 1 else ''} x {p.ranks_per_node}"
    durable = "durable" if p.durable else "buffered"
    return f"{p.framework} {p.strategy} {p.format} {p.model}, {nodes}, {durable}, repeat {run.repeat}"


class Report(Protocol):
    """Where a submission says how it goes."""

    def begin(self, number: int, total: int, what: str, left_s: float | None) -> None:
        """A run begins: the `number`-th of `total`."""

    def tick(self) -> None:
        """Time passes."""

    def end(self, what: str, state: State) -> None:
        """The run is over."""

    def say(self, text: str) -> None:
        """A sentence in between."""

    def close(self) -> None:
        """Nothing follows."""


class Plain:
    """One line per event, for logs and pipes."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._began = time.monotonic()

    def begin(self, number: int, total: int, what: str, left_s: float | None) -> None:
        self.say(f"run {number} of {total}: {what} (elapsed {self._elapsed()}, left {duration(left_s)})")

    def tick(self) -> None:
        pass

    def end(self, what: str, state: State) -> None:
        self.say(f"  {outcome(state)}")

    def say(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def close(self) -> None:
        pass

    def _elapsed(self) -> str:
        return duration(time.monotonic() - self._began)


class Live:
    """A bar with the current run, its time and what is left; what ended scrolls by above it."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
        from rich.table import Column

        rest = Column(ratio=1, no_wrap=True, overflow="ellipsis")  # what is narrow keeps its width
        self._bar: Any = Progress(
            BarColumn(bar_width=12),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left {task.fields[left]}", table_column=Column(no_wrap=True)),
            TextColumn("{task.description}", table_column=rest),
            expand=True,
        )
        self._task = self._bar.add_task("", total=None, left=duration(None))
        self._left: float | None = None
        self._began = time.monotonic()
        self._bar.start()

    def begin(self, number: int, total: int, what: str, left_s: float | None) -> None:
        self._left, self._began = left_s, time.monotonic()
        self._bar.update(
            self._task, total=total, completed=number - 1, description=what, left=duration(left_s)
        )

    def tick(self) -> None:
        if self._left is not None:
            left = max(0.0, self._left - (time.monotonic() - self._began))
            self._bar.update(self._task, left=duration(left))

    def end(self, what: str, state: State) -> None:
        self._bar.advance(self._task)
        self.say(f"{what}: {outcome(state)}")

    def say(self, text: str) -> None:
        self._bar.console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        self._bar.stop()


def outcome(state: State) -> str:
    """How a run ended, in words."""
    took = f" in {duration(state.ended - state.started)}" if state.ended and state.started else ""
    return f"{state.state}{took}" + (f": {state.reason}" if state.reason else "")


def report() -> Report:
    """The report that fits standard output."""
    return Live() if sys.stdout.isatty() else Plain()
