"""One rank of a test of restart: digests of all that it holds at every step, and dumps where they will be needed.

Digests are cheap and always taken. Dumps are not: the reference keeps one copy of what ranks hold in
common, other legs only what differs from the reference, and both stop at a limit.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from hpcckpt.comm import Comm, clock
from hpcckpt.errors import RunError
from hpcckpt.faults import Faults
from hpcckpt.frameworks.base import Entry, Framework
from hpcckpt.inventory import digest
from hpcckpt.records import Digests, read_up_to_damage
from hpcckpt.restart.compare import LOADED, STEP, WHOLE
from hpcckpt.restart.dumps import Dumps
from hpcckpt.restart.spec import ELSEWHERE, REFERENCE, Restart
from hpcckpt.rundir import RunDir
from hpcckpt.tracing.spans import Trace


class Watch:
    """What this rank records in one leg."""

    def __init__(
        self, leg: str, restart: Restart, comm: Comm, framework: Framework, trace: Trace, scratch: Path, run_dir: RunDir
    ) -> None:
        self.leg, self.restart, self.comm, self.framework, self.trace = leg, restart, comm, framework, trace
        self.dumps = Dumps(scratch)
        self._reference = {} if leg == REFERENCE else self._read_reference(run_dir)
        self._known: set[str] = set()
        """Kinds that differ from the reference, and are dumped: only where a kind first differs is it looked at."""
        self._dumped_bytes = 0

    def _read_reference(self, run_dir: RunDir) -> dict[int, Digests]:
        """This rank's digests in the reference by step; a rank that it had not takes those of rank 0."""
        own = run_dir.leg(REFERENCE).rank_file(0 if self.leg.startswith(ELSEWHERE) else self.comm.rank)
        return {found.step: found for found in read_up_to_damage(own, b'"digests"') if found.when == STEP}

    def before_step(self, index: int, faults: Faults) -> None:
        """Damage the state where that is planted."""
        faults.alter("step", index, self.framework)

    def behind_step(self, index: int, loss: float) -> None:
        """Record what the step made, and keep what will be compared element by element."""
        begin = clock()
        entries = self.framework.state()
        kinds, size = self._digested(entries)
        lacking = {}
        kinds["loss"] = {"loss": float(loss).hex()}
        kinds["data_order"] = {"samples": digest(self.framework.last_ids)}
        if reason := self.framework.hides_gradients:
            lacking["gradient"] = reason
        else:
            gradients = self.framework.gradients()
            more, extra = self._digested(gradients)
            entries, size = [*entries, *gradients], size + extra
            kinds |= more
        self._record(STEP, index, kinds, size, begin, lacking)
        self._keep(STEP, index, kinds, entries)
        if self.leg == REFERENCE and index == self.restart.stop:
            self._digest_whole(index)
            self._keep_whole(index)

    def behind_restore(self, when: str, step: int) -> None:
        """Record the state as it is before (`fresh`) or behind (`loaded`) a restore."""
        begin = clock()
        entries = self.framework.state()
        kinds, size = self._digested(entries)
        self._record(when, step, kinds, size, begin, {})
        if when == LOADED:
            self._keep(when, step, kinds, entries)
            if self.leg.startswith(ELSEWHERE):
                self._digest_whole(step)

    def _digest_whole(self, step: int) -> None:
        """Where ranks hold parts: what all of them hold together, for a look from other ranks. A collective."""
        if not self.framework.holds_whole:
            begin = clock()
            kinds, size = self._digested(self.framework.full_state())
            self._record(WHOLE, step, kinds, size, begin, {})

    def _digested(self, entries: list[Entry]) -> tuple[dict[str, dict[str, str]], int]:
        kinds: dict[str, dict[str, str]] = {}
        size = 0
        for entry in entries:
            if entry.data is not None:
                kinds.setdefault(entry.kind, {})[entry.key] = digest(entry.data)
                size += entry.data.nbytes
        return kinds, size

    def _record(self, when: str, step: int, kinds: Any, size: int, begin: int, lacking: dict[str, str]) -> None:
        cost = clock() - begin
        self.trace.add(Digests(step=step, when=when, kinds=kinds, cost_ns=cost, bytes=size, lacking=lacking))

    def _keep(self, when: str, step: int, kinds: dict[str, dict[str, str]], entries: list[Entry]) -> None:
        wanted = self._wanted(step, kinds, entries)
        arrays = {entry.key: entry.data for entry in entries if entry.key in wanted and entry.data is not None}
        size = sum(array.nbytes for array in arrays.values())
        if arrays and self._dumped_bytes + size <= self.restart.dump_limit_bytes:
            self._dumped_bytes += size
            self.dumps.write(self.leg, self.comm.rank, when, step, arrays)

    def _wanted(self, step: int, kinds: dict[str, dict[str, str]], entries: list[Entry]) -> set[str]:
        """Keys to keep at a point: all that rank 0 has not got; in other legs what differs from the reference."""
        if self.leg == REFERENCE:
            everybodys = self.comm.bcast(kinds)
            if self.comm.rank == 0:
                return {entry.key for entry in entries}
            return {e.key for e in entries if everybodys.get(e.kind, {}).get(e.key) != kinds[e.kind].get(e.key)}
        reference = self._reference.get(step)
        if reference is None:
            return set()
        odd = {
            (kind, key)
            for kind, found in kinds.items()
            for key, made in found.items()
            if kind not in self._known and reference.kinds.get(kind, {}).get(key) not in (None, made)
        }
        self._known |= {kind for kind, _ in odd}
        return {key for _, key in odd}

    def kinds(self, step: int) -> dict[str, str]:
        """Kinds by key as the reference had them: a fresh optimizer may not have made its state yet."""
        reference = self._reference.get(step)
        return {} if reference is None else {key: kind for kind, found in reference.kinds.items() for key in found}

    def _keep_whole(self, step: int) -> None:
        """What a transplant takes from the reference: every entry whole, whatever part of it this rank holds."""
        if self.restart.transplant:
            arrays = {e.key: e.data for e in self.framework.full_state() if e.data is not None}
            shared = {} if self.comm.rank else {key: array for key, array in arrays.items() if "@" not in key}
            own = {key: array for key, array in arrays.items() if "@" in key}
            local = {e.key: e.data for e in self.framework.state() if e.kind == "buffer" and e.data is not None}
            self.dumps.write(self.leg, self.comm.rank, WHOLE, step, shared | own | local)


