"""Brings the state files of a campaign in line with Slurm: a job that vanished is marked so.

The state files are the truth; Slurm is asked only which jobs are still in its hands. Where it does not
answer nothing changes: a run whose fate is unknown is left as it is. Asks twice at most, however many
runs there are.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from hpcckpt.errors import TraceError
from hpcckpt.rundir import DONE, FAILED, INTERRUPTED, QUEUED, RUNNING, RunDir, State, read_json, write_json
from jobs import ranks, slurm
from jobs.campaign import Campaign
from jobs.site import Site
from jobs.slurm import Queued

COMPLETING = "COMPLETING"
CLEANING_S = 60.0
PAUSE_S = 1.0


class Handed(msgspec.Struct, frozen=True, kw_only=True):
    """What `submission.json` holds: the run is in a batch system's hands."""

    job_id: str
    submitted: float


@dataclass
class View:
    """The jobs of a campaign at one moment."""

    answered: bool = True
    """False: Slurm said nothing, and the states are those of the files alone."""
    queued: dict[str, Queued] = field(default_factory=dict)
    """run -> its job, for the runs that Slurm has."""
    lost: dict[str, str] = field(default_factory=dict)
    """run -> its job's number, for runs without an end whose job Slurm has no longer."""
    orphans: dict[str, Queued] = field(default_factory=dict)
    """run -> a job whose submitter died before the job's own input was in place: it can only fail."""


def handed(run_dir: RunDir) -> Handed | None:
    """The job that a run was given to; None for a run that was not."""
    try:
        found: Handed = read_json(run_dir.submission, Handed)
    except TraceError:
        return None
    return found


def hand_over(run_dir: RunDir, job_id: str) -> None:
    """Note the job that has the run now."""
    write_json(run_dir.submission, Handed(job_id=job_id, submitted=time.time()))


def settle(owner: Campaign, site: Site) -> View:
    """Look, and mark what vanished; needs the campaign's lock."""
    view = look(owner, site)
    mark(owner, site, view)
    return view


def settle_when_clear(owner: Campaign, site: Site) -> View:
    """The same, once no job of an interrupted run is being cleaned up: before that nobody knows if it starts again."""
    end = time.monotonic() + CLEANING_S
    while (view := settle(owner, site)).answered and time.monotonic() < end:
        states = owner.states()
        unclear = [r for r, job in view.queued.items() if job.state == COMPLETING and states[r].state == INTERRUPTED]
        if not unclear:
            break
        time.sleep(PAUSE_S)
    return view


def look(owner: Campaign, site: Site) -> View:
    """What Slurm has of the campaign; writes nothing."""
    jobs = slurm.queue(site)
    if jobs is None:
        return View(answered=False)
    by_script = {job.script: job for job in jobs.values()}
    view = View()
    for run_id, before in owner.states().items():
        run_dir = owner.run_dir(run_id)
        known = handed(run_dir)
        job = jobs.get(known.job_id) if known else by_script.get(str(run_dir.script))
        if before.state in (DONE, FAILED):
            continue  # its driver is done with it; a job that Slurm still cleans up behind it starts nothing more
        if job is not None and known is None and not _has_input(run_dir, job):
            view.orphans[run_id] = job
        elif job is not None:
            view.queued[run_id] = job
        elif known is not None and before.state in (QUEUED, RUNNING):
            view.lost[run_id] = known.job_id
    return view


def _has_input(run_dir: RunDir, job: Queued) -> bool:
    """Whether submitit put the job's pickle in place, which it does behind sbatch."""
    return (run_dir.log / f"{job.job_id}_submitted.pkl").exists()


def mark(owner: Campaign, site: Site, view: View) -> None:
    """Note jobs that their submitter could not note, and runs that did not come to an end and have no job."""
    for run_id, job in view.queued.items():
        if handed(owner.run_dir(run_id)) is None:
            hand_over(owner.run_dir(run_id), job.job_id)
    # Read once more: a run that ended between the two looks has written its state before its job went.
    still = {run_id: job for run_id, job in view.lost.items() if _open(owner.run_dir(run_id).read_state())}
    ends = slurm.accounts(site, still.values()) if still else {}
    for run_id, job_id in still.items():
        _close(owner.run_dir(run_id), job_id, ends.get(job_id))


def _open(state: State) -> bool:
    return state.state in (QUEUED, RUNNING)


def _close(run_dir: RunDir, job_id: str, said: str | None) -> None:
    state = run_dir.read_state()
    how = f"Slurm job {job_id} is gone" + (f": {said}" if said else ", and nothing accounts for it")
    if state.state == RUNNING:
        host = f" on {state.driver_host}" if state.driver_host else ""
        reason = f"{how}; its driver{host} left no end; the output is in {run_dir.log}"
        run_dir.write_state(state=INTERRUPTED, cause="vanished", reason=reason, ended=time.time())
    elif said and said.startswith(("FAILED", "COMPLETED")) and "signal" not in said:
        # The script itself gave up before its driver; one that a signal ended is not to blame.
        reason = f"{how}; the driver did not start: {_last_line(run_dir.log)}"
        run_dir.write_state(state=FAILED, cause="driver", reason=reason, ended=time.time())
    else:
        reason = f"{how}; {_last_line(run_dir.log)}"
        run_dir.write_state(state=INTERRUPTED, cause="vanished", reason=reason, ended=time.time())


def _last_line(log: Path) -> str:
    """What the job's own output ends with."""
    return ranks.last_line(log / "job.log") or f"no output in {log}"
