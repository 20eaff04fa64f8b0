"""The strategy interface: a pure plan of who writes what, and the save and restore that follow it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from hpcckpt import registry
from hpcckpt.comm import Comm
from hpcckpt.formats.base import Format, Phase
from hpcckpt.frameworks.base import Entry, Framework, of_all_ranks


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

    @property
    def nbytes(self) -> int:
        return self.count * np.dtype(self.entry.dtype).itemsize

    @property
    def label(self) -> str:
        """Name in a file: the entry's key, or `KEY#OFFSET:SHAPE` for a slice, which is stored flat."""
        if self.count == int(np.prod(self.entry.shape, dtype=np.int64)):
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


class Strategy:
    """Saves and restores generations of a job's state."""

    content: ClassVar[Literal["disjoint", "redundant"]]
    """Whether the writers' files hold each value once, or copies."""
    frameworks: ClassVar[frozenset[str] | None] = None
    """Frameworks that it serves; None: all."""
    formats: ClassVar[frozenset[str] | None] = None
    """Formats that it writes; None: all that serve the framework."""
    slices: ClassVar[bool] = False
    """It cuts arrays, so a format that writes whole model objects cannot serve it."""
    one_directory: ClassVar[bool] = False
    """The mechanism keeps all its generations in one directory and prunes them itself."""
    elastic: ClassVar[bool] = True
    """A generation can be restored on another number of ranks."""
    asynchronous: ClassVar[bool] = False
    """Work goes on behind `save`; `finish` waits for it."""

    def __init__(self, framework: Framework, format_: Format, comm: Comm, topology: Topology, durable: bool) -> None:
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
        entries = of_all_ranks(self.framework.state(), self.comm.size)
        self.job_plan = self.plan([e for e in entries if self.format.carries(e)], self.topology)
        return sum(entry.nbytes for entry in entries)

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

    def restore(self, directory: Path, step: int | None = None) -> dict[str, np.ndarray]:
        """All arrays of a generation by entry key, on any rank that can reach its files.

        `step` tells generations in one directory apart; None is the newest. Raises TraceError where
        a part of the generation is missing.
        """
        raise NotImplementedError

    def read_back(self, directory: Path, step: int) -> Iterator[tuple[Path | None, dict[str, np.ndarray]]]:
        """File by file, what a generation holds by piece label; without a file where only the whole can be read."""
        yield None, self.restore(directory, step)


Base = Strategy


def supports(framework: str, strategy: str, format_: str) -> str | None:
    """None where the three work together, else the reason that a table prints. Imports no framework."""
    how, form = registry.load("hpcckpt.strategies", strategy), registry.load("hpcckpt.formats", format_)
    for name, served in ((strategy, how.frameworks), (format_, form.frameworks)):
        if served is not None and framework not in served:
            return f"{name} serves {', '.join(sorted(served))}, not {framework}"
    if how.formats is not None and format_ not in how.formats:
        return f"{strategy} writes {', '.join(sorted(how.formats))}, not {format_}"
    if how.slices and form.whole_model:
        return f"{format_} writes whole model objects, and {strategy} cuts arrays"
    return None
