"""Synthetic run directories whose truth is known: written through hpcckpt.records and hpcckpt.rundir.

A `Plan` says what happened, in seconds of one common clock; `plant` writes the run directory that
ranks would have left. The I/O trace is either genuine Darshan logs or a side file that `read_trace`
here reads. `python -m tests.unit.planted DIRECTORY` writes the golden run of schema 1.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import polars as pl

from analysis.readers.trace import Calls, RankTrace, Traced
from hpcckpt import records as r
from hpcckpt.experiment import Fault, Job, Point, Run, Settings
from hpcckpt.rundir import DONE, LegDir, RunDir, write_bytes, write_json

BASE_NS = 1_000_000_000_000
SIDE_FILE = "planted.json"


@dataclass(frozen=True)
class Plan:
    """One run. Times in seconds on the common clock; the same in every generation."""

    nodes: int = 2
    ranks_per_node: int = 1
    repeat: int = 1
    campaign: str = "planted"
    framework: str = "numpy_toy"
    model: str = "small"
    parameters: int = 1234567
    strategy: str = "single_writer"
    format: str = "npz_plain"
    interval_steps: int = 2
    durable: bool = False
    generations: int = 3
    steps_s: float = 0.1
    gather_s: float = 0.01
    serialize_s: float = 0.02
    write_s: float = 0.05
    commit_s: float = 0.001
    sync_s: float = 0.0
    writers: tuple[int, ...] = (0,)
    file_bytes: int = 10_000_000
    rss_before: int | None = 10**8
    rss_extra: dict[int, int] = field(default_factory=dict)
    """Rank -> by how much its resident memory grows in each save; 10**8 on those that are not named."""
    traced_share: float = 1.0
    one_directory: bool = False
    log: str = "planted"
    """none, planted or darshan."""
    late_s: dict[int, float] = field(default_factory=dict)
    """Rank -> how much later it comes to the barrier before each save."""
    slow_s: dict[int, float] = field(default_factory=dict)
    """Rank -> what it sleeps inside each save, in its gather."""
    fsync_s: dict[tuple[int, int], float] = field(default_factory=dict)
    """(rank, generation) -> what the fsync takes longer there and then."""
    unheld: tuple[int, ...] = ()
    """Ranks that the others do not wait for: these may still work when the others go on."""
    bytes_of: dict[int, int] = field(default_factory=dict)
    """Writer -> size of its file where it is not `file_bytes`."""
    share_of: dict[int, float] = field(default_factory=dict)
    """Writer -> share of its file that the trace sees, where it is not `traced_share`."""
    calls: int = 2
    """Write calls per file: two overlap, more follow each other."""
    tensors: tuple[str, ...] = ("a", "b")
    copies: bool = True
    """Whether all writers hold the same contents."""
    gap_s: dict[int, float] = field(default_factory=dict)
    """Rank -> time inside each save that no span explains."""
    offset_ns: dict[int, int] = field(default_factory=dict)
    """Rank -> what to add to its own clock for rank 0's."""
    digest: dict[int, str] = field(default_factory=dict)
    digest_reason: str | None = None
    verified: bool | None = True
    faults: list[Fault] = field(default_factory=list)
    commit: str | None = "c0ffee" * 6 + "c0ff"
    expected_coverage: str | None = None
    control: bool = True
    step_extra_s: float = 0.0
    """What each step of the train leg takes longer than the control's."""
    pause_s: float = 0.0
    probe_reason: str | None = None
    virtual_nodes: bool = True
    state: str = DONE
    started: float = 0.0

    @property
    def ranks(self) -> int:
        return self.nodes * self.ranks_per_node

    @property
    def run_id(self) -> str:
        kind = "durable" if self.durable else "buffered"
        tag = "f" if self.faults else "x"
        toy = "toy" if (self.framework, self.model) == ("numpy_toy", "small") else f"{self.framework}-{self.model}"
        return f"{toy}-{self.strategy}-n{self.nodes:03d}x{self.ranks_per_node}-{kind}-{tag}-r{self.repeat:02d}"


