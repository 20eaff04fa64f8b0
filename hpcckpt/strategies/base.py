"""The strategy interface: a pure plan of who writes what, and the save and restore that follow it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from hpcckpt import registry
from hpcckpt.comm import Comm
from hpcckpt.errors import SpecError
from hpcckpt.formats.base import Format, Phase
from hpcckpt.frameworks.base import Entry, Framework, Part


@dataclass(frozen=True)
class Topology:
    """Ranks and the node of each: ranks are dealt out in blocks, node = rank // ranks_per_node."""

    ranks: int
    ranks_per_node: int


@dataclass(frozen=True)
class Piece:
    """A slice of an entry that one rank writes: `count` elements from `offset` of the flattened array."""

    entry: Entry
    offset: int
    count: int
    box: Part | None = None
    """Set where the elements are a box that is no single stretch of the flattened array."""

    @property
    def nbytes(self) -> int:
        return self.count * np.dtype(self.entry.dtype).itemsize

    @cached_property
    def label(self) -> str:
        """Name in a file: the entry's key, or `KEY#OFFSET:SHAPE` for a slice, which is stored flat.

        A box is `KEY#BEGIN+LENGTHS:SHAPE`, with three lists.
        """
        if self.box is not None:
            begin, lengths = (json.dumps(list(numbers)) for numbers in (self.box.begin, self.box.lengths))
            return f"{self.entry.key}#{begin}+{lengths}:{json.dumps(list(self.entry.shape))}"
        if self.count == math.prod(self.entry.shape):
            return self.entry.key
        return f"{self.entry.key}#{self.offset}:{json.dumps(list(self.entry.shape))}"


Plan = dict[int, list[Piece]]
"""What each rank writes, by rank; ranks that write nothing are left out."""


@dataclass(frozen=True)
class Written:
    """One tensor or slice in one file, with the values that went into it."""

    file: Path
    piece: Piece
    data: np.ndarray


def whole(entry: Entry) -> Piece:
    """The piece that is all of an entry."""
    return Piece(entry, 0, int(np.prod(entry.shape, dtype=np.int64)))


def part(entry: Entry, rank: int) -> Piece:
    """The piece of an entry that `rank` holds."""
    if not entry.parts:
        return whole(entry)
    held = entry.parts[rank]
    box = None if held.contiguous(entry.shape) or not held.count else held
    return Piece(entry, held.offset(entry.shape), held.count, box)


