"""Rank 0 writes everything, as most training scripts do; all others wait."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from hpcckpt.formats.base import Phase
from hpcckpt.frameworks.base import Entry
from hpcckpt.records import GATHER, WAIT_INSIDE
from hpcckpt.strategies.base import Piece, Strategy, Topology, Written, whole

WRITER = 0


class SingleWriter(Strategy):
    content = "disjoint"

    @classmethod
    def plan(cls, entries: Iterable[Entry], topology: Topology) -> dict[int, list[Piece]]:
        return {WRITER: [whole(entry) for entry in entries]}

    def save(self, directory: Path, phase: Phase) -> list[Written]:
        with phase(GATHER):
            entries = self.framework.state()
        with phase(WAIT_INSIDE):  # a few kilobytes per rank: the time is waiting for the last one
            owned = self.comm.gather([e for e in entries if e.owner is not None], root=WRITER)
        if owned is None:
            return []
        everything = [e for e in entries if e.owner is None] + [e for part in owned for e in part]
        path = directory / f"state{self.format.suffix}"
        arrays = {e.key: e.data for e in everything if e.data is not None}
        self.format.dump(arrays, path, self.durable, phase)
        return [Written(path, whole(e), arrays[e.key]) for e in everything]

    def restore(self, directory: Path) -> dict[str, np.ndarray]:
        return self.format.load(directory / f"state{self.format.suffix}")
