"""The strategy interface: a pure plan of who writes what, and the save and restore that follow it."""

from __future__ import annotations

from collections.abc import Iterable
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

    def __init__(self, framework: Framework, format_: Format, comm: Comm, topology: Topology, durable: bool) -> None:
        self.framework = framework
        self.format = format_
        self.comm = comm
        self.topology = topology
        self.durable = durable
        self.job_plan: Plan = {}

    @classmethod
    def plan(cls, entries: Iterable[Entry], topology: Topology) -> Plan:
        """Who writes what of `entries`, which are the whole job's. Pure: needs no data and no MPI."""
        raise NotImplementedError

    def prepare(self) -> int:
        """Plan once, outside every timed part; returns the bytes of the job's state, each replica once."""
        entries = of_all_ranks(self.framework.state(), self.comm.size)
        self.job_plan = self.plan(entries, self.topology)
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

    def restore(self, directory: Path) -> dict[str, np.ndarray]:
        """All arrays of a generation by entry key, on any rank that can reach its files.

        Raises TraceError where a part of the generation is missing.
        """
        raise NotImplementedError


Base = Strategy


def supports(framework: str, strategy: str, format_: str) -> str | None:
    """None where the three work together, else the reason that a table prints. Imports no framework."""
    for kind, name in (("strategies", strategy), ("formats", format_)):
        served = registry.load(f"hpcckpt.{kind}", name).frameworks
        if served is not None and framework not in served:
            return f"{name} serves {', '.join(sorted(served))}, not {framework}"
    return None