class Strategy:
    """Saves and restores generations of a job's state."""

    content: ClassVar[Literal["disjoint", "redundant"]]
    """Whether the writers' files hold each value once, or copies."""
    frameworks: ClassVar[frozenset[str] | None] = None
    """Frameworks that it serves, or libraries (`pytorch`, whatever distributes it); None: all."""
    formats: ClassVar[frozenset[str] | None] = None
    """Formats that it writes; None: all that serve the framework."""
    slices: ClassVar[bool] = False
    """It cuts arrays, so a format that writes whole model objects cannot serve it."""
    one_directory: ClassVar[bool] = False
    """The mechanism keeps all its generations in one directory and prunes them itself."""
    reads_alone: ClassVar[bool] = False
    """Each of its files can be read without the others."""
    elastic: ClassVar[bool] = True
    """A generation can be restored on another number of ranks."""
    needs_whole: ClassVar[bool] = False
    """Its writers each need the whole state, so it cannot serve a framework whose ranks hold parts."""
    partial: ClassVar[bool] = False
    """It can leave out what `settings.include` and `settings.exclude` name."""
    refers_back: ClassVar[bool] = False
    """A generation needs files of earlier ones, so none of them may be pruned."""
    asynchronous: ClassVar[bool] = False
    """Work goes on behind `save`; `finish` waits for it."""

    def __init__(self, framework: Framework, format_: Format, comm: Comm, topology: Topology, durable: bool) -> None:
        if (framework.settings.include is not None or framework.settings.exclude) and not self.partial:
            name = type(self).__name__
            raise SpecError(f"settings.include/exclude: {name} always saves everything; leave them out")
        self.framework = framework
        self.format = format_
        self.comm = comm
        self.topology = topology
        self.durable = durable
        self.job_plan: Plan = {}
        self.background: list[tuple[int, int]] = []
        """(begin, end) of each save's work behind the stall, in clock nanoseconds, by generation."""

    @classmethod
    def plan(cls, entries: Iterable[Entry], topology: Topology) -> Plan:
        """Who writes what of `entries`, which are the whole job's. Pure: needs no data and no MPI."""
        raise NotImplementedError

    def prepare(self) -> int:
        """Plan once, outside every timed part; returns the bytes of the job's state, each replica once."""
        entries = self.framework.job_entries()
        self.job_plan = self.plan([e for e in entries if self.keeps(e)], self.topology)
        return sum(entry.nbytes for entry in entries)

    def keeps(self, entry: Entry) -> bool:
        """Whether the entry gets into this run's checkpoints: the format carries it, the settings want it."""
        settings = self.framework.settings
        wanted = settings.include is None or entry.kind in settings.include
        excluded = any(fnmatchcase(entry.name, pattern) for pattern in settings.exclude)
        return wanted and not excluded and self.format.carries(entry)

    @property
    def planned_bytes(self) -> int:
        """Bytes that the plan gives to this rank."""
        return sum(piece.nbytes for piece in self.job_plan.get(self.comm.rank, []))

    def save(self, directory: Path, phase: Phase) -> list[Written]:
        """Write one generation into `directory`, which exists; returns what this rank wrote.

        The arrays of the result may share memory with the live state: use them before the next step.
        """
        raise NotImplementedError

    def finish(self) -> None:
        """Wait for work behind the last save. Called after the last step; a next save waits by itself."""

    @classmethod
    def kept(cls, made: int, keep: int | Literal["all"]) -> int:
        """Of `made` generations, how many are left at a leg's end. A mechanism that prunes by itself says its own.

        An asynchronous strategy keeps one more: the newest may still be written when an older one is pruned.
        """
        return made if keep == "all" or cls.refers_back else min(made, keep + cls.asynchronous)

    def holds(self, directory: Path, step: int) -> bool:
        """Whether this rank can go back to a generation.

        It was not pruned, does not lie on another node's disk, and is complete: of asynchronous work its own mark says.
        """
        return directory.is_dir() and any(directory.iterdir())

    def reads(self, directory: Path) -> list[Path]:
        """The files that a restore of the generation in `directory` may read."""
        place = directory.parent if self.refers_back else directory
        return [path for path in sorted(place.rglob("*")) if path.is_file()]

    def restore(self, directory: Path, step: int | None = None) -> dict[str, np.ndarray]:
        """All arrays of a generation by entry key, on any rank that can reach its files.

        `step` tells generations in one directory apart; None is the newest. Raises TraceError where
        a part of the generation is missing.
        """
        raise NotImplementedError

    def resume(self, directory: Path, step: int | None = None) -> list[str]:
        """Load a generation into the framework; returns the keys that it lacks, which keep their values.

        A collective: every rank calls it.
        """
        arrays = self.restore(directory, step)
        live = {e.key: e.data for e in self.framework.full_state() if e.data is not None}
        kept = {key: array for key, array in live.items() if key not in arrays}
        self.framework.load(kept | arrays)
        return sorted(kept)

    def read_back(self, directory: Path, step: int) -> Iterator[tuple[Path | None, dict[str, np.ndarray]]]:
        """File by file, what a generation holds by piece label; without a file where only the whole can be read."""
        yield None, self.restore(directory, step)


Base = Strategy


def supports(framework: str, strategy: str, format_: str) -> str | None:
    """None where the three work together, else the reason that a table prints. Imports no framework."""
    how, form = registry.load("hpcckpt.strategies", strategy), registry.load("hpcckpt.formats", format_)
    for name, served in ((strategy, how.frameworks), (format_, form.frameworks)):
        if served is not None and not served & {framework, framework.partition("_")[0]}:
            return f"{name} serves {', '.join(sorted(served))}, not {framework}"
    if how.formats is not None and format_ not in how.formats:
        return f"{strategy} writes {', '.join(sorted(how.formats))}, not {format_}"
    if form.mechanism and how.formats is None:
        return f"{format_} is written by the framework's own mechanism, not by {strategy}"
    if how.needs_whole and not registry.load("hpcckpt.frameworks", framework).holds_whole:
        return f"{strategy} copies the whole state, and no rank of {framework} holds the whole state"
    if how.slices and form.whole_model:
        return f"{format_} writes whole model objects, and {strategy} cuts arrays"
    return None
