"""How a rank begins a leg that restores: agree on a generation, make the read cold, read, take over, graft.

Which kinds a transplant takes is in the leg's name; when the leg is launched is the driver's business.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from hpcckpt.comm import clock
from hpcckpt.continuation import completed, newest_common
from hpcckpt.errors import RunError
from hpcckpt.experiment import Job
from hpcckpt.leg import Leg
from hpcckpt.planting import RESTORE
from hpcckpt.records import STATE_KINDS, TRAIN, Restored, Save
from hpcckpt.restart.compare import FRESH, LOADED
from hpcckpt.restart.damage import damaged
from hpcckpt.restart.spec import ELSEWHERE, EVERYTHING, last_step, restores, transplanted
from hpcckpt.restart.transplants import JOIN
from hpcckpt.restart.watch import Watch, graft
from hpcckpt.rundir import RunDir
from hpcckpt.strategies.base import Strategy
from hpcckpt.tracing.residency import cached_fraction


@dataclass(frozen=True)
class Birth:
    """When this rank's process came to what."""

    born_ns: int
    ready_ns: int


def prepare(leg: Leg, job: Job, leg_name: str, paths: RunDir, birth: Birth) -> None:
    """Watch the leg, end it where it has to end, and let it begin with a checkpoint where it is one that restores."""
    restart, scratch = job.run.settings.restart, Path(job.scratch)
    assert restart is not None
    leg.watch = Watch(leg_name, restart, leg.comm, leg.framework, leg.trace, scratch, paths)
    leg.last_step = last_step(leg_name, restart, job.run.settings.steps)
    if restores(leg_name):
        assert leg.strategy is not None
        strategy, leg.strategy = leg.strategy, None  # it saves nothing
        begin(leg, leg_name, strategy, paths, scratch, birth)


def begin(leg: Leg, leg_name: str, strategy: Strategy, paths: RunDir, scratch: Path, birth: Birth) -> None:
    """Restore what the train leg saved, and set where training goes on. A collective."""
    watch = leg.watch
    assert watch is not None
    source = replace(leg, strategy=strategy, root=scratch / TRAIN)
    save = _newest(source, leg_name, paths)
    directory = source.directory(save.generation)
    files = strategy.reads(directory)
    watch.behind_restore(FRESH, save.step)
    fresh = _fresh(leg)
    strategy.prepare()
    leg.comm.settle()
    make_cold(files)
    leg.comm.settle()
    cached = cached_fraction(files)
    leg.comm.settle()  # or one rank's look would see what another one reads
    begun = clock()
    if leg.faults.state:
        lacking, planted = _damaged_resume(leg, strategy, directory, save.step, fresh)
    else:
        lacking, planted = strategy.resume(directory, save.step), []
    ended = clock()
    taken = _transplant(watch, leg_name, save.step)
    leg.trace.add(
        Restored(
            born_ns=birth.born_ns,
            ready_ns=birth.ready_ns,
            begin_ns=begun,
            end_ns=ended,
            generation=save.generation,
            step=save.step,
            cached=cached,
            lacking=lacking,
            transplanted=taken,
            faults=planted,
        )
    )
    watch.behind_restore(LOADED, save.step)
    leg.trace.flush()
    leg.first_step = save.step + 1
    leg.comm.settle()


def _newest(source: Leg, leg_name: str, paths: RunDir) -> Save:
    """The newest generation that all ranks saw complete; ranks that the train leg had not follow its rank 0."""
    assert source.strategy is not None
    rank = 0 if leg_name.startswith(ELSEWHERE) else source.comm.rank
    mine = completed([paths.leg(TRAIN)], rank)
    generation = newest_common(source, mine)
    if generation is None:
        raise RunError("the train leg completed no checkpoint: there is nothing to restart from")
    return mine[generation]


def _fresh(leg: Leg) -> dict[str, np.ndarray]:
    """The values of a start without a restore, where a fault will put some of them back. A collective."""
    if not any(fault.at == RESTORE for fault in leg.run.faults):
        return {}
    return {e.key: e.data.copy() for e in leg.framework.full_state() if e.data is not None}


def make_cold(files: Iterable[Path]) -> None:
    """Write the files back and ask the kernel to drop their pages; what that did, a look at residency tells."""
    for path in files:
        with suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def _damaged_resume(
    leg: Leg, strategy: Strategy, directory: Path, step: int, fresh: dict[str, np.ndarray]
) -> tuple[list[str], list[str]]:
    """`Strategy.resume` with the planted faults between reading and loading."""
    framework = leg.framework
    loaded = strategy.restore(directory, step)
    live = {entry.key: entry for entry in framework.full_state()}
    kinds = {key: entry.kind for key, entry in live.items()} | {key: kind_of(key) for key in loaded if key not in live}
    lacking = sorted(key for key in live if key not in loaded)
    arrays = {key: e.data for key, e in live.items() if e.data is not None and key not in loaded} | loaded
    words = []
    for fault in leg.faults.state:
        if fault.action == "reorder":
            framework.reorder()
            words.append("gradients summed in another order")
            continue
        arrays, said = damaged(arrays, fresh, kinds, fault, leg.comm.rank)
        words.append(said)
    framework.load(arrays)
    return lacking, words


def kind_of(key: str) -> str:
    """Kind of an entry that a fresh start has not made yet: state of the optimizer, or what ranks hold alone."""
    return {"optimizer": "optimizer", "model": "parameter", "rng": "rng"}.get(key.partition(".")[0], "other")


def _transplant(watch: Watch, leg_name: str, step: int) -> list[str]:
    kinds = transplanted(leg_name)
    if kinds is None:
        return []
    return graft(watch, list(STATE_KINDS) if kinds == EVERYTHING else kinds.split(JOIN), step)
