"""The format interface, and the one place where a file becomes durable and gets its final name."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import ClassVar

import numpy as np

from hpcckpt.frameworks.base import Entry, Framework
from hpcckpt.records import COMMIT, SERIALIZE_WRITE, SYNC

Phase = Callable[[str], AbstractContextManager[None]]
"""Opens a phase of the current save: `with phase("sync"): ...`."""


class Format:
    """Writes named arrays to one file (or one directory) and reads them back.

    `expected_coverage` is the share of the file's bytes that a sound I/O trace shows, (low, high),
    set before any run, with the reason why it may differ from one.
    """

    suffix: ClassVar[str]
    frameworks: ClassVar[frozenset[str] | None] = None
    """Frameworks that can use it, or libraries (`pytorch`, whatever distributes it); None: all."""
    expected_coverage: ClassVar[tuple[float, float]]
    coverage_reason: ClassVar[str]
    phase: ClassVar[str] = SERIALIZE_WRITE
    """What `write` spends its time on, as far as a rank can tell."""
    whole_model: ClassVar[bool] = False
    """It writes the framework's own model object, so it cannot hold a slice of a state."""
    mechanism: ClassVar[bool] = False
    """Only a strategy that names it in `formats` writes it: the framework's own mechanism makes the files."""

    def __init__(self, framework: Framework) -> None:
        self.framework = framework
        """For formats that write the framework's own objects; the others never look at it."""

    @classmethod
    def carries(cls, entry: Entry) -> bool:
        """Whether this entry of a state gets into the file at all."""
        return True

    def write(self, arrays: Mapping[str, np.ndarray], path: Path) -> None:
        """Write all arrays to `path`, buffered, without any sync or rename."""
        raise NotImplementedError

    def load(self, path: Path) -> dict[str, np.ndarray]:
        """The arrays of a file that `write` made."""
        raise NotImplementedError

    def storage_bytes(self, path: Path) -> dict[str, int]:
        """By name in the file, the bytes of the storage behind each tensor: a saved view drags a larger one.

        Empty where a file holds plain arrays only.
        """
        return {}

    def temporary(self, path: Path) -> Path:
        """The name under which `path` is written; no part of a generation may be named so."""
        return path.with_name(path.name + ".tmp")

    def dump(self, arrays: Mapping[str, np.ndarray], path: Path, durable: bool, phase: Phase) -> None:
        """Write under a temporary name, then commit by rename.

        With `durable`, the data is on the device before the rename, and the name before this returns.
        """
        temporary = self.temporary(path)
        with phase(self.phase):
            self.write(arrays, temporary)
        if durable:
            with phase(SYNC):
                sync_tree(temporary)
        with phase(COMMIT):
            os.replace(temporary, path)
        if durable:
            with phase(SYNC):
                sync(path.parent)


Base = Format


def sync_tree(path: Path) -> None:
    """fsync a file, or every file and directory of a tree, innermost first."""
    if path.is_dir():
        for inner in sorted(path.iterdir()):
            sync_tree(inner)
    sync(path)


def sync(path: Path) -> None:
    """fsync a file or a directory."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
