"""A campaign: one submission of an experiment at a site, on disk as a directory with a ledger.

Finds or makes the directory of a plan, and tells which runs are left. Starts nothing; `submission`
does. The ledger is written once, under the campaign's lock; afterwards only the runs' own state files
change.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import time
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from hpcckpt.cleanup import remove_tree
from hpcckpt.errors import RunError, SpecError, SubmitError, TraceError
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
from jobs import process, ranks
from jobs.plan import Plan, Skipped
from jobs.site import Site

UNREADABLE = "unreadable"
"""In place of a state, where the state file says none."""


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
        try:
            self.ledger: Ledger = read_json(self.paths.ledger, Ledger)
        except TraceError as error:
            raise SpecError(
                f"{error}; 'submit --new' begins another campaign, or remove {self.paths.path}"
            ) from error

    @property
    def name(self) -> str:
        return self.paths.path.name

    def run_dir(self, run_id: str) -> RunDir:
        return self.paths.run(run_id)

    def states(self) -> dict[str, State]:
        """Every run's state, in the campaign's order; `unreadable` with its reason where there is none."""
        return {run_id: _state(self.run_dir(run_id)) for run_id in self.ledger.runs}

    def job(self, run_id: str) -> Job | None:
        """What a run's `run.json` holds; None where it cannot be read."""
        try:
            job: Job = read_json(self.run_dir(run_id).run, Job)
        except TraceError:
            return None
        return job

    def finished(self) -> bool:
        """Whether nothing is left to do without being told to retry."""
        states = self.states()
        return not self.pending(retry=False) and all(s.state in (DONE, FAILED) for s in states.values())

    def pending(self, retry: bool, queued: Collection[str] = ()) -> list[str]:
        """Runs that a submission must still do; those with a live driver, or `queued` elsewhere, are left alone."""
        states = {run_id: state for run_id, state in self.states().items() if run_id not in queued}
        return [run_id for run_id, state in states.items() if self._is_pending(run_id, state, retry)]

    def driven(self) -> dict[str, State]:
        """The runs whose driver lives."""
        return {run_id: state for run_id, state in self.states().items() if is_driven(state)}

    def _is_pending(self, run_id: str, state: State, retry: bool) -> bool:
        if state.state == RUNNING:
            return not (is_driven(state) or self.run_dir(run_id).submission.exists())
        if state.state == DONE:  # which takes the closing lines as well
            job = self.job(run_id)
            return job is None or not ranks.closed(self.run_dir(run_id), job.run)
        if state.state == QUEUED:
            return not self.run_dir(run_id).submission.exists()  # else a batch system has it
        return state.state == INTERRUPTED or (retry and state.state == FAILED)


def _state(run_dir: RunDir) -> State:
    try:
        return run_dir.read_state()
    except RunError as error:
        return State(state=UNREADABLE, reason=str(error))


def is_driven(state: State) -> bool:
    """Whether a run is under way and its driver lives."""
    alive = process.lives(state.driver_pid, state.driver_host, state.driver_start)
    return state.state == RUNNING and alive


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
    if not new:
        readable, broken = _readable(existing)
        wanted = {run.run_id for run in plan.runs}
        same = [c for c in readable if set(c.ledger.runs) == wanted]
        unfinished = [c for c in same if not c.finished()]
        if same:
            return (unfinished or same)[-1].paths.path, True
        if broken:
            raise broken[-1]  # it may be the one that is meant
    number = len(existing) + 1
    while _begun(path := runs_dir / (plan.name if number == 1 else f"{plan.name}-{number}")):
        number += 1
    return path, False


def _readable(paths: list[Path]) -> tuple[list[Campaign], list[SpecError]]:
    """The campaigns, and what is wrong with those that have no ledger that can be read."""
    found, broken = [], []
    for path in paths:
        try:
            found.append(Campaign(path))
        except SpecError as error:
            broken.append(error)
    return found, broken


