"""The interface of I/O tracers, and how one is chosen.

A tracer is found on the machine, prepares a leg (files and the environment of a rank process),
and, when a rank has ended in whatever way, leaves genuine .darshan logs in that rank's directory.
Nothing here starts a rank or reads a log.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from hpcckpt import registry
from hpcckpt.errors import TraceError

LOG_DIR = "{log_dir}"
"""Stands in a rank's environment for its own log directory, which the per-rank wrapper puts in."""


@dataclass(frozen=True)
class Absent:
    """Why a tracer cannot be used here."""

    reason: str


class IoTracer(ABC):
    """One way to record which bytes a rank wrote where and when."""

    name: ClassVar[str]
    preference: ClassVar[int]
    """The lowest one that `find` finds is taken."""

    @classmethod
    @abstractmethod
    def find(cls, option: str | None, environ: Mapping[str, str]) -> IoTracer | Absent:
        """The tracer ready for use, or why it isn't there.

        `option` is the path that the user gave for this tracer, if any. Raises TraceError when
        a path that was asked for isn't a file.
        """

    @abstractmethod
    def describe(self) -> dict[str, str]:
        """For the manifest: `tracer`, `library` and `version`, and what else belongs to the tracer."""

    @abstractmethod
    def prepare(self, leg_dir: Path, watched: Path) -> dict[str, str]:
        """Writes what the leg needs under `leg_dir` and returns what to add to a rank's environment.

        Only paths below `watched` are traced. Values may hold LOG_DIR; that directory exists
        before the rank starts. LD_PRELOAD, where it is needed, is among them: set it for the
        rank's own process only.
        """

    @abstractmethod
    def finish(self, log_dir: Path, rank: int, hostname: str, pid: int) -> list[str]:
        """Leaves the rank's .darshan log in `log_dir` and says what is wrong with it, in sentences.

        Called once the rank has ended, normally or not. `pid` is the rank's own (0: it never
        said); logs of other processes go to `log_dir/other`.
        """


Base = IoTracer


def choose(name: str | None, option: str | None, environ: Mapping[str, str]) -> tuple[IoTracer, list[str]]:
    """The tracer called `name`, or without a name the most preferred one that is there.

    The second value says why better ones were passed over. Raises TraceError when the named
    tracer isn't there, SpecError for an unknown name.
    """
    if name is not None:
        found = registry.load(__package__, name).find(option, environ)
        if isinstance(found, Absent):
            raise TraceError(f"tracer {name}: {found.reason}")
        return found, []
    passed_over: list[str] = []
    kinds = [registry.load(__package__, each) for each in registry.names(__package__)]
    for kind in sorted(kinds, key=lambda kind: kind.preference):
        found = kind.find(option, environ)
        if not isinstance(found, Absent):
            return found, passed_over
        passed_over.append(f"{kind.name}: {found.reason}")
    raise TraceError("no tracer at all: " + "; ".join(passed_over))


def set_aside(log_dir: Path, others: Iterable[Path]) -> list[str]:
    """Moves the files of other processes to `log_dir/other` and names them."""
    notes = []
    for path in sorted(others):
        (log_dir / "other").mkdir(exist_ok=True)
        path.replace(log_dir / "other" / path.name)
        notes.append(f"{path.name}: of another process than the rank; moved to other/")
    return notes


def preload(library: Path, environ: Mapping[str, str]) -> str:
    """LD_PRELOAD with `library` in front of what the user preloads already."""
    rest = [
        entry for entry in environ.get("LD_PRELOAD", "").replace(":", " ").split() if Path(entry) != library
    ]
    return ":".join([str(library), *rest])
