"""Submits the runs of a campaign, one after the other on a site that runs them at once, and stops them.

Owns the campaign's lock while it runs. Ctrl-C arrives here only and is passed on to the driver of the
run in progress: first the stop file, then a signal, at last the kill that nothing survives.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from hpcckpt.cleanup import remove_tree
from hpcckpt.errors import ExitCode, RunError, SubmitError
from hpcckpt.experiment import Job
from hpcckpt.rundir import DONE, FAILED, INTERRUPTED, QUEUED, RUNNING, RunDir, State, read_json, write_bytes
from jobs import campaign, launchers, process, ranks, render
from jobs import lock as locks
from jobs.campaign import UNREADABLE, Campaign
from jobs.lock import Lock, held
from jobs.progress import Durations, Report, describe
from jobs.site import Site

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
POLL_S = 0.1
POLITE_S = 25.0
"""The driver's own stop order takes up to 11 s; after this it is told to hurry, after twice this killed."""
LAST_RANKS_S = 10.0
"""Ranks whose driver was killed are gone by then."""


def script(job: Job, site: Site, run_dir: RunDir) -> str:
    """The exact text of `job.sh`, for a submission and for a dry run."""
    python = site.python or sys.executable
    return render.job_script(job, site, run_dir, python, launchers.environment_bin(python), Path.cwd())


class Submission:
    """The runs of one campaign that are left to do."""

    def __init__(self, owner: Campaign, site: Site, pending: list[str], report: Report) -> None:
        self.campaign = owner
        self.site = site
        self.pending = pending
        self.report = report
        self.asked = 0
        """How often somebody wanted this to stop."""
        self.durations = Durations()

    def run(self) -> ExitCode:
        """Do what is pending; the exit code that the whole campaign has then."""
        with process.handling(SIGNALS, self._ask):
            self._learn_durations()
            jobs = [self._job(run_id) for run_id in self.pending]
            for index, job in enumerate(jobs):
                if not self.site.concurrent_runs:
                    self._join()
                if self.asked:
                    break
                left = self.durations.left(other.run for other in jobs[index:])
                what = describe(job.run, job.virtual_nodes)
                self.report.begin(index + 1, len(jobs), what, left)
                state = self._tried(job)
                if state.state == DONE:
                    self.durations.add(job.run, state)
                self.report.end(what, state)
            self._join()
            if not self.asked and INTERRUPTED in {s.state for s in self.campaign.states().values()}:
                self.report.say("not every run came to its end; submit again to go on")
        return ExitCode.INTERRUPTED if self.asked else result(self.campaign)

    def _job(self, run_id: str) -> Job:
        job: Job = read_json(self.campaign.run_dir(run_id).run, Job)
        return job

    def _learn_durations(self) -> None:
        for run_id, state in self.campaign.states().items():
            job = self.campaign.job(run_id) if state.state == DONE else None
            if job is not None:
                self.durations.add(job.run, state)

    def _join(self) -> None:
        """Wait for the runs that the driver of an earlier submission still does."""
        for run_id, state in self.campaign.driven().items():
            run_dir = self.campaign.run_dir(run_id)
            self.report.say(f"waiting: run {run_id} still runs under driver {state.driver_pid}")
            self._wait(lambda run_dir=run_dir: self._is_over(run_dir), run_dir)  # type: ignore[misc]
            if not campaign.is_driven(run_dir.read_state()):
                self.report.end(run_id, self._settle(run_dir))

    def _is_over(self, run_dir: RunDir) -> bool:
        """Whether a driver that is not our child has ended. On another host only its state file can tell."""
        state = run_dir.read_state()
        if state.driver_host != socket.gethostname():
            return state.state != RUNNING or self.asked > 0
        return not process.lives(state.driver_pid, state.driver_host, state.driver_start)

    def _tried(self, job: Job) -> State:
        """`_one`; a state file that cannot be read costs this run and no other."""
        try:
            return self._one(job)
        except RunError as error:
            return State(state=UNREADABLE, reason=str(error))

    def _one(self, job: Job) -> State:
        """Submit one run and wait until nothing of it runs any more."""
        from jobs import executor  # imports submitit: not for a dry run or a refusal

        run_dir = self.campaign.run_dir(job.run.run_id)
        with self._machine():
            if self.asked:
                return run_dir.read_state()
            campaign.clear(run_dir, job, self.site)
            write_bytes(run_dir.script, script(job, self.site, run_dir).encode())
            run_dir.log.mkdir(exist_ok=True)
            handle = executor.submit(run_dir, render.limit_s(job.run))
            self._wait(handle.ended, run_dir)
            return self._settle(run_dir)

    @contextmanager
    def _machine(self) -> Iterator[None]:
        """Runs of different campaigns must not overlap on one machine either."""
        if self.site.concurrent_runs:
            yield
            return
        lock = locks.of_machine(self.site.name)
        said = False
        while not (taken := lock.take()) and not self.asked:
            if not said:
                self.report.say(f"waiting: a run of another campaign has the machine{_named(lock)}")
                said = True
            self._pass()
        try:
            yield
        finally:
            if taken:
                lock.release()

    def _wait(self, ended: Callable[[], bool], run_dir: RunDir) -> None:
        told = 0
        since = time.monotonic()
        while not ended():
            if self.asked > told or (told and time.monotonic() - since > POLITE_S):
                told, since = told + 1, time.monotonic()
                self._tell(run_dir, told)
            self._pass()

    def _pass(self) -> None:
        self.report.tick()
        time.sleep(POLL_S)

    def _tell(self, run_dir: RunDir, level: int) -> None:
        """Ask the driver to stop: 1 at the next chance, 2 now, 3 without being asked."""
        state = run_dir.read_state()
        if level == 1:
            self.report.say("stopping the run; once more to stop it at once")
            run_dir.stop.touch()
        elif state.driver_pid is not None and state.driver_start is not None:
            driver = process.same_process(state.driver_pid, state.driver_start)
            process.send([driver] if driver else [], signal.SIGTERM if level == 2 else signal.SIGKILL)

    def _settle(self, run_dir: RunDir) -> State:
        """The final state; written here where the driver could not."""
        state = run_dir.read_state()
        if state.state not in (QUEUED, RUNNING):
            return state
        discard(self.campaign, run_dir)
        if self.asked:
            return run_dir.write_state(state=INTERRUPTED, reason="stopped on request", ended=time.time())
        if state.state == RUNNING:
            reason, cause = (
                f"driver process {state.driver_pid} died; its output is in {run_dir.log}",
                "driver died",
            )
            return run_dir.write_state(state=INTERRUPTED, cause=cause, reason=reason, ended=time.time())
        reason = f"the driver did not start: {_last_line(run_dir.log)}"
        return run_dir.write_state(state=FAILED, cause="driver", reason=reason, ended=time.time())

    def _ask(self, *_: object) -> None:
        self.asked += 1


