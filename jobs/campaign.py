"""A campaign: one submission of an experiment at a site, on disk as a directory with a ledger.

Finds or makes the directory of a plan, and tells which runs are left. Starts nothing; `submission`
does. The ledger is written once, under the campaign's lock; afterwards only the runs' own state files
change.
"""

from __future__ import annotations

import re
import shutil
import time
from pathlib import Path
from typing import Any

import msgspec

from hpcckpt.errors import SpecError
from hpcckpt.experiment import Experiment, Job
from hpcckpt.rundir import (
    DONE,
    FAILED,
    INTERRUPTED,
    QUEUED,
    RUNNING,
    CampaignDir,
    RunDir,
    State,
    read_json,
    write_json,
)
from jobs import preflight, process
from jobs.plan import Plan, Skipped


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """What `campaign.json` holds."""

    name: str
    experiment: Experiment
    """As this site runs it, with everything that the command line changed."""
    experiment_file: str
    site: dict[str, Any]
    scratch: str
    tracer: str
    order_seed: int
    runs: list[str]
    """Run ids in the order of their submission, shuffled within each repeat by the seed."""
    skipped: list[Skipped]
    created: float


class Campaign:
    """A campaign on disk."""

    def __init__(self, path: Path) -> None:
        self.paths = CampaignDir(path.absolute())
        self.ledger: Ledger = read_json(self.paths.ledger, Ledger)

    @property
    def name(self) -> str:
        return self.paths.path.name

    def run_dir(self, run_id: str) -> RunDir:
        return self.paths.run(run_id)

    def states(self) -> dict[str, State]:
        """Every run's state, in the campaign's order."""
        return {run_id: self.run_dir(run_id).read_state() for run_id in self.ledger.runs}

    def finished(self) -> bool:
        """Whether nothing is left to do without being told to retry."""
        return all(state.state in (DONE, FAILED) for state in self.states().values())

    def pending(self, retry: bool) -> list[str]:
        """Runs that a submission must still do; those with a live driver are left to it."""
        return [run_id for run_id, state in self.states().items() if _is_pending(state, retry)]


def _is_pending(state: State, retry: bool) -> bool:
    if state.state == RUNNING:
        return not process.lives(state.driver_pid, state.driver_host, state.driver_start)
    return state.state in (QUEUED, INTERRUPTED) or (retry and state.state == FAILED)


def candidates(runs_dir: Path, name: str) -> list[Path]:
    """Directories of campaigns of this name, oldest first: NAME, NAME-2, NAME-3 ..."""
    if not runs_dir.is_dir():
        return []
    numbered = {}
    for path in runs_dir.iterdir():
        match = re.fullmatch(re.escape(name) + r"(?:-(\d+))?", path.name)
        if match and (path / "campaign.json").exists():
            numbered[int(match[1] or 1)] = path
    return [numbered[number] for number in sorted(numbered)]


def newest(runs_dir: Path) -> Campaign:
    """The campaign that was begun last. Raises SpecError where there is none."""
    ledgers = sorted(runs_dir.glob("*/campaign.json"), key=lambda path: path.stat().st_mtime)
    if not ledgers:
        raise SpecError(
            f"{runs_dir}: no campaign here; 'python -m jobs submit' begins one, --runs looks elsewhere"
        )
    return Campaign(ledgers[-1].parent)


def place(plan: Plan, runs_dir: Path, new: bool) -> tuple[Path, bool]:
    """(directory, whether it exists): the newest unfinished campaign with these very runs, else a fresh name.

    Runs whose identity differs (other versions, another tracer or file system) make another campaign.
    """
    existing = candidates(runs_dir, plan.name)
    wanted = {run.run_id for run in plan.runs}
    same = [c for c in map(Campaign, existing) if set(c.ledger.runs) == wanted]
    unfinished = [c for c in same if not c.finished()]
    if not new and same:
        return (unfinished or same)[-1].paths.path, True
    number = len(existing) + 1
    while _begun(path := runs_dir / (plan.name if number == 1 else f"{plan.name}-{number}")):
        number += 1
    return path, False


def difference(owner: Campaign, plan: Plan) -> str:
    """In which facts the runs of a campaign differ from those of a plan, in words."""
    job: Job = read_json(owner.run_dir(owner.ledger.runs[0]).run, Job)
    same = [run for run in plan.runs if (run.point, run.repeat) == (job.run.point, job.run.repeat)]
    now = same[0].identity if same else {}
    keys = [key for key in job.run.identity if now.get(key) != job.run.identity[key]]
    return "; ".join(f"{key} {job.run.identity[key]!r}, now {now.get(key)!r}" for key in keys) or "other runs"


def _begun(path: Path) -> bool:
    return (path / "campaign.json").exists()


def jobs_of(plan: Plan, path: Path) -> list[Job]:
    """What the runs' `run.json` will hold."""
    return [
        Job(
            run=run,
            campaign=path.name,
            site=msgspec.to_builtins(plan.site),
            scratch=str(plan.scratch / path.name / run.run_id),
            virtual_nodes=plan.site.virtual_nodes,
            tracer=plan.tracer,
        )
        for run in plan.runs
    ]


def create(plan: Plan, path: Path) -> Campaign:
    """Write the runs and then the ledger: a campaign without a ledger has not begun. Needs the lock."""
    directory = CampaignDir(path)
    if not _begun(path):
        for job in jobs_of(plan, path):
            run_dir = directory.run(job.run.run_id)
            write_json(run_dir.run, job)
            write_json(run_dir.state, State(state=QUEUED, updated=time.time()))
        write_json(directory.ledger, _ledger(plan, path.name))
    return Campaign(path)


def _ledger(plan: Plan, name: str) -> Ledger:
    return Ledger(
        name=name,
        experiment=plan.experiment,
        experiment_file=str(plan.experiment_file),
        site=msgspec.to_builtins(plan.site),
        scratch=str(plan.scratch),
        tracer=plan.tracer,
        order_seed=plan.experiment.settings.seed,
        runs=[run.run_id for run in plan.runs],
        skipped=plan.skipped,
        created=time.time(),
    )


def clear(run_dir: RunDir, job: Job) -> None:
    """Make a run ready for another attempt: what the last one left would be read as its own."""
    run_dir.stop.unlink(missing_ok=True)
    shutil.rmtree(run_dir.legs, ignore_errors=True)
    run_dir.manifest.unlink(missing_ok=True)
    preflight.remove_tree(Path(job.scratch))
    run_dir.write_state(
        state=QUEUED, reason=None, rank=None, node=None, cause=None, leg=None, driver_pid=None
    )
