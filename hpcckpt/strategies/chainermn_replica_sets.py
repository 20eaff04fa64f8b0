"""ChainerMN's multi_node_snapshot: of each set of ranks that hold the same, the first saves.

Data parallelism is one set of all ranks, so rank 0 writes. Where the ranks hold different layers
each is a set of its own; ChainerMN cannot know that, and its default of one set then saves rank 0's
layers only, without a word. A file ends with its writer's rank.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from hpcckpt.frameworks.base import Entry
from hpcckpt.strategies._chainer import SNAPSHOT, TrainerStrategy
from hpcckpt.strategies.base import Plan, Topology, whole


class ChainermnReplicaSets(TrainerStrategy):
    content = "disjoint"
    formats = frozenset({"npz", "npz_plain"})  # its own loading knows no other

    @classmethod
    def plan(cls, entries: Iterable[Entry], topology: Topology) -> Plan:
        everything = list(entries)
        model_parallel = any(e.kind == "parameter" and e.owner is not None for e in everything)
        return {
            members[0]: [whole(e) for e in everything if e.owner is None or e.owner in members]
            for members in replica_sets(model_parallel, topology.ranks)
        }

    def extension(self) -> Any:
        sets = replica_sets(self.framework.owns, self.comm.size)
        wrap = self.framework.chainermn.extensions.multi_node_snapshot
        return wrap(self.framework.communicator, self.snapshot(autoload=True), sets)

    def save_trainer(self, directory: Path) -> Path:
        trainer = self.trainer(directory)
        self.mechanism(trainer)
        return directory / f"{SNAPSHOT}{trainer.updater.iteration}.{self.comm.rank}"

    def writer(self, file: Path) -> int:
        return int(file.suffix[1:])

    def restore(self, directory: Path, step: int | None = None) -> dict[str, np.ndarray]:
        """A collective: the first of each set loads its file and sends the trainer to the others."""
        self.files(directory, step)
        trainer = self.trainer(directory)
        self.mechanism.initialize(trainer)
        return self.loaded()


def replica_sets(model_parallel: bool, ranks: int) -> list[list[int]]:
    """The sets of ranks that hold the same."""
    return [[rank] for rank in range(ranks)] if model_parallel else [list(range(ranks))]
