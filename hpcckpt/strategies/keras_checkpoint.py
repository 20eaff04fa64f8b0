"""Keras's own mechanism: the callback `ModelCheckpoint` on rank 0, which writes the whole model at each save.

It writes under the final name straight away, and never syncs: a crash inside it leaves a torn file
under a good name. With `durable`, file and directory are synced behind it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from hpcckpt.errors import TraceError
from hpcckpt.formats.base import Phase, sync
from hpcckpt.frameworks.base import Entry
from hpcckpt.records import GATHER, SERIALIZE_WRITE, SYNC
from hpcckpt.strategies.base import Plan, Strategy, Topology, Written, whole

STEM = "checkpoint"


class KerasCheckpoint(Strategy):
    content = "disjoint"
    frameworks = frozenset({"tensorflow"})
    formats = frozenset({"keras", "keras_h5"})

    @classmethod
    def plan(cls, entries: Iterable[Entry], topology: Topology) -> Plan:
        return {0: [whole(entry) for entry in entries]}

    def save(self, directory: Path, phase: Phase) -> list[Written]:
        if self.comm.rank != 0:
            return []
        path = self._path(directory)
        with phase(GATHER):
            data = {entry.key: entry.data for entry in self.framework.state()}
        with phase(SERIALIZE_WRITE):
            self._callback(path).on_epoch_end(0, {})
        if self.durable:
            with phase(SYNC):
                sync(path)
                sync(directory)
        found = ((piece, data[piece.entry.key]) for piece in self.job_plan[0])
        return [Written(path, piece, array) for piece, array in found if array is not None]

    def _path(self, directory: Path) -> Path:
        return directory / f"{STEM}{self.format.suffix}"

    def _callback(self, path: Path) -> Any:
        import keras

        framework: Any = self.framework
        # The callback takes the path for a pattern that it fills in.
        literally = str(path).replace("{", "{{").replace("}", "}}")
        callback = keras.callbacks.ModelCheckpoint(literally)
        callback.set_model(framework.model)
        return callback

    def restore(self, directory: Path, step: int | None = None) -> dict[str, np.ndarray]:
        path = self._path(directory)
        if not path.is_file():
            raise TraceError(f"{directory}: no {path.name}")
        return self.format.load(path)

    def read_back(self, directory: Path, step: int) -> Iterator[tuple[Path | None, dict[str, np.ndarray]]]:
        yield self._path(directory), self.restore(directory, step)
