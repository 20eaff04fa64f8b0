"""What our own strategies share: every writer puts its pieces into one file, named partNNNNN-of-NNNNN.

The files describe themselves: a whole array lies under its entry's key, a slice under
`KEY#OFFSET:SHAPE` as a flat array, a box under `KEY#BEGIN+LENGTHS:SHAPE` in its own shape. A
generation is complete when all its parts are there.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import ClassVar

import numpy as np

from hpcckpt.errors import TraceError
from hpcckpt.formats.base import Phase
from hpcckpt.frameworks.base import Entry
from hpcckpt.records import GATHER, WAIT_INSIDE
from hpcckpt.strategies.base import Piece, Strategy, Written

PART = re.compile(r"part(\d{5})-of-(\d{5})\.")
LIST = r"\[[\d, ]*\]"
SLICE = re.compile(rf"(?P<key>.*)#(?P<offset>\d+):(?P<shape>{LIST})")
BOX = re.compile(rf"(?P<key>.*)#(?P<begin>{LIST})\+(?P<lengths>{LIST}):(?P<shape>{LIST})")


class PartsStrategy(Strategy):
    """Follows `plan`; a subclass only has to make one."""

    partial = True
    reads_alone = True
    gathers: ClassVar[bool] = False
    """Rank 0 writes whole arrays, also of a state that lies in parts on the ranks."""

    def save(self, directory: Path, phase: Phase) -> list[Written]:
        with phase(GATHER):
            state = self.framework.full_state(root=0) if self.gathers else self.framework.state()
            entries = [entry for entry in state if self.keeps(entry)]
        everything = self._with_parts_of_others(entries, phase)
        pieces = self.job_plan.get(self.comm.rank)
        if not pieces:
            return []
        held = {entry.key: entry for entry in everything if entry.data is not None}
        file = directory / f"{self.part_name}{self.format.suffix}"
        written = [Written(file, piece, cut(held[piece.entry.key], piece)) for piece in pieces]
        return self.write(written, file, phase)

    @property
    def part_name(self) -> str:
        """This rank's file, without its suffix."""
        writers = sorted(self.job_plan)
        return f"part{writers.index(self.comm.rank):05d}-of-{len(writers):05d}"

    def write(self, written: list[Written], file: Path, phase: Phase) -> list[Written]:
        """Write this rank's pieces, which all go to `file`; returns those that were written."""
        arrays = {item.piece.label: item.data for item in written}
        self.format.dump(arrays, file, self.durable, phase)
        return written

    def _with_parts_of_others(self, entries: list[Entry], phase: Phase) -> list[Entry]:
        """Entries that only another rank holds come to the rank that writes them.

        Random states are a few kilobytes each, so the time this takes is waiting for the last rank;
        layers that only one rank holds are the state itself.
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
        with phase(GATHER if any(entry.kind == "parameter" for entry in owned) else WAIT_INSIDE):
            parts = self.comm.gather_within(owned, writer_of[self.comm.rank], "writers")
        return [entry for entry in entries if entry.owner is None] + [e for part in parts or [] for e in part]

    def read_back(self, directory: Path, step: int) -> Iterator[tuple[Path | None, dict[str, np.ndarray]]]:
        for path in sorted(path for path in directory.iterdir() if PART.match(path.name)):
            if not path.name.endswith(".tmp"):
                yield path, self.format.load(path)

    def holds(self, directory: Path, step: int) -> bool:
        try:
            return bool(parts_of(directory))
        except (TraceError, OSError):
            return False

    def restore(self, directory: Path, step: int | None = None) -> dict[str, np.ndarray]:
        pieces = (piece for path in parts_of(directory) for piece in self.format.load(path).items())
        return assemble(pieces, directory)


def parts_of(directory: Path) -> list[Path]:
    """All parts of a complete generation, in order. Raises TraceError for one that is not complete."""
    found = {path: match for path in sorted(directory.iterdir()) if (match := PART.match(path.name))}
    parts = {int(match[1]): path for path, match in found.items() if not path.name.endswith(".tmp")}
    wanted = {int(match[2]) for match in found.values()}
    if not found:
        raise TraceError(f"{directory}: no part of a generation lies there")
    if len(wanted) != 1 or sorted(parts) != list(range(max(wanted))):
        raise TraceError(f"{directory}: not a complete generation: has parts {sorted(parts)} of {sorted(wanted)}")
    return [parts[number] for number in sorted(parts)]


def assemble(pieces: Iterable[tuple[str, np.ndarray]], where: Path) -> dict[str, np.ndarray]:
    """Whole arrays from labelled pieces. Raises TraceError, naming `where`, if values are missing."""
    arrays: dict[str, np.ndarray] = {}
    missing: dict[str, int] = {}
    for label, array in pieces:
        _paste(arrays, missing, label, array)
    gaps = sorted(key for key, count in missing.items() if count)
    if gaps:
        raise TraceError(f"{where}: values of {gaps[0]} are missing ({len(gaps)} arrays have gaps)")
    return arrays


def cut(entry: Entry, piece: Piece) -> np.ndarray:
    """The values of a piece, out of the part of its entry that this rank holds."""
    array = entry.data
    assert array is not None
    if piece.box is not None or piece.count == math.prod(entry.shape):
        return array
    begin = piece.offset - entry.offset
    return array.reshape(-1)[begin : begin + piece.count]


def _paste(arrays: dict[str, np.ndarray], missing: dict[str, int], label: str, array: np.ndarray) -> None:
    match = SLICE.fullmatch(label) or BOX.fullmatch(label)
    if match is None:
        arrays[label] = array
        return
    key = match["key"]
    if key not in arrays:
        arrays[key] = np.empty(json.loads(match["shape"]), dtype=array.dtype)
        missing[key] = arrays[key].size
    if match.re is SLICE:
        offset = int(match["offset"])
        arrays[key].reshape(-1)[offset : offset + array.size] = array
    else:
        box = zip(json.loads(match["begin"]), json.loads(match["lengths"]), strict=True)
        arrays[key][tuple(slice(begin, begin + length) for begin, length in box)] = array
    missing[key] -= array.size