def difference(owner: Campaign, plan: Plan) -> str:
    """In which facts the runs of a campaign differ from those of a plan, in words."""
    job = next(filter(None, map(owner.job, owner.ledger.runs)), None)
    if job is None:
        return "other runs"
    same = [run for run in plan.runs if (run.point, run.repeat) == (job.run.point, job.run.repeat)]
    now = same[0].identity if same else {}
    keys = [key for key in job.run.identity if now.get(key) != job.run.identity[key]]
    return "; ".join(f"{key} {job.run.identity[key]!r}, now {now.get(key)!r}" for key in keys) or "other runs"


def _begun(path: Path) -> bool:
    return (path / "campaign.json").exists()


def scratch_name(path: Path) -> str:
    """Directory of a campaign below scratch: campaigns of one name in several places do not share it."""
    digest = hashlib.sha256(str(path.absolute()).encode()).hexdigest()
    return f"{path.name}-{digest[:8]}"


def jobs_of(plan: Plan, path: Path) -> list[Job]:
    """What the runs' `run.json` will hold."""
    return [
        Job(
            run=run,
            campaign=path.name,
            site=msgspec.to_builtins(plan.site),
            scratch=str(plan.scratch / scratch_name(path) / run.run_id),
            virtual_nodes=plan.site.virtual_nodes,
            tracer=plan.tracer,
        )
        for run in plan.runs
    ]


def create(plan: Plan, path: Path) -> Campaign:
    """Write the runs and then the ledger: a campaign without a ledger has not begun. Needs the lock.

    Of one that has begun, runs whose directory or `run.json` is lost are written again as the ledger has them.
    """
    try:
        if _begun(path):
            _restore(plan, Campaign(path))
        else:
            _write(plan, CampaignDir(path))
    except OSError as error:
        raise SubmitError(f"{path}: cannot be written ({error.strerror or error})") from error
    return Campaign(path)


def _write(plan: Plan, directory: CampaignDir) -> None:
    for job in jobs_of(plan, directory.path):
        run_dir = directory.run(job.run.run_id)
        write_json(run_dir.run, job)
        write_json(run_dir.state, State(state=QUEUED, updated=time.time()))
    write_json(directory.ledger, _ledger(plan, directory.path.name))


def _restore(plan: Plan, owner: Campaign) -> None:
    ledger = owner.ledger
    if ledger.site != msgspec.to_builtins(plan.site):  # its file was corrected since
        ledger = msgspec.structs.replace(ledger, site=msgspec.to_builtins(plan.site))
        write_json(owner.paths.ledger, ledger)
    begun = replace(
        plan, site=msgspec.convert(ledger.site, Site), scratch=Path(ledger.scratch), tracer=ledger.tracer
    )
    for job in jobs_of(begun, owner.paths.path):
        run_dir = owner.run_dir(job.run.run_id)
        if owner.job(job.run.run_id) is None:
            write_json(run_dir.run, job)
        if not run_dir.state.exists():
            write_json(run_dir.state, State(state=QUEUED, updated=time.time()))


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


def clear(run_dir: RunDir, job: Job, site: Site) -> None:
    """Make a run ready for another attempt, at the site as it is now: what the last left would be read as its own."""
    here = msgspec.to_builtins(site)
    if job.site != here:
        write_json(run_dir.run, msgspec.structs.replace(job, site=here))
    run_dir.stop.unlink(missing_ok=True)
    run_dir.submission.unlink(missing_ok=True)
    shutil.rmtree(run_dir.legs, ignore_errors=True)
    run_dir.manifest.unlink(missing_ok=True)
    run_dir.restart.unlink(missing_ok=True)
    remove_tree(Path(job.scratch))
    run_dir.write_state(
        state=QUEUED, reason=None, rank=None, node=None, cause=None, leg=None, driver_pid=None, job_id=None,
        started=None, ended=None, progress=None, standstill=0,
    )  # fmt: skip
