"""How torch.distributed.checkpoint is called, which part of its work is which phase, and the plan it makes.

DCP's own default (`sync_files=True`) fsyncs each data file and .metadata, and no directory. Here
`durable = false` is DCP without any fsync, and `durable = true` is the same fsyncs and the
directory's. They are called in this module and not by DCP, so that their time shows apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from hpcckpt.formats.base import Phase, sync
from hpcckpt.formats.dcp import METADATA, pieces
from hpcckpt.frameworks.base import Entry, Framework
from hpcckpt.records import COMMIT, SERIALIZE_WRITE, SYNC, WAIT_INSIDE
from hpcckpt.strategies._parts import cut
from hpcckpt.strategies.base import Piece, Plan, Strategy, Topology, Written, part, whole

INDEX = Entry(METADATA, "container", (0,), "uint8")
"""Rank 0's .metadata: a file without values of the state."""


class DcpStrategy(Strategy):
    """The plan, the file names and the read-back of both DCP strategies."""

    content = "disjoint"
    frameworks = frozenset({"pytorch"})
    formats = frozenset({"dcp"})
    partial = True

    @classmethod
    def plan(cls, entries: Iterable[Entry], topology: Topology) -> Plan:
        plan = spread(list(entries), topology.ranks)
        plan.setdefault(0, []).append(whole(INDEX))
        return plan

    def prepare(self) -> int:
        import torch.distributed.checkpoint  # noqa: F401 - a second or more, which is no part of the first save

        self.group = torch_framework(self.framework).checkpoint_group()
        return super().prepare()

    def tensors(self) -> dict[str, Any]:
        """The live tensors that a checkpoint holds, by entry key, in the order of the plan."""
        named = (
            (Entry(item.name, item.kind, (), "uint8", owner=item.owner), item.tensor)
            for item in torch_framework(self.framework).items()
        )
        return {entry.key: tensor for entry, tensor in named if self.keeps(entry)}

    def planned(self, directory: Path) -> list[Written]:
        """What this rank writes by the plan. Its values are looked up when asked for, behind the save."""
        values = Values(self.framework)
        own = directory / f"__{self.comm.rank}_0.distcp"
        pieces = self.job_plan.get(self.comm.rank, [])
        return [Later(directory / METADATA if _is_index(piece) else own, piece, values) for piece in pieces]

    def restore(self, directory: Path, step: int | None = None) -> dict[str, np.ndarray]:
        return self.format.load(directory)

    def holds(self, directory: Path, step: int) -> bool:
        return (directory / METADATA).is_file()  # without it nobody knows what lies in the other files

    def read_back(self, directory: Path, step: int) -> Iterator[tuple[Path | None, dict[str, np.ndarray]]]:
        yield from pieces(directory)
        yield directory / METADATA, {METADATA: np.empty(0, np.uint8)}


class Values:
    """The state's arrays by key, taken from the framework once, when the first is asked for."""

    def __init__(self, framework: Framework) -> None:
        self._framework = framework
        self._held: dict[str, Entry] | None = None

    def of(self, piece: Piece) -> np.ndarray:
        """The values of a piece that this rank holds."""
        if _is_index(piece):
            return np.empty(0, np.uint8)
        if self._held is None:
            self._held = {entry.key: entry for entry in self._framework.state()}
        return cut(self._held[piece.entry.key], piece)


class Later(Written):
    """What DCP wrote from tensors of its own: arrays are made for digests only, outside the timed save."""

    def __init__(self, file: Path, piece: Piece, values: Values) -> None:
        object.__setattr__(self, "file", file)
        object.__setattr__(self, "piece", piece)
        object.__setattr__(self, "_values", values)

    @property
    def data(self) -> np.ndarray:
        return self._values.of(self.piece)  # type: ignore[attr-defined, no-any-return]


def torch_framework(framework: Framework) -> Any:
    """The framework as the PyTorch adapter that `supports` made sure of."""
    return framework


