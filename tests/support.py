"""What tests of ranks share: a run directory for one run, and real mpirun launches of its legs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

from hpcckpt.experiment import Axes, Experiment, Fault, Job, Point, Run, Settings, runs
from hpcckpt.records import End, Record, Replica, Save, Span, decode
from hpcckpt.rundir import RunDir, write_json
from jobs import launchers

ROOT = Path(__file__).resolve().parent.parent


def make_run(faults: list[Fault] | None = None, settings: dict[str, Any] | None = None, **axes: Any) -> Run:
    """One run of the NumPy test double, or of what `axes` (single values) say."""
    chosen = {
        "framework": "numpy_toy",
        "strategy": "single_writer",
        "format": "npz_plain",
        "nodes": 2,
        **axes,
    }
    experiment = Experiment(
        name="test",
        question="Does it hold?",
        axes=msgspec.convert({key: [value] for key, value in chosen.items()}, Axes),
        repeats=1,
        settings=msgspec.convert({"drain_limit_s": 0.0, **(settings or {})}, Settings),
        faults=faults or [],
    )
    return runs(experiment, {"site": "local"})[0]


def make_run_dir(base: Path, run: Run) -> RunDir:
    """A run directory that ranks can be started on; its checkpoints go to `base/scratch`."""
    paths = RunDir(base / run.run_id)
    job = Job(
        run=run, campaign="test", site={}, scratch=str(base / "scratch"), virtual_nodes=True, tracer="none"
    )
    write_json(paths.run, job)
    return paths


def mpirun(
    ranks: int, program: list[str], timeout_s: float = 240, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Start `program` (arguments of Python) on so many ranks of this machine."""
    found = launchers.find("mpirun")
    point = Point(
        framework="",
        model="",
        strategy="",
        format="",
        nodes=ranks,
        ranks_per_node=1,
        interval_steps=1,
        durable=False,
    )
    command = launchers.argv(found, point, True, [], [sys.executable, *program])
    env = launchers.environment(
        found, os.environ, {"OMPI_MCA_btl": "^ofi", **environment}, local=True, crowded=True
    )
    env["PYTHONPATH"] = str(ROOT)
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=timeout_s, check=False)


def launch(paths: RunDir, run: Run, leg: str = "train") -> subprocess.CompletedProcess[str]:
    """Start the ranks of one leg, as the driver would but without a tracer."""
    return mpirun(run.ranks, ["-m", "hpcckpt.rank", str(paths.path), leg])


def trace(paths: RunDir, rank: int, leg: str = "train") -> list[Record]:
    """All records of a rank; fails where a line is not one."""
    return [decode(line) for line in paths.leg(leg).rank_file(rank).read_bytes().splitlines()]


def of(records: list[Record], kind: type[Any]) -> list[Any]:
    """The records of one type."""
    return [record for record in records if isinstance(record, kind)]


def stall_s(save: Save) -> float:
    return (save.end_ns - save.begin_ns) / 1e9


def phase_s(records: list[Record], phase: str, generation: int) -> float:
    """Seconds of one phase of one save."""
    spans = (s for s in of(records, Span) if s.phase == phase and s.generation == generation)
    return sum(s.end_ns - s.begin_ns for s in spans) / 1e9


def closing(records: list[Record]) -> End:
    """The closing line; fails where there is none."""
    assert isinstance(records[-1], End), f"no closing line, last is {records[-1]}"
    return records[-1]


__all__ = [
    "Replica",
    "closing",
    "launch",
    "make_run",
    "make_run_dir",
    "mpirun",
    "of",
    "phase_s",
    "stall_s",
    "trace",
]
