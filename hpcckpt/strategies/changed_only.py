"""As `sharded`, but a rank writes only the pieces whose values changed since it last wrote them.

Digests decide. Each file also holds `references`: for every piece of its rank's plan the file that
has it, in this generation or an earlier one; a restore follows them back. Frozen layers cost a hash
instead of a write. In return no earlier generation may be pruned, and a restore reads several.

No framework does this by itself. PyTorch and Chainer load a subset when told to
(`load_state_dict(strict=False)`, `load_npz(strict=False)`, DCP's `allow_partial_load`), TensorFlow's
`Checkpoint.restore` does unless `assert_consumed` is asked for; none refers to older files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from hpcckpt.errors import TraceError
from hpcckpt.formats.base import Phase
from hpcckpt.frameworks.base import Entry
from hpcckpt.inventory import digest
from hpcckpt.records import SERIALIZE
from hpcckpt.strategies._parts import assemble, parts_of
from hpcckpt.strategies.base import Written, whole
from hpcckpt.strategies.sharded import Sharded

REFERENCES = "references"


class ChangedOnly(Sharded):
    refers_back = True

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._known: dict[str, str] = {}
        """Digest of each piece, by label, as it was last written."""
        self._places: dict[str, str] = {}
        """The file that holds it, seen from the generations' common directory."""
        self._new_bytes = 0

    @property
    def planned_bytes(self) -> int:
        """Of the newest generation: what the digests left of the plan."""
        return self._new_bytes

    def write(self, written: list[Written], file: Path, phase: Phase) -> list[Written]:
        with phase(SERIALIZE):
            digests = {item.piece.label: digest(item.data) for item in written}
            old = self._known
            changed = [item for item in written if old.get(item.piece.label) != digests[item.piece.label]]
            self._known = digests
            self._places |= {item.piece.label: f"{file.parent.name}/{file.name}" for item in changed}
            self._new_bytes = sum(item.piece.nbytes for item in changed)
            references = self._references(file)
        return super().write([*changed, references], file, phase)

    def _references(self, file: Path) -> Written:
        by_place: dict[str, list[str]] = {}
        for label, place in self._places.items():
            by_place.setdefault(place, []).append(label)
        content = np.frombuffer(json.dumps(by_place).encode(), dtype=np.uint8)
        return Written(file, whole(Entry(REFERENCES, "container", content.shape, "uint8")), content)

    def restore(self, directory: Path, step: int | None = None) -> dict[str, np.ndarray]:
        return assemble(self._follow(directory), directory)

    def _follow(self, directory: Path) -> Iterator[tuple[str, np.ndarray]]:
        """The pieces of all parts, from the files that hold them."""
        for part in parts_of(directory):
            own = self.format.load(part)
            for place, labels in json.loads(own[REFERENCES].tobytes()).items():
                arrays = own if place == f"{directory.name}/{part.name}" else self._earlier(directory, place)
                yield from ((label, arrays[label]) for label in labels)

    def _earlier(self, directory: Path, place: str) -> dict[str, np.ndarray]:
        file = directory.parent / place
        if not file.exists():
            cause = f"refers to {place}, which is gone; no generation of changed_only may be pruned"
            raise TraceError(f"{directory}: {cause}")
        return self.format.load(file)
