"""Gives the runs of a campaign to a batch system, follows them if asked to, and cancels them.

Holds the campaign's lock only while it submits or waits. A job goes on whatever happens here: Ctrl-C
ends the waiting and no run. What Slurm says about jobs is `slurm`'s, what that means `reconcile`'s.
"""

from __future__ import annotations

import signal
import time

from hpcckpt.cleanup import may_stay
from hpcckpt.errors import ExitCode, SubmitError
from hpcckpt.experiment import Job
from hpcckpt.rundir import DONE, INTERRUPTED, QUEUED, RUNNING, State, read_json, write_bytes, write_json
from jobs import campaign, process, reconcile, render, slurm
from jobs.campaign import Campaign
from jobs.progress import Durations, Report, describe
from jobs.site import Site
from jobs.submission import discard, result, script

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LOOK_S = 1.0
"""Between two looks at the state files while waiting."""
ASK_S = 20.0
"""Between two questions to Slurm while waiting: its controller serves everybody."""
FRESH_S = 5.0
"""The same where a run was interrupted: its job may wait to start again."""
GONE_S = 60.0
"""Cancelled jobs have left by then: their drivers stop the ranks first."""


class Batch:
    """The runs of one campaign that are left to give away."""

    def __init__(self, owner: Campaign, site: Site, pending: list[str], report: Report, most: int | None) -> None:
        self.campaign = owner
        self.site = site
        self.pending = list(pending)
        self.report = report
        self.most = most
        """Jobs of this campaign that may be in the queue at once; None: all."""
        self.asked = 0
        self._view = reconcile.View()
        self._asked_slurm = time.monotonic()

    def submit(self) -> int:
        """Give away what the limit allows; how many runs that were. Raises SubmitError where Slurm refuses."""
        room = len(self.pending) if self.most is None else max(0, self.most - self._in_queue())
        given = 0
        while self.pending and given < room and not self.asked:
            self._give(self.pending[0])
            self.pending.pop(0)
            given += 1
        return given

    def follow(self) -> ExitCode:
        """Submit, wait until every run came to an end, and submit what the limit held back."""
        with process.handling(SIGNALS, self._stop):
            self.submit()
            told = self._ended() - set(self.pending)
            self._introduce(told)
            while not self.asked and (self.pending or self._in_queue()):
                self._look(told)
                if self.pending:
                    self.submit()
                self.report.tick()
                time.sleep(LOOK_S)
            self._look(told)
        if self.asked:
            self.report.say("no longer waiting; the jobs go on: 'python -m jobs status', 'python -m jobs cancel'")
            return ExitCode.INTERRUPTED
        return result(self.campaign)

    def _give(self, run_id: str) -> None:
        from jobs import executor  # imports submitit: not for a dry run or a refusal

        run_dir = self.campaign.run_dir(run_id)
        job: Job = read_json(run_dir.run, Job)
        text, before = script(job, self.site, run_dir), run_dir.read_state()
        campaign.clear(run_dir, job, self.site)
        write_bytes(run_dir.script, text.encode())
        run_dir.log.mkdir(exist_ok=True)
        try:
            job_id = executor.submit_batch(self.site, run_dir, render.limit_s(job.run))
        except SubmitError:
            write_json(run_dir.state, before)  # what was known of the run is still true of it
            raise
        reconcile.hand_over(run_dir, job_id)
        self.report.say(f"job {job_id}: {describe(job.run, job.virtual_nodes)}")

    def _in_queue(self) -> int:
        """Runs that were given away and have no end yet."""
        given = {run_id: reconcile.handed(self.campaign.run_dir(run_id)) for run_id in self.campaign.ledger.runs}
        ended = self._ended()
        return sum(known is not None and run_id not in ended for run_id, known in given.items())

    def _ended(self) -> set[str]:
        """Runs at their end: by their own files, and not where an interrupted one's job waits to start again."""
        states = self.campaign.states()
        if any(state.state == INTERRUPTED and run_id not in self.pending for run_id, state in states.items()):
            self._ask(FRESH_S)
        return {
            run_id
            for run_id, state in states.items()
            if state.state not in (QUEUED, RUNNING)
            and not (state.state == INTERRUPTED and run_id in self._view.queued)
        }

    def _ask(self, older_than_s: float) -> None:
        """Ask Slurm anew where its last answer is so old."""
        if time.monotonic() - self._asked_slurm > older_than_s:
            self._asked_slurm = time.monotonic()
            self._view = reconcile.settle(self.campaign, self.site)

    def _introduce(self, over: set[str]) -> None:
        """What the waiting begins with: how many runs are over, and how long the others may run."""
        durations, left = Durations(), []
        for run_id, state in self.campaign.states().items():
            job = self.campaign.job(run_id)
            if job is not None and run_id not in over:
                left.append(job.run)
            elif job is not None and state.state == DONE:
                durations.add(job.run, state)
        total = len(self.campaign.ledger.runs)
        self.report.begin(min(len(over) + 1, total), total, "waiting for Slurm", durations.left(left))

    def _look(self, told: set[str]) -> None:
        """Say what ended since the last look; ask Slurm now and then about what did not."""
        self._ask(ASK_S)
        for run_id in sorted(self._ended() - told - set(self.pending)):
            told.add(run_id)
            self.report.end(self._words(run_id), self.campaign.run_dir(run_id).read_state())

    def _words(self, run_id: str) -> str:
        job = self.campaign.job(run_id)
        return describe(job.run, job.virtual_nodes) if job else run_id

    def _stop(self, *_: object) -> None:
        self.asked += 1


def cancel(owner: Campaign, site: Site, report: Report) -> None:
    """Cancel every job that Slurm has of the campaign, and mark its runs as interrupted."""
    view = reconcile.settle(owner, site)
    if not view.answered:
        raise SubmitError(f"campaign {owner.name}: squeue does not answer, so nothing could be cancelled; try again")
    jobs = {run_id: job.job_id for run_id, job in (view.queued | view.orphans).items()}
    report.say(f"cancelling {len(jobs)} job{'' if len(jobs) == 1 else 's'}")
    objection = slurm.cancel(site, jobs.values())
    if objection:
        raise SubmitError(f"campaign {owner.name}: scancel says: {objection}")
    if not _gone(site, set(jobs.values())):
        numbers = ", ".join(jobs.values())
        raise SubmitError(f"campaign {owner.name}: Slurm still has jobs {numbers}; cancel again in a moment")
    for run_id, state in owner.states().items():
        run_dir = owner.run_dir(run_id)
        if state.state in (QUEUED, RUNNING):
            job = owner.job(run_id) if state.state == RUNNING else None  # what waited has written nothing
            reason = f"cancelled{may_stay(job) if job else ''}"
            run_dir.write_state(state=INTERRUPTED, reason=reason, cause="cancelled", ended=time.time())
        if state.state in (QUEUED, RUNNING, INTERRUPTED):
            discard(owner, run_dir)


def _gone(site: Site, job_ids: set[str]) -> bool:
    """Whether Slurm says in time that it has none of them any more: silence says nothing."""
    end = time.monotonic() + GONE_S
    while time.monotonic() < end:
        queued = slurm.queue(site)
        if queued is not None and not job_ids & set(queued):
            return True
        time.sleep(LOOK_S)
    return False


def outcome_lines(view: reconcile.View, states: dict[str, State]) -> dict[str, str]:
    """run -> what Slurm says of its job, for a person."""
    return {
        run_id: f"Slurm job {job.job_id}: {job.state.lower()}" + (f" ({job.reason})" if job.state == "PENDING" else "")
        for run_id, job in view.queued.items()
        if states[run_id].state != DONE
    }
