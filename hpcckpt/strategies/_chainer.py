"""What strategies by Chainer's own mechanisms share: a trainer to save, phases around it, and its files.

Training here calls the updater step by step, so the trainer never runs its loop; it is the object
that Chainer's extensions save and load, and they are called as the loop would call them. Its file
holds model, optimizer, iterator and count of updates; the extension's trigger and the elapsed time,
which no step needs, are inventoried as `container`.
It never holds NumPy's random state, so dropout goes on differently after a restore.

Chainer writes under a temporary name and renames. It syncs nothing: `durable` syncs behind it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from hpcckpt.errors import TraceError
from hpcckpt.formats.base import Phase, sync
from hpcckpt.formats.npz import Npz
from hpcckpt.formats.npz_plain import NpzPlain
from hpcckpt.frameworks._chainer import ChainerFramework, key_of, path_of
from hpcckpt.frameworks.base import Entry, entry
from hpcckpt.records import COMMIT, GATHER, SERIALIZE_WRITE, SYNC
from hpcckpt.strategies.base import Piece, Strategy, Written, whole

UPDATER = "updater/"
"""Where a trainer's file keeps its updater."""
SNAPSHOT = "snapshot_iter_"
"""How Chainer's snapshot extension begins its files' names; the count of updates follows."""


class Phases:
    """Phases of one call into a library, switched at the points where it calls back."""

    def __init__(self, phase: Phase, first: str) -> None:
        self._phase = phase
        self._first = first
        self._open: AbstractContextManager[None] | None = None

    def switch(self, name: str) -> None:
        """End the phase that is open and begin this one."""
        self._close(None, None, None)
        self._open = self._phase(name)
        self._open.__enter__()

    def __enter__(self) -> Phases:
        self.switch(self._first)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close(kind, error, trace)

    def _close(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        opened, self._open = self._open, None
        if opened is not None:
            opened.__exit__(kind, error, trace)


class TrainerStrategy(Strategy):
    """Saves the trainer of a Chainer framework; a subclass says by which mechanism and on which ranks."""

    framework: ChainerFramework
    format: Npz | NpzPlain
    frameworks = frozenset({"chainer"})

    _trainer: Any = None
    _phases: Phases | None = None
    """Open while a save runs."""
    _saved: dict[str, np.ndarray]
    """What the last save put into this rank's file, by path."""

    def keeps(self, entry: Entry) -> bool:
        return entry.kind != "rng" and super().keeps(entry)

    def prepare(self) -> int:
        state_bytes = super().prepare()
        own = self.job_plan.get(self.comm.rank, [])
        self._pieces: dict[str, Piece] = {f"{UPDATER}{path_of(piece.entry.name)}": piece for piece in own}
        return state_bytes

    def save(self, directory: Path, phase: Phase) -> list[Written]:
        if not self._pieces:
            return []
        with Phases(phase, GATHER) as self._phases:
            file = self.save_trainer(directory)
            if self.durable:
                self.switch(SYNC)
                sync(file)
                sync(directory)
        self._phases = None
        return [Written(file, self._piece(path, array), array) for path, array in self._saved.items()]

    def _piece(self, path: str, array: np.ndarray) -> Piece:
        return self._pieces.get(path) or whole(entry(path, "container", array))

    def switch(self, name: str) -> None:
        """Name what the mechanism does from now on; outside a save it needs no name."""
        if self._phases is not None:
            self._phases.switch(name)

    def save_trainer(self, directory: Path) -> Path:
        """Run the mechanism; returns the file that this rank wrote. Calls `switch`, fills `_saved`."""
        raise NotImplementedError

    def trainer(self, directory: Path) -> Any:
        """The trainer, with this strategy's extension, its output in `directory`."""
        if self._trainer is None:
            self._trainer = self.framework.chainer.training.Trainer(self.framework.updater)
            self._trainer._start_at = time.perf_counter()  # as its loop does: the elapsed time is saved too
            self.mechanism = self.extension()
            self._trainer.extend(self.mechanism, trigger=(1, "iteration"))
        self._trainer.out = str(directory)
        return self._trainer

    def extension(self) -> Any:
        """The extension that saves the trainer."""
        raise NotImplementedError

    def snapshot(self, **options: Any) -> Any:
        """Chainer's snapshot extension, writing in this strategy's format."""
        return self.framework.chainer.training.extensions.snapshot(self._savefun, **options)

    def _savefun(self, path: str, target: dict[str, np.ndarray]) -> None:
        """What the extension calls to write; before it come copies to the host, behind it the rename."""
        self._saved = target
        self.switch(SERIALIZE_WRITE)
        self.framework.chainer.serializers.save_npz(path, target, compression=self.format.compressed)
        self.switch(COMMIT)

    def files(self, directory: Path, step: int | None) -> list[Path]:
        """The files of a generation, by writer. Raises TraceError where there is none."""
        found = sorted(directory.glob(f"{SNAPSHOT}*"))
        if not found:
            raise TraceError(f"{directory}: no snapshot of Chainer's in it")
        return found

    reads_alone = True

    def read_back(self, directory: Path, step: int) -> Iterator[tuple[Path | None, dict[str, np.ndarray]]]:
        for file in self.files(directory, step):
            suffix = f"@{self.writer(file):05d}" if self.framework.owns else ""
            arrays = self.format.load(file)
            names = {path: key_of(path.removeprefix(UPDATER)) for path in arrays}
            yield file, {f"{name}{suffix}" if name else path: arrays[path] for path, name in names.items()}

    def writer(self, file: Path) -> int:
        """The rank that wrote a file."""
        return 0

    def loaded(self) -> dict[str, np.ndarray]:
        """What the framework holds of a state, after Chainer has loaded it there."""
        return {e.key: e.data.copy() for e in self.framework.state() if self.keeps(e) and e.data is not None}