def spread(entries: list[Entry], ranks: int) -> Plan:
    """Who writes what: DCP's own rule, which spreads replicated state unevenly.

    DCP looks at the ranks' items one rank after the other, and gives what several ranks hold to that
    one of them with the fewest bytes so far. Whole tensors are its unit, and it takes a part of a
    tensor for as large as the whole.
    """
    holders: dict[tuple[str, tuple[int, ...]], tuple[Piece, list[int]]] = {}
    for rank in range(ranks):
        for entry in entries:
            if entry.owner in (None, rank):
                begin = entry.parts[rank].begin if entry.parts else ()
                holders.setdefault((entry.key, begin), (part(entry, rank), []))[1].append(rank)
    load = [0] * ranks
    plan: Plan = {}
    for piece, held_by in holders.values():
        writer = min(held_by, key=lambda rank: load[rank])
        load[writer] += piece.entry.nbytes or 1
        if piece.count:
            plan.setdefault(writer, []).append(piece)
    return dict(sorted(plan.items()))


class Phases:
    """The phase that a DCP call is in: it goes from one to the next, so none is missed between two."""

    def __init__(self, phase: Phase | None) -> None:
        self._phase = phase
        self._open = ExitStack()

    def to(self, name: str) -> None:
        """End the current phase and begin the next."""
        self._open.close()
        if self._phase:
            self._open.enter_context(self._phase(name))

    @contextmanager
    def first(self, name: str) -> Iterator[Phases]:
        """From here to the end of the block the call is in some phase, first in `name`."""
        with self._open:
            self.to(name)
            yield self


def writer(directory: Path, durable: bool, phases: Phases) -> Any:
    """DCP's FileSystemWriter, with its phases marked and its fsyncs called where they can be timed."""
    from torch.distributed.checkpoint.filesystem import FileSystemWriter

    class PhasedWriter(FileSystemWriter):
        def write_data(self, plan: Any, planner: Any) -> Any:
            phases.to(SERIALIZE_WRITE)
            written = super().write_data(plan, planner)
            if durable:
                phases.to(SYNC)
                for name in {found.storage_data.relative_path for found in written.value()}:
                    sync(directory / name)
            phases.to(WAIT_INSIDE)
            return written

        def finish(self, metadata: Any, results: Any) -> None:
            phases.to(COMMIT)
            super().finish(metadata, results)
            if durable:
                phases.to(SYNC)
                sync(directory / METADATA)
                sync(directory)
            phases.to(WAIT_INSIDE)

    return PhasedWriter(directory, sync_files=False)


def planner() -> Any:
    """DCP's DefaultSavePlanner, which remembers what it made this rank write."""
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

    class RememberingPlanner(DefaultSavePlanner):
        def written(self) -> set[tuple[str, tuple[int, ...]]]:
            """Name and first index of each tensor or part that this rank wrote."""
            items = ((i.index.fqn, i.tensor_data.chunk) for i in self.plan.items if i.tensor_data)
            return {(name, tuple(chunk.offsets)) for name, chunk in items if np.prod(chunk.sizes)}

    return RememberingPlanner()


def differs(own: Any, plan: Plan, rank: int) -> str | None:
    """None where DCP made this rank write what the plan declares, else what it did otherwise."""
    declared = {(piece.entry.key, _begin(piece, rank)) for piece in plan.get(rank, []) if not _is_index(piece)}
    if declared == (did := own.written()):
        return None
    odd = sorted(declared ^ did)
    return f"rank {rank} wrote other tensors than planned: {len(odd)} differ, first {odd[0]}"


def _is_index(piece: Piece) -> bool:
    return piece.entry.kind == INDEX.kind


def _begin(piece: Piece, rank: int) -> tuple[int, ...]:
    return piece.entry.parts[rank].begin if piece.entry.parts else (0,) * len(piece.entry.shape)
