"""What our own strategies share: every writer puts its pieces into one file, named partNNNNN-of-NNNNN.

The files describe themselves: a whole array lies under its entry's key, a slice under
`KEY#OFFSET:SHAPE` as a flat array. A generation is complete when all its parts are there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from hpcckpt.errors import TraceError
from hpcckpt.formats.base import Phase
from hpcckpt.frameworks.base import Entry
from hpcckpt.records import GATHER, WAIT_INSIDE
from hpcckpt.strategies.base import Piece, Strategy, Written

PART = re.compile(r"part(\d{5})-of-(\d{5})\.")
SLICE = re.compile(r"(?P<key>.*)#(?P<offset>\d+):(?P<shape>\[[\d, ]*\])")


class PartsStrategy(Strategy):
    """Follows `plan`; a subclass only has to make one."""

    def save(self, directory: Path, phase: Phase) -> list[Written]:
        with phase(GATHER):
            entries = [entry for entry in self.framework.state() if self.format.carries(entry)]
        everything = self._with_parts_of_others(entries, phase)
        pieces = self.job_plan.get(self.comm.rank)
        if not pieces:
            return []
        data = {entry.key: entry.data for entry in everything if entry.data is not None}
        writers = sorted(self.job_plan)
        name = f"part{writers.index(self.comm.rank):05d}-of-{len(writers):05d}{self.format.suffix}"
        written = [Written(directory / name, piece, _cut(data[piece.entry.key], piece)) for piece in pieces]
        arrays = {item.piece.label: item.data for item in written}
        self.format.dump(arrays, directory / name, self.durable, phase)
        return written

    def _with_parts_of_others(self, entries: list[Entry], phase: Phase) -> list[Entry]:
        """Entries that only another rank holds come to the rank that writes them.

        They are a few kilobytes each, so the time this takes is waiting for the last rank.
        """
        writer_of = {
            piece.entry.owner: rank
            for rank, pieces in self.job_plan.items()
            for piece in pieces
            if piece.entry.owner is not None
        }
        if all(owner == writer for owner, writer in writer_of.items()):
            return entries
        owned = [entry for entry in entries if entry.owner is not None]
        with phase(WAIT_INSIDE):
            parts = self.comm.gather_within(owned, writer_of[self.comm.rank])
        return [entry for entry in entries if entry.owner is None] + [e for part in parts or [] for e in part]

    def read_back(self, directory: Path, step: int) -> Iterator[tuple[Path | None, dict[str, np.ndarray]]]:
        for path in parts_of(directory):
            yield path, self.format.load(path)

    def restore(self, directory: Path, step: int | None = None) -> dict[str, np.ndarray]:
        arrays: dict[str, np.ndarray] = {}
        missing: dict[str, int] = {}
        for path in parts_of(directory):
            for label, array in self.format.load(path).items():
                _paste(arrays, missing, label, array)
        gaps = sorted(key for key, count in missing.items() if count)
        if gaps:
            raise TraceError(f"{directory}: values of {gaps[0]} are missing ({len(gaps)} arrays have gaps)")
        return arrays


def parts_of(directory: Path) -> list[Path]:
    """All parts of a complete generation, in order. Raises TraceError for one that is not complete."""
    found = {path: match for path in sorted(directory.iterdir()) if (match := PART.match(path.name))}
    parts = {int(match[1]): path for path, match in found.items() if not path.name.endswith(".tmp")}
    wanted = {int(match[2]) for match in found.values()}
    if len(wanted) != 1 or sorted(parts) != list(range(max(wanted))):
        raise TraceError(f"{directory}: not a complete generation: has parts {sorted(parts)} of {sorted(wanted)}")
    return [parts[number] for number in sorted(parts)]


def _cut(array: np.ndarray, piece: Piece) -> np.ndarray:
    if piece.count == array.size:
        return array
    return array.reshape(-1)[piece.offset : piece.offset + piece.count]


def _paste(arrays: dict[str, np.ndarray], missing: dict[str, int], label: str, array: np.ndarray) -> None:
    match = SLICE.fullmatch(label)
    if match is None:
        arrays[label] = array
        return
    key, offset = match["key"], int(match["offset"])
    if key not in arrays:
        arrays[key] = np.empty(json.loads(match["shape"]), dtype=array.dtype)
        missing[key] = arrays[key].size
    arrays[key].reshape(-1)[offset : offset + array.size] = array
    missing[key] -= array.size
