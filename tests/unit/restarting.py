"""Tests of restart played in one process: ranks are threads, legs run one after the other as the driver would."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from hpcckpt import rank as ranks
from hpcckpt.comm import Comm
from hpcckpt.experiment import Axes, Experiment, Fault, Job, Settings, check, runs
from hpcckpt.records import RestartReport
from hpcckpt.restart.spec import Restart
from hpcckpt.rundir import RunDir, read_json, write_json
from hpcckpt.tracing.spans import Trace
from jobs.restarts import Sequel


class _Ring:
    """What threads that play ranks share."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.barrier = threading.Barrier(size, timeout=60)
        self.slots: list[Any] = [None] * size


class ThreadComm(Comm):
    """One rank of several that are threads of this process."""

    thread_level = "multiple"

    def __init__(self, ring: _Ring, rank: int) -> None:
        super().__init__("poll")
        self._ring, self.rank, self.size = ring, rank, ring.size

    def barrier(self) -> None:
        self._ring.barrier.wait()

    settle = barrier

    def allgather(self, value: Any) -> list[Any]:
        self._ring.slots[self.rank] = value
        self.barrier()
        found = copy.deepcopy(self._ring.slots)  # threads share memory, and ranks don't
        self.barrier()
        return found

    def gather(self, value: Any, root: int = 0) -> list[Any] | None:
        found = self.allgather(value)
        return found if self.rank == root else None

    def gather_within(self, value: Any, root: int, division: str) -> list[Any] | None:
        mine = [each for where, each in self.allgather((root, value)) if where == root]
        return mine if self.rank == root else None

    def bcast(self, value: Any, root: int = 0) -> Any:
        return self.allgather(value)[root]

    def any(self, flag: bool) -> bool:
        return any(self.allgather(flag))

    def mean(self, array: np.ndarray) -> np.ndarray:
        parts = self.allgather(array)
        total = parts[0].copy()
        for part in parts[1:]:
            total += part
        mean: np.ndarray = total / self.size
        return mean

    def abandon_all(self) -> None:
        self._ring.barrier.abort()


def job(
    base: Path, faults: list[Fault] | None = None, nodes: int = 2, settings: dict[str, Any] | None = None,
    restart: dict[str, Any] | None = None, **axes: Any,
) -> tuple[RunDir, Job]:  # fmt: skip
    """A run directory of one test of restart."""
    chosen = {"framework": "numpy_toy", "strategy": "single_writer", "format": "npz_plain", "interval_steps": 2, **axes}
    experiment = Experiment(
        name="restart",
        question="restart_determinism",
        axes=Axes(nodes=[nodes], **{key: [value] for key, value in chosen.items()}),
        repeats=1,
        settings=Settings(
            **{"steps": 6, "batch_per_rank": 4, "drain_limit_s": 0.0, **(settings or {})},
            restart=Restart(**{"stop": 2, **(restart or {})}),
        ),
        faults=faults or [],
    )
    check(experiment)
    run = runs(experiment, {"site": "local"})[0]
    paths = RunDir(base / run.run_id)
    made = Job(run=run, campaign="c", site={}, scratch=str(base / "scratch"), virtual_nodes=True, tracer="none")
    write_json(paths.run, made)
    return paths, made


def play(base: Path, faults: list[Fault] | None = None, **changes: Any) -> tuple[RestartReport, list[str]]:
    """(what was found, the legs that were run)."""
    paths, made = job(base, faults, **changes)
    sequel = Sequel(paths, made)
    legs = []
    for name in made.run.legs:
        run_leg(paths, made, name)
        sequel.after(name)
        legs.append(name)
    while more := sequel.following():
        run_leg(paths, sequel.job_of(more[0]), more[0])
        sequel.after(more[0])
        legs += more
    sequel.write()
    return read_json(paths.restart, RestartReport), legs


def run_leg(paths: RunDir, made: Job, name: str) -> None:
    """All ranks of one leg; raises what the first rank that failed raised."""
    ring = _Ring(made.run.ranks)
    failures: list[BaseException] = []
    shared = (paths, made, name, ring)
    threads = [
        threading.Thread(target=_rank, args=(*shared, rank, failures.append), name=f"rank{rank}")
        for rank in range(ring.size)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    real = [failure for failure in failures if not isinstance(failure, threading.BrokenBarrierError)]
    if failures:
        raise (real or failures)[0]


def _rank(
    paths: RunDir, made: Job, name: str, ring: _Ring, rank: int, fail: Callable[[BaseException], None]
) -> None:
    comm = ThreadComm(ring, rank)
    faults = ranks.planted(made, rank, name)
    trace = Trace(paths.leg(name).rank_file(rank), faults.at)
    try:
        leg = ranks.compose(made, name, comm, trace, faults, paths.stop, 1)
        ranks.measure(leg, made, name, paths, time.monotonic_ns())
        trace.close("ok")
    except BaseException as error:
        trace.close("failed", str(error))
        comm.abandon_all()
        fail(error)