def ns(seconds: float) -> int:
    """Whole nanoseconds."""
    return round(seconds * 1e9)


def plant(root: Path, plan: Plan) -> Path:
    """Write the run below `root/CAMPAIGN`; returns its directory."""
    directory = RunDir(root / plan.campaign / plan.run_id)
    legs = [r.CONTROL, r.TRAIN] if plan.control else [r.TRAIN]
    write_json(directory.run, _job(plan, legs))
    if plan.commit is not None:
        write_json(directory.manifest, {"code": {"commit": plan.commit, "modified": False}})
    for leg in legs:
        _Leg(plan, directory.leg(leg)).write()
    directory.write_state(state="queued")
    if plan.state != "queued":
        directory.write_state(state="running")
        directory.write_state(state=plan.state, started=plan.started or None, ended=plan.started + 10 or None)
    return directory.path


def plant_all(root: Path, plans: Sequence[Plan]) -> Path:
    """Write the runs and their campaign's ledger; returns the campaign's directory."""
    for plan in plans:
        plant(root, plan)
    campaign = root / plans[0].campaign
    write_json(campaign / "campaign.json", {"runs": [plan.run_id for plan in plans]})
    return campaign


def _job(plan: Plan, legs: list[str]) -> Job:
    coverage = {"expected_coverage": plan.expected_coverage} if plan.expected_coverage else {}
    point = Point(
        framework=plan.framework,
        model=plan.model,
        strategy=plan.strategy,
        format=plan.format,
        nodes=plan.nodes,
        ranks_per_node=plan.ranks_per_node,
        interval_steps=plan.interval_steps,
        durable=plan.durable,
    )
    run = Run(
        run_id=plan.run_id,
        experiment="planted",
        point=point,
        repeat=plan.repeat,
        legs=legs,
        settings=Settings(steps=plan.generations * plan.interval_steps + 1),
        faults=plan.faults,
        identity={"site": "local", **coverage},
    )
    return Job(
        run=run,
        campaign=plan.campaign,
        site={"name": "local"},
        scratch="/scratch/planted",
        virtual_nodes=plan.virtual_nodes,
        tracer="planted",
    )


