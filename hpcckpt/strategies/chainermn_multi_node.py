"""ChainerMN's multi-node checkpointer: every rank saves its whole trainer as NAME.RANK.ITERATION.

It keeps all generations in one directory until eleven are there, then the newest five; its option
`gc_interval` does nothing. At a normal end of Trainer's loop it deletes all its files, so this
strategy never lets it finalize: what is measured is what a job that breaks off would leave behind.

By itself it restores on another number of ranks without a word: fewer ranks take the files with their
numbers, and with more ranks all start anew, because some find no file. Here either is an error.
The collectives of pruning show as `wait_inside`; the rename of a file cannot be seen apart from its writing.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from hpcckpt.errors import TraceError
from hpcckpt.frameworks.base import Entry
from hpcckpt.records import COMMIT, SERIALIZE_WRITE, WAIT_INSIDE
from hpcckpt.strategies._chainer import TrainerStrategy
from hpcckpt.strategies.base import Plan, Topology, whole

NAME = "trainer"
FULL, REMAIN = 11, 5
"""Generations that make the checkpointer prune, and those it leaves."""
FILE = re.compile(rf"{NAME}\.(\d+)\.(\d+)")


class ChainermnMultiNode(TrainerStrategy):
    content = "redundant"
    formats = frozenset({"npz"})
    one_directory = True
    elastic = False

    @classmethod
    def plan(cls, entries: Iterable[Entry], topology: Topology) -> Plan:
        everything = list(entries)
        return {
            rank: [whole(entry) for entry in everything if entry.owner in (None, rank)]
            for rank in range(topology.ranks)
        }

    @classmethod
    def kept(cls, made: int, keep: Any) -> int:
        """Whatever `keep` says: all until the eleventh is there, then the newest five, and so on."""
        return made if made < FULL else REMAIN + (made - FULL) % (FULL - REMAIN)

    def extension(self) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # it is the one that users' scripts call
            create = self.framework.chainermn.create_multi_node_checkpointer
            return create(NAME, _Watched(self.framework.communicator, self._waiting))

    def _waiting(self, begins: bool) -> None:
        self.switch(WAIT_INSIDE if begins else COMMIT)

    def _checkpointer(self, directory: Path) -> Any:
        self.trainer(directory)
        self.mechanism.path = str(directory)
        return self.mechanism

    def save_trainer(self, directory: Path) -> Path:
        iteration = self.framework.updater.iteration
        self._checkpointer(directory).save(self, iteration)
        return directory / f"{NAME}.{self.comm.rank}.{iteration}"

    def serialize(self, serializer: Any) -> None:
        """The checkpointer asks its target for its arrays, then writes them."""
        self._trainer.serialize(serializer)
        self._saved = serializer.target
        self.switch(SERIALIZE_WRITE)

    def files(self, directory: Path, step: int | None) -> list[Path]:
        """By rank. A generation saved after step N, counted from 0, has the iteration N + 1."""
        found = {path: match for path in directory.iterdir() if (match := FILE.fullmatch(path.name))}
        wanted = max((int(match[2]) for match in found.values()), default=0) if step is None else step + 1
        chosen = {int(match[1]): path for path, match in found.items() if int(match[2]) == wanted}
        if not chosen:
            raise TraceError(f"{directory}: no files of ChainerMN's checkpointer for iteration {wanted}")
        return [chosen[rank] for rank in sorted(chosen)]

    def holds(self, directory: Path, step: int) -> bool:
        return (directory / f"{NAME}.{self.comm.rank}.{step + 1}").is_file()  # each rank reads its own only

    def writer(self, file: Path) -> int:
        return int(file.name.split(".")[1])

    def restore(self, directory: Path, step: int | None = None) -> dict[str, np.ndarray]:
        """A collective. Raises TraceError on another number of ranks than saved."""
        files = self.files(directory, step)
        # On nodes' own disks no rank sees all of them.
        savers = len(set(chain(*self.comm.allgather([path.name for path in files]))))
        if savers != self.comm.size:
            raise TraceError(
                f"{directory}: saved by {savers} ranks, and this job has {self.comm.size}: ChainerMN's "
                f"checkpointer gives each rank its own file back; start {savers} ranks"
            )
        if step is None:
            self._checkpointer(directory).maybe_load(self.trainer(directory), self.framework.optimizer)
        else:
            mine = next(path for path in files if self.writer(path) == self.comm.rank)
            self.framework.chainer.serializers.load_npz(str(mine), self.trainer(directory))
        return self.loaded()


class _Watched:
    """A communicator that tells when its user begins and ends to wait in a collective."""

    def __init__(self, communicator: Any, waiting: Any) -> None:
        self._communicator = communicator
        self._waiting = waiting

    def __getattr__(self, name: str) -> Any:
        return getattr(self._communicator, name)

    def gather_obj(self, value: Any) -> Any:
        self._waiting(True)
        return self._communicator.gather_obj(value)

    def bcast_obj(self, value: Any) -> Any:
        found = self._communicator.bcast_obj(value)
        self._waiting(False)
        return found
