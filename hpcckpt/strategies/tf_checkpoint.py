"""TensorFlow's own mechanism: `tf.train.Checkpoint` and its manager on rank 0, in one directory.

The manager writes through temporary files, renames, updates a small text file and prunes, all in
one call: nothing of it can be seen apart. It never syncs; with `durable` the files and the directory
are synced behind it. What the checkpoint reaches from model and optimizer gets in: the generators
of dropout layers are not among it, and nothing of other ranks is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from hpcckpt.errors import TraceError
from hpcckpt.formats._tensorflow import by_objects
from hpcckpt.formats.base import Phase, sync
from hpcckpt.frameworks.base import Entry
from hpcckpt.records import GATHER, SERIALIZE_WRITE, SYNC
from hpcckpt.strategies.base import Plan, Strategy, Topology, Written, whole

NAME = "ckpt"
NEWEST = "checkpoint"
"""The manager's text file: which generations there are, and which is the newest."""
INDEX = Entry("index", "container", (0,), "uint8")
"""Stands for a file without values of the state."""


class TfCheckpoint(Strategy):
    content = "disjoint"
    frameworks = frozenset({"tensorflow"})
    formats = frozenset({"tf_bundle"})
    one_directory = True

    @classmethod
    def plan(cls, entries: Iterable[Entry], topology: Topology) -> Plan:
        return {0: [whole(entry) for entry in entries]}

    def keeps(self, entry: Entry) -> bool:
        return entry.owner is None and super().keeps(entry)

    @cached_property
    def _managers(self) -> dict[Path, Any]:
        return {}

    @cached_property
    def checkpoint(self) -> Any:
        """The object graph that is saved: what users write, and the data position as a variable."""
        import tensorflow as tf

        framework: Any = self.framework
        position = tf.Variable(0, dtype=tf.int64)
        return tf.train.Checkpoint(model=framework.model, optimizer=framework.optimizer, position=position)

    def prepare(self) -> int:
        size = super().prepare()
        if self.comm.rank == 0:
            assert self.checkpoint  # made here, outside every timed part
        return size

    def save(self, directory: Path, phase: Phase) -> list[Written]:
        if self.comm.rank != 0:
            return []
        with phase(GATHER):
            data = {entry.key: entry.data for entry in self.framework.state()}
            self.checkpoint.position.assign(self.framework.position)
        with phase(SERIALIZE_WRITE):
            self._manager(directory).save(checkpoint_number=self.framework.position)
        files = _files(directory, self.framework.position)
        if self.durable:
            with phase(SYNC):
                for path in (*files, directory):
                    sync(path)
        found = ((piece, data[piece.entry.key]) for piece in self.job_plan[0])
        arrays = [Written(files[0], piece, array) for piece, array in found if array is not None]
        return arrays + [Written(file, whole(INDEX), np.empty(0, np.uint8)) for file in files[1:]]

    def _manager(self, directory: Path) -> Any:
        """One manager per directory, as it keeps the list of what it has to prune."""
        import tensorflow as tf

        if directory not in self._managers:
            keep = self.framework.settings.keep
            self._managers[directory] = tf.train.CheckpointManager(
                self.checkpoint, str(directory), None if keep == "all" else keep, checkpoint_name=NAME
            )
        return self._managers[directory]

    def holds(self, directory: Path, step: int) -> bool:
        return all(path.is_file() for path in _files(directory, step + 1))

    def read_back(self, directory: Path, step: int) -> Iterator[tuple[Path | None, dict[str, np.ndarray]]]:
        data, *others = _files(directory, step + 1)
        yield data, self.restore(directory, step)
        for path in others:
            yield path, {INDEX.key: np.empty(0, np.uint8)}

    def restore(self, directory: Path, step: int | None = None) -> dict[str, np.ndarray]:
        import tensorflow as tf

        newest = tf.train.latest_checkpoint(str(directory))
        prefix = newest if step is None else str(directory / f"{NAME}-{step + 1}")
        if prefix is None or not Path(f"{prefix}.index").is_file():
            which = "no checkpoint" if step is None else f"no checkpoint of step {step}"
            raise TraceError(f"{directory}: {which}; it was pruned or never written")
        framework: Any = self.framework
        keys = {id(slot.variable): slot.key for slot in framework.slots()}
        keys[id(self.checkpoint.position)] = "data.position"
        return by_objects(Path(prefix), self.checkpoint, keys)


def _files(directory: Path, number: int) -> list[Path]:
    """The files of a checkpoint, that with the values first.

    Its number counts the steps that are done: one more than the index of the last one.
    """
    names = (f"{NAME}-{number}.data-00000-of-00001", f"{NAME}-{number}.index", NEWEST)
    return [directory / name for name in names]