class _Leg:
    """Plays one leg on the common clock and writes each rank's part on the rank's own."""

    def __init__(self, plan: Plan, leg: LegDir) -> None:
        self.plan, self.leg = plan, leg
        self.train = leg.name == r.TRAIN
        self.now = BASE_NS
        self.records: dict[int, list[r.Record]] = {rank: [] for rank in range(plan.ranks)}
        self.calls: dict[int, list[tuple[str, int, int, int]]] = {rank: [] for rank in range(plan.ranks)}
        """rank -> (file, begin, end, bytes) on its own clock."""

    def write(self) -> None:
        self._each(self._opening)
        self._step(0)
        self._each(lambda rank: [self._replica(rank, 0, "after_first_step")])
        begin, generation, paused = self.now, 0, 0
        steps = self.plan.generations * self.plan.interval_steps
        for index in range(1, steps + 1):
            self._step(index)
            if index % self.plan.interval_steps:
                continue
            if self.train:
                self._save(generation, index)
            generation += 1
            self._each(lambda rank, at=index: [self._replica(rank, at, "save")])
            paused += ns(self.plan.pause_s)
            self.now += ns(self.plan.pause_s)
        saves = generation if self.train else 0
        self._each(lambda rank: [self._window(rank, begin, steps, saves, paused)])
        self._each(self._closing)
        for rank, lines in self.records.items():
            write_bytes(self.leg.rank_file(rank), b"".join(map(r.encode, lines)))
        if self.train:
            self._inventory()
            self._logs()

    def own(self, rank: int, common_ns: int) -> int:
        return common_ns - self.plan.offset_ns.get(rank, 0)

    def directory(self, generation: int) -> str:
        name = "generations" if self.plan.one_directory else f"generation-{generation:05d}"
        return f"/scratch/planted/{self.leg.name}/{name}"

    def _each(self, make: object) -> None:
        for rank, lines in self.records.items():
            lines.extend(make(rank))  # type: ignore[operator]

    def _opening(self, rank: int) -> list[r.Record]:
        plan = self.plan
        node = rank // plan.ranks_per_node
        offset = plan.offset_ns.get(rank, 0)
        t = self.own(rank, self.now)
        start = r.Start(
            schema_version=1,
            t_ns=t,
            run_id=plan.run_id,
            leg=self.leg.name,
            rank=rank,
            size=plan.ranks,
            node=f"virtual{node:03d}" if plan.virtual_nodes else f"host{node:03d}",
            virtual_node=plan.virtual_nodes,
            host="host000",
            pid=1000 + rank,
            boot_id="boot",
            cores=2,
            ranks_on_host=plan.ranks,
            threads=1,
            thread_level="multiple",
            versions={},
            data="seeded synthetic images",
            parameters=plan.parameters,
            barrier="poll",
        )
        method, error = ("ping_pong", 5_000) if plan.offset_ns else ("same_boot", 0)
        clock = r.Clock(t_ns=t, offset_ns=offset, error_ns=error, method=method)
        found: list[r.Record] = [start, clock]
        if rank == 0:
            reason = plan.probe_reason
            found.append(
                r.Probe(
                    host="host000",
                    path="/scratch",
                    filesystem="ext4",
                    mount_options="rw",
                    count=50,
                    median_s=None if reason else 0.004,
                    max_s=None if reason else 0.009,
                    reason=reason,
                )
            )
        beacon = f"/scratch/planted/{self.leg.name}/.beacon.{rank:05d}"
        self.calls[rank].append((beacon, t + 10_000, t + 20_000, 1))
        return [*found, r.Beacon(path=beacon, before_ns=t + 5_000, after_ns=t + 25_000)]

    def _step(self, index: int) -> None:
        begin = self.now
        self.now += ns(self.plan.steps_s + (self.plan.step_extra_s if self.train else 0))
        self._each(
            lambda rank: [
                r.Step(index=index, begin_ns=self.own(rank, begin), end_ns=self.own(rank, self.now), loss=1.0)
            ]
        )

    def _replica(self, rank: int, step: int, where: str) -> r.Record:
        return r.Replica(
            step=step,
            where=where,
            digest=self.plan.digest.get(rank, "d"),
            equal=None,
            reason=self.plan.digest_reason,
        )

    def _window(self, rank: int, begin: int, steps: int, saves: int, paused: int) -> r.Record:
        own = self.own
        return r.Window(
            begin_ns=own(rank, begin), end_ns=own(rank, self.now), steps=steps, saves=saves, paused_ns=paused
        )

    def _phases(self, rank: int, generation: int) -> list[tuple[str, float]]:
        plan = self.plan
        gather = plan.gather_s + plan.slow_s.get(rank, 0.0)
        if rank not in plan.writers:
            return [(r.GATHER, gather)]
        save = (r.SERIALIZE_WRITE, plan.serialize_s + plan.write_s)
        sync = plan.sync_s + plan.fsync_s.get((rank, generation), 0.0)
        return [(r.GATHER, gather), save, (r.SYNC, sync), (r.COMMIT, plan.commit_s)]

    def _save(self, generation: int, step: int) -> None:
        plan = self.plan
        arrive = {rank: self.now + ns(plan.late_s.get(rank, 0.0)) for rank in self.records}
        begin = max(arrive.values())
        spans: dict[int, list[tuple[str, int, int]]] = {}
        done: dict[int, int] = {}
        for rank in self.records:
            t = begin + ns(plan.gap_s.get(rank, 0.0))
            spans[rank] = []
            for phase, seconds in self._phases(rank, generation):
                if seconds:
                    spans[rank].append((phase, t, t + ns(seconds)))
                    t += ns(seconds)
            done[rank] = t
        released = max(t for rank, t in done.items() if rank not in plan.unheld)
        for rank in self.records:
            end = max(released, done[rank])
            spans[rank] += [(r.WAIT_BEFORE, arrive[rank], begin), (r.WAIT_AFTER, done[rank], end)]
            self._save_records(rank, generation, step, spans[rank], (arrive[rank], begin, done[rank], end))
        self.now = max(done.values())

    def _save_records(
        self,
        rank: int,
        generation: int,
        step: int,
        spans: list[tuple[str, int, int]],
        times: tuple[int, int, int, int],
    ) -> None:
        plan, lines = self.plan, self.records[rank]
        for phase, begin, end in spans:
            own = (self.own(rank, begin), self.own(rank, end))
            lines.append(r.Span(generation=generation, phase=phase, begin_ns=own[0], end_ns=own[1]))
            if phase == r.SERIALIZE_WRITE:
                self._write_calls(rank, generation, own[1])
        arrive, begin, done, end = (self.own(rank, t) for t in times)
        sizes = {writer: plan.bytes_of.get(writer, plan.file_bytes) for writer in plan.writers}
        lines.append(
            r.Save(
                generation=generation,
                step=step,
                directory=self.directory(generation),
                arrive_ns=arrive,
                begin_ns=begin,
                done_ns=done,
                end_ns=end,
                state_bytes=sum(sizes.values()),
                planned_bytes=sizes.get(rank, 0),
                rss_before_bytes=plan.rss_before,
                rss_peak_bytes=None if plan.rss_before is None else plan.rss_before + plan.rss_extra.get(rank, 10**8),
                rss_reason="planted" if plan.rss_before is None else None,
                write_chars_bytes=None,
                storage_bytes=None,
                io_reason="planted",
            )
        )

    def _write_calls(self, rank: int, generation: int, end: int) -> None:
        """Two calls that overlap: their union is the plan's write time, their sum is not; or more, one by one."""
        plan = self.plan
        write = ns(plan.write_s)
        file = f"{self.directory(generation)}/{generation}-rank{rank:05d}.npz"
        traced = round(plan.bytes_of.get(rank, plan.file_bytes) * plan.share_of.get(rank, plan.traced_share))
        if plan.calls > 2:
            times = [end - write + write * call // plan.calls for call in range(plan.calls + 1)]
            sizes = [traced * call // plan.calls for call in range(plan.calls + 1)]
            parts = zip(pairwise(times), pairwise(sizes), strict=True)
            self.calls[rank] += [(file, first, last, after - before) for (first, last), (before, after) in parts]
            return
        half = traced // 2
        first, second = (end - write, end - write + write * 6 // 10), (end - write + write * 4 // 10, end)
        self.calls[rank] += [(file, *first, half), (file, *second, traced - half)]

    def _closing(self, rank: int) -> list[r.Record]:
        t = self.own(rank, self.now)
        found: list[r.Record] = []
        if self.train and rank == 0:
            drain = {"dirty_before_bytes": 1, "dirty_after_bytes": 0, "reached": True}
            found.append(r.Drain(when="after_last_save", seconds=0.25, **drain))  # type: ignore[arg-type]
            for generation in (0, self.plan.generations - 1) if self.plan.generations else ():
                equal = self.plan.verified
                reason = None if equal else ("not verified: planted" if equal is None else "w differs")
                found.append(r.Verified(generation=generation, equal=equal, tensors=4, reason=reason))
        clock = next(line for line in self.records[rank] if isinstance(line, r.Clock))
        return [*found, msgspec.structs.replace(clock, t_ns=t), r.End(t_ns=t, status="ok")]

    def _inventory(self) -> None:
        plan = self.plan
        rows = [
            {
                "generation": generation,
                "step": (generation + 1) * plan.interval_steps,
                "file": f"generation-{generation:05d}/{generation}-rank{rank:05d}.npz",
                "rank": rank,
                "node": f"virtual{rank // plan.ranks_per_node:03d}",
                "file_bytes": plan.bytes_of.get(rank, plan.file_bytes),
                "format": plan.format,
                "tensor": tensor,
                "kind": "parameter",
                "dtype": "float32",
                "shape": "[8]",
                "offset_bytes": 0,
                "tensor_bytes": 32,
                "storage_bytes": 32,
                "digest": "d" if plan.copies else f"{tensor}{rank}",
                "replica_group": "all",
            }
            for generation in range(plan.generations)
            for rank in plan.writers
            for tensor in plan.tensors
        ]
        kinds = {"int64": pl.Int64, "string": pl.String}
        schema = {name: kinds[kind] for name, kind in r.INVENTORY_COLUMNS.items()}
        pl.DataFrame(rows, schema=schema).write_parquet(self.leg.inventory)

    def _logs(self) -> None:
        for rank, calls in self.calls.items():
            if self.plan.log == "planted":
                data = json.dumps(calls).encode()
                write_bytes(self.leg.rank_darshan(rank) / SIDE_FILE, data)
            elif self.plan.log == "darshan":
                path = self.leg.rank_darshan(rank) / f"planted_id1-{1000 + rank}_1-1-1-1_1.darshan"
                write_darshan(path, calls, self.own(rank, BASE_NS) - 12_345_678)


def write_darshan(path: Path, calls: Sequence[tuple[str, int, int, int]], zero_ns: int) -> None:
    """A genuine log of these write calls; its clock starts at `zero_ns` of the rank's."""
    from hpcckpt.tracing import darshan_log as log
    from hpcckpt.tracing.iotrace_convert import record_id

    path.parent.mkdir(parents=True, exist_ok=True)
    by_file: dict[str, list[tuple[int, int, float, float]]] = {}
    for file, begin, end, size in calls:
        by_file.setdefault(file, []).append((0, size, (begin - zero_ns) / 1e9, (end - zero_ns) / 1e9))
    files = sorted(by_file)
    posix = log.unmeasured(log.load().posix, len(files))
    segments = b""
    for row, file in zip(posix, files, strict=True):
        mine = by_file[file]
        row["id"], row["rank"], row["POSIX_WRITES"] = record_id(file), 0, len(mine)
        row["POSIX_BYTES_WRITTEN"] = sum(size for _, size, _, _ in mine)
        for counter in ("POSIX_OPENS", "POSIX_FILENOS", "POSIX_DUPS", "POSIX_RENAMED_FROM", "POSIX_MMAPS"):
            row[counter] = 0
        segments += log.dxt_record(record_id(file), "host000", np.array(mine, dtype=log.SEGMENT))
    job = log.Job(start_ns=10**18, end_ns=2 * 10**18, jobid=1, exe="python", metadata={"lib_ver": "planted"})
    names = {record_id(file): file for file in files}
    log.write_log(path, job, names, {log.POSIX: posix.tobytes(), log.DXT_POSIX: segments})


def read_trace(
    directory: Path, start: r.Start, beacons: Sequence[r.Beacon], saves: Sequence[r.Save]
) -> RankTrace:
    """Reads the side file in place of Darshan logs: same answer, no library."""
    file = directory / SIDE_FILE
    if not file.exists():
        return RankTrace(reason="no I/O log of this rank")
    calls = json.loads(file.read_text())
    generations = {}
    for save in saves:
        mine = [call for call in calls if call[0].startswith(save.directory + "/")]
        begin, end, length = (np.array([call[i] for call in mine], dtype=np.int64) for i in (1, 2, 3))
        found = Calls(begin_ns=begin, end_ns=end, length=length)
        generations[save.generation] = Traced(bytes=int(length.sum()), calls=found)
    return RankTrace(generations=generations)


GOLDEN = Plan(generations=2, campaign="golden", file_bytes=4096, log="darshan")


if __name__ == "__main__":
    print(plant(Path(sys.argv[1]), GOLDEN))
