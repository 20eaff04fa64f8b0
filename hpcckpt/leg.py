"""One leg on one rank: the steps, the saves between them, and what is checked after the last step.

What is timed lies between barriers; digests, counters and file work lie in recorded pauses behind
the save, which the control leg takes as well.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from time import process_time_ns
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from hpcckpt import inventory
from hpcckpt.comm import Comm, clock
from hpcckpt.errors import RunError
from hpcckpt.experiment import Run
from hpcckpt.faults import Faults
from hpcckpt.frameworks.base import Framework
from hpcckpt.records import (
    BACKGROUND,
    WAIT_AFTER,
    WAIT_BEFORE,
    Beacon,
    Replica,
    Save,
    Span,
    Step,
    Verified,
    Window,
)
from hpcckpt.strategies.base import Strategy, Written
from hpcckpt.tracing import process_io, residency
from hpcckpt.tracing.spans import Trace

if TYPE_CHECKING:
    from hpcckpt.restart.watch import Watch

Item = TypeVar("Item")


class Stopped(Exception):  # noqa: N818 - a request, not an error
    """The run was asked to stop, and all ranks agreed to."""


@dataclass
class Leg:
    """The parts of a leg, put together by `hpcckpt.rank`. `strategy` is None in the control."""

    run: Run
    comm: Comm
    trace: Trace
    faults: Faults
    framework: Framework
    strategy: Strategy | None
    root: Path
    """Directory of this leg's checkpoints."""
    node: str
    stop_requested: Callable[[], bool]
    first_step: int = 0
    """Where training begins: 0, or behind the generation that a leg goes on from."""
    first_generation: int = 0
    last_step: int | None = None
    """Index of the last step; None: of the run's last one."""
    reader: int = 0
    """Rank that makes, prunes and reads the directories that this rank writes to: the first of its host where nodes
    write to disks of their own."""
    watch: Watch | None = None
    """In a test of restart: compares all that the rank holds, at every step."""
    rows: list[dict[str, Any]] = field(default_factory=list)
    """Inventory rows of what this rank wrote."""
    generations: list[int] = field(default_factory=list)
    _later: list[tuple[int, int, list[Written]]] = field(default_factory=list)
    _paused_ns: int = 0
    _state_bytes: int | None = None

    def train(self) -> None:
        """All steps and saves; raises Stopped where the stop file was seen at a save."""
        first, last = self.first_step, self.final_step
        self._step(first)
        self._compare_replicas(first, "after_first_step")
        self.trace.flush()
        self.comm.settle()
        begin, cpu = clock(), process_time_ns()
        for index in range(first + 1, last + 1):
            self._step(index)
            if index % self.run.point.interval_steps == 0:
                self._checkpoint(index)
        with self.trace.inside(WAIT_AFTER):
            self.comm.settle()
        self.trace.add(
            Window(
                begin_ns=begin,
                end_ns=clock(),
                steps=last - first,
                saves=len(self.generations) if self.strategy else 0,
                paused_ns=self._paused_ns,
                cpu_ns=process_time_ns() - cpu,
            )
        )
        self._compare_replicas(last, "end")
        self._catch_up()
        self.trace.flush()

    @property
    def final_step(self) -> int:
        """Index of the last step."""
        return self.run.settings.steps - 1 if self.last_step is None else self.last_step

    def _catch_up(self) -> None:
        """Behind the window: the inventory of saves that had no pause. Their values are gone, so no digests."""
        for generation, step, written in self._later:
            self._list(generation, step, written, digests=False)
            self.faults.damage(generation, sorted({item.file for item in written}))

    def _list(self, generation: int, step: int, written: list[Written], digests: bool) -> None:
        place = (generation, step, self.root, self.comm.rank, self.node, self.run.point.format)
        self.rows += inventory.rows(written, *place, digests=digests)

    def beacon(self, when: str) -> None:
        """A one-byte write that the I/O tracer sees, between two looks at the clock."""
        path = self.root / f".beacon.{self.comm.rank:05d}.{when}"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        before = clock()
        os.write(descriptor, b"\0")
        after = clock()
        os.close(descriptor)
        self.trace.add(Beacon(path=str(path), before_ns=before, after_ns=after))

    def directory(self, generation: int) -> Path:
        """Where a generation lies; a mechanism that prunes by itself has one place for all."""
        if self.strategy and self.strategy.one_directory:
            return self.root / "generations"
        return self.root / f"generation-{generation:05d}"

    def finish_background(self) -> None:
        """Wait for what goes on behind the last save, and record how long each save went on."""
        if self.strategy is None:
            return
        with self.trace.inside(BACKGROUND):
            self.strategy.finish()
        for generation, (begin, end) in enumerate(self.strategy.background, self.first_generation):
            self.trace.add(Span(generation=generation, phase=BACKGROUND, begin_ns=begin, end_ns=end))

    def _step(self, index: int) -> None:
        self.faults.at("step", index)
        if self.watch:
            self.watch.before_step(index, self.faults)
        with self.trace.inside("step"):
            begin = clock()
            loss = self.framework.step()
            self.trace.add(Step(index=index, begin_ns=begin, end_ns=clock(), loss=loss))
        if self.run.settings.digest_every_step or self.watch:
            self._compare_replicas(index, "step")
        if self.watch:
            self.watch.behind_step(index, loss)

    def _checkpoint(self, step: int) -> None:
        generation = self.first_generation + len(self.generations)
        directory = self.directory(generation)
        if self.strategy and self.comm.rank == self.reader:
            directory.mkdir(exist_ok=self.strategy.one_directory)
        written = self._save(generation, step, directory) if self.strategy else self._stand_in(generation)
        self.generations.append(generation)
        if self.run.settings.barrier != "none":
            self._pause(generation, step, written)
        else:  # nothing untimed may hide in the window, so there are no digests, and the rest comes later
            self._later.append((generation, step, written))

    def _stand_in(self, generation: int) -> list[Written]:
        """What the control does in a save's place: the same two barriers."""
        self.faults.at("before_save", generation)
        for wait in (WAIT_BEFORE, WAIT_AFTER):
            with self.trace.inside(wait):
                self.comm.barrier()
        return []

    def _save(self, generation: int, step: int, directory: Path) -> list[Written]:
        assert self.strategy is not None
        if self._state_bytes is None:
            began = clock()
            self._state_bytes = self.strategy.prepare()
            if self.run.settings.barrier != "none":  # planned once in a training's life, which is longer than a run
                self._paused_ns += clock() - began
        self.faults.at("before_save", generation)
        peak_reason = process_io.reset_peak()
        before = process_io.read()
        arrive = clock()
        with self.trace.inside(WAIT_BEFORE):
            self.comm.barrier()
        begin, cpu = clock(), process_time_ns()
        with self.trace.inside("save"):
            phase: Callable[[str], AbstractContextManager[None]] = partial(self.trace.phase, generation)
            written = self.strategy.save(directory, phase)
        done = clock()
        with self.trace.inside(WAIT_AFTER):
            self.comm.barrier()
        end, cpu = clock(), process_time_ns() - cpu
        after = process_io.read()
        for phase_name, first, last in ((WAIT_BEFORE, arrive, begin), (WAIT_AFTER, done, end)):
            self.trace.add(Span(generation=generation, phase=phase_name, begin_ns=first, end_ns=last))
        self.trace.add(
            Save(
                generation=generation,
                step=step,
                directory=str(directory),
                arrive_ns=arrive,
                begin_ns=begin,
                done_ns=done,
                end_ns=end,
                state_bytes=self._state_bytes,
                planned_bytes=self.strategy.planned_bytes,
                rss_before_bytes=before.rss_bytes,
                rss_peak_bytes=None if peak_reason else after.rss_peak_bytes,
                rss_reason=peak_reason or after.rss_reason,
                write_chars_bytes=_growth(before.write_chars_bytes, after.write_chars_bytes),
                storage_bytes=_growth(before.storage_bytes, after.storage_bytes),
                io_reason=after.io_reason,
                cpu_ns=cpu,
            )
        )
        return written

    def _pause(self, generation: int, step: int, written: list[Written]) -> None:
        """Untimed and recorded: digests, inventory, pruning, the trace's own file, the stop file."""
        begin = clock()
        self._compare_replicas(step, "save")
        self._list(generation, step, written, digests=True)
        self._fill_sizes(generation)
        self.faults.damage(generation, sorted({item.file for item in written}))
        self._prune(generation)
        self.trace.flush()
        stop = self.comm.any(self.stop_requested())
        self._paused_ns += clock() - begin
        if stop:
            self.finish_background()
            raise Stopped

    def _fill_sizes(self, newest: int) -> None:
        """Sizes of the files that are complete: behind an asynchronous save, those of the save before it."""
        if self.strategy is None:
            return
        complete = newest if self.strategy.asynchronous else newest + 1
        inventory.fill_sizes([row for row in self.rows if row["generation"] < complete], self.root)
        if self.strategy.asynchronous:
            self.comm.settle()  # rank 0 prunes next: not before everybody has looked

    def _prune(self, newest: int) -> None:
        keep = self.run.settings.keep
        if (
            self.strategy is None
            or keep == "all"
            or self.comm.rank != self.reader
            or self.strategy.one_directory
            or self.strategy.refers_back
        ):
            return
        oldest = newest - keep - self.strategy.asynchronous  # behind an asynchronous save the newest is not there yet
        if oldest >= 0 and self.directory(oldest).exists():  # a launch before this one may have come further
            shutil.rmtree(self.directory(oldest))

    def _compare_replicas(self, step: int, where: str) -> None:
        """Law 3: all ranks of one replica group hold equal parameters."""
        replicated = [
            e for e in self.framework.state() if e.kind == "parameter" and e.owner is None and not e.parts
        ]
        parts = [inventory.digest(e.data) for e in replicated if e.data is not None]
        mine = inventory.digest(np.frombuffer("".join(parts).encode(), dtype=np.uint8))
        if self.run.settings.barrier == "none" and where == "save":
            return
        if not parts:
            reason = "no parameter is replicated: each rank holds a part of its own"
            self.trace.add(Replica(step=step, where=where, digest=mine, equal=None, reason=reason))
            return
        everybody = self.comm.allgather(mine)
        equal = len(set(everybody)) == 1
        self.trace.add(Replica(step=step, where=where, digest=mine, equal=equal))
        if not equal and where == "after_first_step" and not self.watch:
            odd = [rank for rank, digest in enumerate(everybody) if digest != everybody[0]]
            raise RunError(f"parameters differ between ranks after step {step}: ranks {odd} against rank 0")

    def gather_rows(self) -> list[dict[str, Any]] | None:
        """The inventory of all ranks, on rank 0, once the readers have verified what they reach. A collective."""
        inventory.fill_sizes(self.rows, self.root)
        parts = self.comm.gather_within(self.rows, self.reader, "readers")
        here = [row for part in parts or [] for row in part]
        holders = Counter(chain(*self.comm.allgather(list({row["generation"] for row in here}))))
        if parts is not None:
            self._verify(here, holders)
        gathered = self.comm.gather(here)
        return None if gathered is None else [row for part in gathered for row in part]

    def _verify(self, reached: list[dict[str, Any]], holders: Mapping[int, int]) -> None:
        """Law 4: what is read back equals what was saved.

        `reached`: rows of the files that this reader sees; `holders`: how many readers see files of a generation.
        """
        if self.strategy is None:
            return
        wanted = {"all": self.generations, "ends": [*self.generations[:1], *self.generations[-1:]], "none": []}
        chosen = set(wanted[self.run.settings.verify])
        gone = self._pruned()
        for generation in self.generations:
            saved = [row for row in reached if row["generation"] == generation]
            directory = self.directory(generation)
            if generation not in chosen:
                self._not_verified(generation, f"not verified: verify = {self.run.settings.verify}")
            elif not saved:
                if self.comm.rank == 0 and not holders[generation]:
                    self._not_verified(generation, "not verified: nothing was written")
            elif saved[0]["digest"] is None:
                self._not_verified(generation, "not verified: barriers are off, so no digests were taken")
            elif generation in gone:
                self._not_verified(generation, "not verified: pruned")
            elif holders[generation] > 1 and not self.strategy.reads_alone:
                self._not_verified(generation, "not verified: it lies on several nodes' disks, and is only read whole")
            else:
                self._read_back(generation, directory, saved)

    def _pruned(self) -> set[int]:
        """Generations that the rule of this leg has deleted by now; what else is missing was lost."""
        assert self.strategy is not None
        made = len(self.generations)
        return set(self.generations[: made - self.strategy.kept(made, self.run.settings.keep)])

    def _not_verified(self, generation: int, reason: str) -> None:
        self.trace.add(Verified(generation=generation, equal=None, tensors=0, reason=reason))

    def _read_back(self, generation: int, directory: Path, saved: list[dict[str, Any]]) -> None:
        assert self.strategy is not None
        equal: set[tuple[str, str]] = set()
        if lost := sorted({row["file"] for row in saved if not (self.root / row["file"]).exists()}):
            reason = f"cannot be read back: {lost[0]} is gone" + (f" ({len(lost)} files)" if len(lost) > 1 else "")
            self.trace.add(Verified(generation=generation, equal=False, tensors=0, reason=reason))
            return
        cached = residency.cached_fraction({self.root / row["file"] for row in saved})
        timed = _Timed(self.strategy.read_back(directory, saved[0]["step"]))
        try:
            for file, arrays in timed:
                name = None if file is None else str(file.relative_to(self.root))
                rows = [row for row in saved if name in (None, row["file"])]
                if file is not None:
                    inventory.fill_storages(rows, self.strategy.format.storage_bytes(file))
                equal |= {(row["file"], row["label"]) for row in rows if _same(arrays, row)}
        except Exception as error:  # whatever a damaged file makes a library raise is the finding
            reason = f"cannot be read back: {type(error).__name__}: {error}"
            self.trace.add(Verified(generation=generation, equal=False, tensors=0, reason=reason))
            return
        differing = [row["tensor"] for row in saved if (row["file"], row["label"]) not in equal]
        found = f"differs: {', '.join(differing[:5])} ({len(differing)} of {len(saved)})" if differing else None
        self.trace.add(
            Verified(
                generation=generation,
                equal=not differing,
                tensors=len(saved),
                reason=found,
                read_ns=timed.spent_ns,
                cached=cached,
            )
        )


class _Timed(Generic[Item]):
    """An iterator that adds up the time its source takes, and not the time of whoever uses the items."""

    def __init__(self, source: Iterable[Item]) -> None:
        self._source = iter(source)
        self.spent_ns = 0

    def __iter__(self) -> Iterator[Item]:
        return self

    def __next__(self) -> Item:
        begin = clock()
        try:
            return next(self._source)
        finally:
            self.spent_ns += clock() - begin


def _same(arrays: dict[str, np.ndarray], row: dict[str, Any]) -> bool:
    """Whether what was read holds the row's piece with the row's digest."""
    if row["label"] in arrays:
        piece = arrays[row["label"]]
    elif row["tensor"] in arrays:
        raw = np.ascontiguousarray(arrays[row["tensor"]]).reshape(-1).view(np.uint8)
        piece = raw[row["offset_bytes"] : row["offset_bytes"] + row["tensor_bytes"]]
    else:
        return False
    return bool(inventory.digest(piece) == row["digest"])


def _growth(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before
