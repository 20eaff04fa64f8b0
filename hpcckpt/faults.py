"""Planted faults: a rank that sleeps, dies, raises, hangs or damages a file at a named point.

They exist so that anybody can see the suite find them. Nothing here runs unless the experiment
lists faults, and the analysis never pools such runs with others.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from hpcckpt.errors import RunError
from hpcckpt.experiment import Fault


class Faults:
    """The faults of one rank in one leg."""

    def __init__(self, faults: list[Fault], rank: int, leg: str) -> None:
        self._mine = [fault for fault in faults if fault.rank == rank and fault.leg == leg]

    def at(self, point: str, index: int | None) -> None:
        """Commit the faults planted at `point`; `index` is the generation, or the step where point is `step`."""
        for fault in self._matching(point, index):
            if fault.action == "sleep":
                time.sleep(fault.seconds)
            elif fault.action == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            elif fault.action == "raise":
                raise RunError(f"planted fault at {point} {index}")
            elif fault.action == "hang":
                while True:
                    time.sleep(1)

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
