"""States on disk for a moment: what a rank held at one point of a leg, so that others can count what differs.

One uncompressed .npz per rank and point, below the run's scratch and deleted with it. No digests and no judgement.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np


class Dumps:
    """The dumps of one run."""

    def __init__(self, scratch: Path | str) -> None:
        self.root = Path(scratch) / "states"

    def file(self, leg: str, rank: int, when: str, step: int) -> Path:
        return self.root / leg / f"step{step:05d}-{when}-rank{rank:05d}.npz"

    def write(self, leg: str, rank: int, when: str, step: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Arrays by entry key. What is there already is replaced."""
        path = self.file(leg, rank, when, step)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".tmp")
        with temporary.open("wb") as stream:
            np.savez(stream, **dict(arrays))  # type: ignore[arg-type]
        temporary.replace(path)

    def read(self, leg: str, rank: int, when: str, step: int) -> dict[str, np.ndarray]:
        """All arrays of a point; none where nothing was dumped or it lies out of reach."""
        try:
            with np.load(self.file(leg, rank, when, step), allow_pickle=False) as archive:
                return {name: archive[name] for name in archive.files}
        except FileNotFoundError:
            return {}

    def value(self, leg: str, rank: int, when: str, step: int, key: str) -> np.ndarray | None:
        """One array; None where it was not dumped."""
        try:
            with np.load(self.file(leg, rank, when, step), allow_pickle=False) as archive:
                return np.asarray(archive[key]) if key in archive.files else None
        except FileNotFoundError:
            return None