def graft(watch: Watch, kinds: list[str], step: int) -> list[str]:
    """Take these kinds of state over from the reference; returns the keys. A collective.

    Raises RunError on all ranks where one of them cannot reach what it had of these kinds.
    """
    framework = watch.framework
    mine = _from_reference(watch, step)
    live = {entry.key: entry for entry in framework.full_state()}
    known = watch.kinds(step)
    kind_of = {key: entry.kind for key, entry in live.items()} | known
    taken = {key: array for key, array in mine.items() if kind_of.get(key) in kinds}
    reached = {kind_of[key] for key in taken}
    lacking = sorted(set(known.values()) & set(kinds) - reached)
    if watch.comm.any(bool(lacking)):
        here = f"this one lacks {', '.join(lacking)}" if lacking else "another one does not"
        raise RunError(f"not every rank can reach step {step} of the reference: {here}")
    arrays: dict[str, np.ndarray] = {key: e.data.copy() for key, e in live.items() if e.data is not None}
    framework.load(arrays | taken)
    return sorted(taken)


def _from_reference(watch: Watch, step: int) -> dict[str, np.ndarray]:
    """What this rank had, of its own and in common with others. A collective."""
    dumps, comm = watch.dumps, watch.comm
    own = dumps.read(REFERENCE, comm.rank, WHOLE, step)
    shared = dumps.read(REFERENCE, 0, WHOLE, step)
    if comm.any(not shared):  # on nodes' own disks only rank 0's node has it
        shared = comm.bcast(shared)
    return {key: array for key, array in shared.items() if "@" not in key} | own
