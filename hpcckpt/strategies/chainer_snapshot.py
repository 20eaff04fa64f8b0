"""Chainer's snapshot extension on rank 0, as most training scripts use it; all others wait.

HDF5 is not offered, although `snapshot(savefun=save_hdf5)` runs: Chainer cannot load that file as a
trainer again, because groups without datasets are missing from it. Nor would it be compressed: given
a dictionary, `save_hdf5` turns compression off for good at the first scalar it meets.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from hpcckpt.frameworks.base import Entry
from hpcckpt.strategies._chainer import SNAPSHOT, TrainerStrategy
from hpcckpt.strategies.base import Plan, Topology, whole


class ChainerSnapshot(TrainerStrategy):
    content = "disjoint"
    frameworks = frozenset({"chainer_chainermn"})
    formats = frozenset({"npz", "npz_plain"})

    @classmethod
    def plan(cls, entries: Iterable[Entry], topology: Topology) -> Plan:
        return {0: [whole(entry) for entry in entries]}

    def extension(self) -> Any:
        return self.snapshot()

    def save_trainer(self, directory: Path) -> Path:
        trainer = self.trainer(directory)
        self.mechanism(trainer)
        return directory / f"{SNAPSHOT}{trainer.updater.iteration}"

    def restore(self, directory: Path, step: int | None = None) -> dict[str, np.ndarray]:
        """Every rank loads the file by itself, which works on any number of ranks."""
        (file,) = self.files(directory, step)
        self.framework.chainer.serializers.load_npz(str(file), self.trainer(directory))
        return self.loaded()
