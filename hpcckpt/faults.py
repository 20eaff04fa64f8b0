"""Planted faults: a rank that sleeps, dies, raises, hangs, damages a file or changes its state at a named point.

They exist so that anybody can see the suite find them. Nothing here runs unless the experiment
lists faults, or tests a restart by a kill; the analysis never pools such runs with others.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from hpcckpt.errors import RunError
from hpcckpt.planting import RESTORE, STATE_ACTIONS, Fault

if TYPE_CHECKING:
    from hpcckpt.frameworks.base import Framework


class Faults:
    """The faults of one rank in one leg."""

    def __init__(self, faults: list[Fault], rank: int, leg: str) -> None:
        self._mine = [fault for fault in faults if fault.hits(rank) and fault.leg == leg]
        self._rank = rank
        self.before_kill: Callable[[Fault], None] = lambda fault: None
        """Called with a fault that kills, where there is a last moment."""

    @property
    def state(self) -> list[Fault]:
        """Those of a state that is being restored."""
        return [fault for fault in self._mine if fault.at == RESTORE]

    def at(self, point: str, index: int | None) -> None:
        """Commit the faults planted at `point`; `index` is the generation, or the step where point is `step`."""
        for fault in self._matching(point, index):
            if fault.action == "sleep":
                time.sleep(fault.seconds)
            elif fault.action == "kill":
                self._kill(fault, fault.seconds)
            elif fault.action == "raise":
                raise RunError(f"planted fault at {point} {index}")
            elif fault.action == "hang":
                while True:
                    time.sleep(1)

    def _kill(self, fault: Fault, seconds: float) -> None:
        """Now, or from a thread while the rank goes on with what it does."""
        if seconds:
            timer = threading.Timer(seconds, self._kill, [fault, 0.0])
            timer.daemon = True
            timer.start()
            return
        self.before_kill(fault)
        os.kill(os.getpid(), signal.SIGKILL)

    def alter(self, point: str, index: int, framework: Framework) -> None:
        """Change the live state where that is planted."""
        for fault in self._matching(point, index):
            if fault.action not in STATE_ACTIONS:
                continue
            if fault.action == "reorder":
                framework.reorder()
                continue
            from hpcckpt.restart.damage import damaged

            entries = framework.full_state()
            arrays = {entry.key: entry.data for entry in entries if entry.data is not None}
            changed, _ = damaged(arrays, {}, {entry.key: entry.kind for entry in entries}, fault, self._rank)
            framework.load(changed)

    def damage(self, generation: int, files: list[Path]) -> None:
        """Flip one bit in the middle of each file where `corrupt` is planted at `after_save`."""
        for fault in self._matching("after_save", generation):
            if fault.action == "corrupt":
                for file in files:
                    _flip_middle_bit(_largest(file) if file.is_dir() else file)

    def _matching(self, point: str, index: int | None) -> list[Fault]:
        return [f for f in self._mine if f.at == point and f.generation in (None, index)]


def _largest(directory: Path) -> Path:
    """The file of a format's directory that holds the values."""
    return max(
        (path for path in directory.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size
    )


def _flip_middle_bit(path: Path) -> None:
    with path.open("r+b") as stream:
        stream.seek(path.stat().st_size // 2)
        byte = stream.read(1)[0]
        stream.seek(-1, os.SEEK_CUR)
        stream.write(bytes([byte ^ 1]))
