"""What the drills on a real Slurm share: campaigns of the NumPy test double on the private cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from hpcckpt.errors import TraceError
from hpcckpt.experiment import Job
from hpcckpt.records import Record, Start, decode
from hpcckpt.rundir import QUEUED, RUNNING, LegDir, RunDir, State, read_json
from jobs.campaign import Campaign, newest
from jobs.private_slurm.cluster import Cluster
from tests.slurm import until
from tests.support import ROOT

STEP_S = 0.2
ASK_S = 5.0
"""Between two looks through `status`, which costs more than the state file."""


class Drill:
    """One campaign with one run, in a folder of its own."""

    def __init__(self, base: Path, cluster: Cluster) -> None:
        self.base = base
        self.cluster = cluster
        self.site("scratch = \"" + str(base / "scratch") + '"')

    def site(self, *lines: str) -> None:
        """Write the site: the private cluster, with further lines."""
        text = (ROOT / "jobs" / "sites" / "slurm_local.toml").read_text()
        changed = {line.partition("=")[0].strip() for line in lines} | {"private_slurm", "tracer"}
        head, table, environment = text.partition("[environment]")
        kept = [line for line in head.splitlines() if line.partition("=")[0].strip() not in changed]
        body = "\n".join([*kept, 'tracer = "none"', *lines])
        (self.base / "site.toml").write_text(f"{body}\n{table}{environment}")

    def experiment(self, nodes: int, steps: int, slow: bool = True, more: str = "", **settings: Any) -> None:
        """Write the experiment: `slow` steps take STEP_S each, so that something can happen meanwhile."""
        lines = "\n".join(f"{key} = {json.dumps(value)}" for key, value in settings.items())
        sleep = f'[[faults]]\nrank = 0\nat = "step"\naction = "sleep"\nseconds = {STEP_S}\n' if slow else ""
        (self.base / "drill.toml").write_text(
            'name = "drill"\nquestion = "scaling"\nrepeats = 1\n[axes]\nframework = ["numpy_toy"]\nmodel = ["small"]\n'
            f'strategy = ["single_writer"]\nformat = ["npz_plain"]\nnodes = [{nodes}]\nranks_per_node = [2]\n'
            f"interval_steps = [2]\n[settings]\nsteps = {steps}\ndrain_limit_s = 0.0\n{lines}\n{sleep}{more}"
        )

    def jobs(self, *arguments: str, limit_s: float = 180) -> subprocess.CompletedProcess[str]:
        """`python -m jobs ...` as a person types it."""
        environment = {**os.environ, "SLURM_CONF": str(self.cluster.conf), "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "jobs", *arguments]
        options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": limit_s, "check": False}
        return subprocess.run(command, cwd=self.base, env=environment, **options)

    def submit(self, *more: str, limit_s: float = 180) -> subprocess.CompletedProcess[str]:
        return self.jobs("submit", "drill.toml", "--site", "site.toml", *more, limit_s=limit_s)

    @property
    def campaign(self) -> Campaign:
        return newest(self.base / "runs")

    @property
    def run_dir(self) -> RunDir:
        owner = self.campaign
        return owner.run_dir(owner.ledger.runs[0])

    @property
    def state(self) -> State:
        return self.run_dir.read_state()

    @property
    def job(self) -> Job:
        found: Job = read_json(self.run_dir.run, Job)
        return found

    @property
    def job_id(self) -> str:
        return str(json.loads(self.run_dir.submission.read_bytes())["job_id"])

    @property
    def train(self) -> LegDir:
        return self.run_dir.leg("train")

    def records(self, kind: type[Any], rank: int = 0, leg: LegDir | None = None) -> list[Any]:
        """A rank's records of one type, as far as its file goes."""
        return [record for record in _records((leg or self.train).rank_file(rank)) if isinstance(record, kind)]

    def start(self, rank: int) -> Start:
        found: Start = self.records(Start, rank)[0]
        return found

    def until_saved(self, generations: int = 1, limit_s: float = 90) -> None:
        """Wait until so many generations lie in scratch, the newest perhaps half."""
        folder = Path(self.job.scratch) / "train"
        self.until(lambda: len(list(folder.glob("generation-*"))) >= generations, limit_s, f"{generations} saves")

    def until_running(self, limit_s: float = 60) -> None:
        self.until(lambda: self.state.state == RUNNING and self.state.leg == "train", limit_s, "the leg train")

    def until(self, ready: Any, limit_s: float, what: str) -> None:
        def over() -> bool:
            return bool(ready()) or self.state.state not in (QUEUED, RUNNING)

        until(over, limit_s, f"{what}; the run is {self.state.state}")
        assert ready(), f"{what}: the run came to its end first: {self.state}"

    def until_over(self, limit_s: float) -> State:
        """Wait until the run came to an end, as `status` sees it."""

        asked = time.monotonic()

        def over() -> bool:
            nonlocal asked
            if time.monotonic() - asked > ASK_S:
                self.jobs("status")
                asked = time.monotonic()
            return self.state.state not in (QUEUED, RUNNING)

        until(over, limit_s, "the end of the run")
        return self.state

    def completes(self, *more: str) -> None:
        """`resume` brings the campaign to its end, and no process of it is left."""
        done = self.jobs("resume", "--wait", *more, limit_s=300)
        assert done.returncode == 0, done.stdout + done.stderr
        self.nothing_left()

    def nothing_left(self, limit_s: float = 15) -> None:
        until(lambda: not self.processes(), limit_s, f"no process of the run; left: {self.processes()}")

    def processes(self) -> list[str]:
        """Whatever runs on this machine for the run: all nodes share its process numbers."""
        found = []
        for process in psutil.process_iter(["cmdline", "status"]):
            line = " ".join(process.info["cmdline"] or [])
            if str(self.run_dir.path) in line and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.append(line)
        return found


def _records(path: Path) -> list[Record]:
    found = []
    for line in path.read_bytes().splitlines() if path.exists() else []:
        try:
            found.append(decode(line))
        except TraceError:
            break
    return found