def _named(lock: Lock) -> str:
    who = lock.holder()
    return f" (submitted by process {who.pid} on {who.host})" if who else ""


def discard(owner: Campaign, run_dir: RunDir) -> None:
    """Delete the checkpoints that a driver could not, once the last of its ranks is gone."""
    job = owner.job(run_dir.path.name)
    if job is None or job.run.settings.keep_files or not Path(job.scratch).exists():
        return
    legs = [run_dir.leg(name) for name in job.run.legs]
    seen = [view for leg in legs for view in ranks.views(leg, job.run.ranks)]
    psutil.wait_procs(ranks.processes(seen, socket.gethostname()), timeout=LAST_RANKS_S)
    remove_tree(Path(job.scratch))


def _last_line(log: Path) -> str:
    """What the newest error output ends with."""
    files = sorted(log.glob("*.err"), key=lambda path: path.stat().st_mtime)
    return (ranks.last_line(files[-1]) if files else None) or f"no message in {log}"


def result(owner: Campaign) -> ExitCode:
    """0 where every run is done, else 4."""
    done = all(state.state == DONE for state in owner.states().values())
    return ExitCode.OK if done else ExitCode.RUNS_FAILED


def detach(log: Path) -> bool:
    """Fork; True in the child, which has a session of its own and writes to `log`, False in the parent."""
    sys.stdout.flush()
    sys.stderr.flush()
    if os.fork():
        return False
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for target, source in ((0, nothing), (1, output), (2, output)):
        os.dup2(source, target)
    return True


def cancel(owner: Campaign, report: Report) -> None:
    """Stop the submission, then whatever still runs, and mark what waits as interrupted."""
    lock = Lock(owner.paths.lock)
    who = lock.holder()
    if who is not None:
        stop_submitter(who, report)
    _stop_drivers(owner)
    _until(lambda: lock.holder() is None and not owner.driven(), 3 * POLITE_S)
    with held(lock) as taken:
        if not taken:
            raise SubmitError(f"campaign {owner.name} is still being submitted; try again in a moment")
        for run_id, state in owner.states().items():
            run_dir = owner.run_dir(run_id)
            if state.state in (QUEUED, RUNNING):
                run_dir.write_state(state=INTERRUPTED, reason="cancelled", ended=time.time())
            if state.state in (QUEUED, RUNNING, INTERRUPTED) and not campaign.is_driven(state):
                discard(owner, run_dir)


def stop_submitter(who: locks.Holder, report: Report) -> None:
    """Ask the process that submits a campaign to stop, where it runs here."""
    submitter = process.same_process(who.pid, who.started)
    if submitter is not None:
        report.say(f"asking process {submitter.pid}, which submits this campaign, to stop")
        process.send([submitter], signal.SIGTERM)


def _stop_drivers(owner: Campaign) -> None:
    for run_id in owner.driven():
        owner.run_dir(run_id).stop.touch()


def _until(condition: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(POLL_S)
