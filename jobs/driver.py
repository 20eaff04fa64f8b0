"""What runs in the allocation: takes one run from queued to done, and owns its state file meanwhile.

submitit starts a `Driver` with nothing but the path of a run directory. It looks before it leaps,
launches the legs one after the other, converts traces, cleans up, and says how it went. How ranks
are started and stopped lives in `launch`, what their files mean in `ranks`.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

from hpcckpt import environment
from hpcckpt.cleanup import may_stay, remove_tree
from hpcckpt.errors import HpcCkptError, RunError, TraceError
from hpcckpt.experiment import Job
from hpcckpt.rundir import DONE, FAILED, INTERRUPTED, QUEUED, RUNNING, LegDir, RunDir, State, read_json, write_json
from hpcckpt.tracing.io.base import IoTracer, choose
from jobs import launchers, preflight, process, ranks, render
from jobs.launch import STOP_GRACE_S, Launch, Request
from jobs.restarts import Sequel
from jobs.site import python_of

STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
STOPPING_S = 20.0
"""Kept of a scheduler's warning for ending the ranks and asking to be started again."""
MOST_ATTEMPTS = 5
"""Starts of one run after which a lost node is a failure: a cluster that loses nodes so fast needs a person."""
MOST_IDLE_STARTS = 3
"""Starts in a row without progress after which a run is given up: its job's time is too short for it."""
CLEANUP_LIMIT_S = 60.0
"""For the launch that deletes what lies on nodes' own disks: a node that was lost must not hold the others."""
REQUEUE = signal.SIGUSR2  # submitit's, shortly before a job is taken away


class Driver:
    """Runs one run. Holds only the path, so that nothing else is pickled with it."""

    rank_module = "hpcckpt.rank"
    why = "the machine was taken away"
    """Why it waits to be started again."""

    def __init__(self, run_dir: str | Path) -> None:
        self.run_dir = str(run_dir)

    def __call__(self) -> str:
        """Run to an end of whatever kind; returns the state that was reached."""
        paths = RunDir(self.run_dir)
        _check_job(paths)
        with requests(paths) as request:
            attempt = Attempt(paths, request, self.rank_module)
            state = attempt.run()
        if request.requeue and state == QUEUED:
            self.why = attempt.why or self.why
            request.before(REQUEUE, None)  # submitit's handler, late: it requeues and leaves
        return state

    def checkpoint(self) -> Any:
        """submitit's seam, for when the machine is taken away: what comes back is requeued."""
        from jobs.executor import requeue  # only there is submitit imported

        paths = RunDir(self.run_dir)
        paths.stop.unlink(missing_ok=True)
        paths.write_state(state=QUEUED, reason=f"{self.why}; waiting to go on")
        return requeue(self)


class _Requests(Request):
    """Requests that come as signals. Handlers only take note: the driver acts where it stands still."""

    before: Any = None
    """submitit's own handler of the requeue signal."""

    def on_stop(self, number: int, frame: FrameType | None) -> None:
        if self.requeue:
            self.level = 2  # the machine goes sooner than announced
        else:
            self.ask()

    def on_requeue(self, number: int, frame: FrameType | None) -> None:
        self.requeue = callable(self.before)  # without submitit nobody would start it again
        self.level = max(self.level, 1)


@contextmanager
def requests(paths: RunDir) -> Iterator[_Requests]:
    """Take over the signals that mean stop; submitit's handlers are put back afterwards."""
    request = _Requests(paths.stop)
    before = {number: signal.signal(number, request.on_stop) for number in STOPS}
    request.before = before[REQUEUE] = signal.signal(REQUEUE, request.on_requeue)
    request.can_requeue = callable(request.before) and "SLURM_JOB_ID" in os.environ
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Attempt:
    """One try at a run: the steps, their times, and the state file."""

    def __init__(self, paths: RunDir, request: Request, rank_module: str) -> None:
        self.paths = paths
        self.request = request
        self.rank_module = rank_module
        self.state = State(state=QUEUED)
        """As this process wrote it last."""
        self.why: str | None = None
        """Why the run must be started again, where it is not the scheduler that asked."""
        self.timings: dict[str, float] = {}
        self.prepared = False
        """Whether it was settled how ranks are started."""
        self.tracer: IoTracer
        self.python: str | None = None
        """Of the ranks; None: the driver's own."""
        self.launcher: launchers.Found

    def run(self) -> str:
        """All steps; every way out leaves a final state."""
        pid, host, started = process.myself()
        queued = self.paths.read_state()
        if queued.state == INTERRUPTED:  # the batch system starts again by itself what it took away
            queued = self.paths.write_state(state=QUEUED, reason=None, cause=None)
        if os.environ.get("SLURM_RESTART_COUNT", "0") != "0":
            self.paths.stop.unlink(missing_ok=True)  # of the start that was taken away
        age = process.age_s()
        self.timings = {"queue_wait": max(0.0, time.time() - age - queued.updated), "driver_start": age}
        self.state = queued
        self._write(
            state=RUNNING, driver_pid=pid, driver_host=host, driver_start=started,
            job_id=os.environ.get("SLURM_JOB_ID") or os.environ.get("SUBMITIT_LOCAL_JOB_ID"),
            attempts=queued.attempts + 1, started=time.time(), ended=None, leg=None, timings_s={},
            reason=None, rank=None, node=None, cause=None,
        )  # fmt: skip
        try:
            ending = self._legs()
        except HpcCkptError as error:
            ending = ranks.Ending(str(error), cause="refused")
        except Exception as error:
            self._clean_up(None)
            kind = type(error).__name__
            self._close(FAILED, ranks.Ending(f"driver: {kind}: {error}", cause=kind))
            raise
        if self._goes_on_later(ending):
            if self._comes_further():
                return QUEUED  # written by `checkpoint`, once submitit has agreed
            ending = ranks.Ending(
                f"started {MOST_IDLE_STARTS + 1} times without coming further than {self.progress}: a job's time must "
                "hold the control leg and the way to a first checkpoint; give the site a longer time",
                cause="no progress",
            )
        if ending is None or ending.cause != "stopped" or "SLURM_JOB_ID" not in os.environ:
            self._clean_up(ending)
        if ending is None:
            return self._close(DONE, None)
        stopped = ending.cause == "stopped"
        return self._close(INTERRUPTED if stopped else FAILED, self._with_what_stays(ending, stopped))

    def _with_what_stays(self, ending: ranks.Ending, stopped: bool) -> ranks.Ending:
        """On nodes' own disks: a job that is taken away can start nothing there, and left nodes are out of reach."""
        if "SLURM_JOB_ID" not in os.environ or not (stopped or self.state.attempts > 1):
            return ending
        try:
            words = may_stay(read_json(self.paths.run, Job))
        except TraceError:
            return ending
        return dataclasses.replace(ending, reason=f"{ending.reason}{words}")

    def _legs(self) -> ranks.Ending | None:
        """Everything between running and the end; the reason why it is not done, if it isn't."""
        job: Job = read_json(self.paths.run, Job)
        self.request.notice_s = max(STOP_GRACE_S, job.site.get("warning_s", 0) - STOPPING_S)
        with self._timed("preflight"):
            self._prepare(job)
        with self._timed("manifest"):
            self._write_manifest(job)
        if job.run.settings.restart is not None:
            return self._restart(job)
        for name in job.run.legs:
            ending = self._leg(job, name)
            if ending is not None:
                return ending
        return None

    def _restart(self, job: Job) -> ranks.Ending | None:
        """The legs of a test of restart: those that are planned, then those that what was found asks for."""
        sequel = Sequel(self.paths, job)
        for name in job.run.legs:
            ending = self._watched(job, name, sequel)
            if ending is not None and not sequel.forgives(name, ending):
                return ending
            with self._timed("comparison"):
                sequel.after(name)
        while more := sequel.following():
            ending = self._watched(sequel.job_of(more[0]), more[0], sequel)
            if ending is not None and ending.cause == "stopped":
                return ending
            with self._timed("comparison"):
                sequel.after(more[0], ending)  # that such a leg fails is an answer too
        sequel.write()
        return None

    def _watched(self, job: Job, name: str, sequel: Sequel) -> ranks.Ending | None:
        sequel.moments.begin(name)
        return self._leg(job, name, lambda: sequel.moments.end(name))

    def _clean_up(self, ending: ranks.Ending | None) -> None:
        """Delete the checkpoints, unless they are wanted."""
        try:
            job: Job = read_json(self.paths.run, Job)
        except TraceError:
            return  # nobody knows where they lie
        if job.run.settings.keep_files:
            return
        with self._timed("cleanup"):
            remove_tree(Path(job.scratch))
            # A leg that ends well clears its node's disk itself; states of a test of restart outlive their leg.
            left = job.run.settings.restart is not None or (ending is not None and ending.cause != "stopped")
            if left and not job.site.get("scratch_shared", True) and self.prepared:
                self._clean_up_nodes(job)

    def _clean_up_nodes(self, job: Job) -> None:
        """The same on every node's own disk; what had to stay is said in the log and fails no run."""
        settings = msgspec.structs.replace(job.run.settings, leg_limit_s=CLEANUP_LIMIT_S)
        job = msgspec.structs.replace(job, run=msgspec.structs.replace(job.run, settings=settings))
        leg = self.paths.leg("cleanup")
        argv, variables = self._command(job, leg, "hpcckpt.cleanup")
        outcome = Launch(job, leg, Request(leg.path / "stop")).run(argv, variables, Path.cwd())
        if outcome.ending is None:
            shutil.rmtree(leg.path)
        else:
            print(f"{job.scratch}: checkpoints may be left on the nodes' own disks: {outcome.ending.reason}")

    def _goes_on_later(self, ending: ranks.Ending | None) -> bool:
        """Whether the scheduler is to start this run again: it took the machine away, or a node was lost."""
        if ending is None:
            return False
        if ending.cause == ranks.NODE_LOST and self._may_move():
            self.request.requeue, self.why = True, ending.reason
            return True
        return self.request.requeue and ending.cause == "stopped"

    def _comes_further(self) -> bool:
        """Whether the start that ends now came further than the one before it; a few that did not are borne."""
        idle = self.state.standstill + 1 if self.progress == self.state.progress else 0
        self._write(progress=self.progress, standstill=idle)
        return idle < MOST_IDLE_STARTS

    @property
    def progress(self) -> str:
        """The leg, and the newest generation that any rank saved in it."""
        leg = self.paths.leg(self.state.leg or "none")
        launches = [*leg.earlier(), leg]
        job: Job = read_json(self.paths.run, Job)
        saved = [v.last_generation for each in launches for v in ranks.views(each, job.run.ranks)]
        newest = max((generation for generation in saved if generation is not None), default=None)
        return f"leg {leg.name}, " + ("before its first checkpoint" if newest is None else f"checkpoint {newest}")

    def _write(self, **changes: Any) -> None:
        """Change the state: this process owns it, so what it wrote last is what holds."""
        self.state = self.paths.write_state(self.state, **changes)

    def _may_move(self) -> bool:
        """Whether somebody would start this again, on other nodes; not without end."""
        return self.request.can_requeue and int(os.environ.get("SLURM_RESTART_COUNT", "0")) + 1 < MOST_ATTEMPTS

    def _prepare(self, job: Job) -> None:
        preflight.check(Path(job.scratch), [job.run])
        self.python = python_of(job.site, job.run.point.framework)
        self.launcher = launchers.find(job.site["launcher"], self.python)
        self.tracer, _ = choose(job.tracer, job.site.get("darshan_lib"), os.environ)
        Path(job.scratch).mkdir(parents=True, exist_ok=True)
        self.prepared = True

    def _write_manifest(self, job: Job) -> None:
        write_json(
            self.paths.manifest,
            {
                **environment.manifest(Path(job.scratch)),
                "launcher": {"path": self.launcher.path, "version": self.launcher.version},
                "tracer": self.tracer.describe(),
            },
        )

    def _leg(self, job: Job, name: str, gone: Callable[[], None] = lambda: None) -> ranks.Ending | None:
        """One leg; `gone` is called when the last of its processes has ended."""
        if self.request.wanted:
            return ranks.Ending(f"stopped on request before leg {name}", cause="stopped")
        leg = self.paths.leg(name)
        if ranks.leg_closed(leg, job.run.ranks):
            return None  # done before the batch system took the machine away
        self._write(leg=name)
        argv, variables = self._command(job, leg)
        outcome = Launch(job, leg, self.request).run(argv, variables, Path.cwd())
        gone()
        self.timings |= outcome.timings_s
        with self._timed("conversion"):
            self._finish_traces(job, leg)
        if outcome.stopped:
            return ranks.Ending(f"stopped on request in leg {name}", cause="stopped")
        return outcome.ending

    def _command(self, job: Job, leg: LegDir, module: str | None = None) -> tuple[list[str], dict[str, str]]:
        """The launcher's command line and environment; writes the wrapper that each rank starts as."""
        if leg.path.exists():
            leg.set_aside()  # of a launch that was cut off: the ranks go on from what it saved
        leg.darshan.mkdir(parents=True)
        leg.ranks.mkdir()
        traced = self.tracer.prepare(leg.path, Path(job.scratch) / leg.name)
        program = [self.python or sys.executable, "-m", module or self.rank_module]
        together = job.virtual_nodes or job.site.get("one_machine", False)
        here = job.run.ranks if together else job.run.point.ranks_per_node
        variables, container = {"HPCCKPT_RANKS_HERE": str(here)}, job.site.get("container", [])
        text = render.rank_script(self.paths, leg, program, variables, traced, container)
        leg.rank_script.write_text(text)
        cores = job.site.get("cores") or launchers.cores_here()
        variables = launchers.environment(
            self.launcher, os.environ, job.site["environment"],
            local=job.site["executor"] == "local", crowded=here > cores,
        )  # fmt: skip
        extra, script = job.site["launcher_args"], ["sh", str(leg.rank_script)]
        return launchers.argv(self.launcher, job.run.point, job.virtual_nodes, extra, script), variables

    def _finish_traces(self, job: Job, leg: LegDir) -> None:
        """Every rank's log, also of a leg that failed; what is wrong with one is a note and ends nothing."""
        notes = []
        for seen in ranks.views(leg, job.run.ranks):
            try:
                notes += self._finish(leg, seen)
            except Exception as error:  # a tracer's trouble is said, and costs no run
                notes.append(f"rank {seen.rank}: {self.tracer.name}: {type(error).__name__}: {error}")
        write_json(leg.path / "notes.json", {"tracer": self.tracer.name, "notes": notes})

    def _finish(self, leg: LegDir, seen: ranks.RankView) -> list[str]:
        folder = leg.rank_darshan(seen.rank)
        if not folder.is_dir():
            return [f"rank {seen.rank}: it never started"]
        host, pid = (seen.start.host, seen.start.pid) if seen.start else (socket.gethostname(), 0)
        return self.tracer.finish(folder, seen.rank, host, pid)

    def _close(self, state: str, ending: ranks.Ending | None) -> str:
        self._add_own_time()
        self._write(
            state=state,
            ended=time.time(),
            reason=ending.reason if ending else None,
            rank=ending.rank if ending else None,
            node=ending.node if ending else None,
            cause=ending.cause if ending else None,
            timings_s=self.timings,
        )
        return state

    def _add_own_time(self) -> None:
        """`own`: everything from submission on that was not the ranks' processes."""
        parts = {key: value for key, value in self.timings.items() if not key.startswith("ranks_")}
        self.timings["own"] = sum(parts.values())

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self.timings[name] = self.timings.get(name, 0.0) + time.monotonic() - began


def _check_job(paths: RunDir) -> None:
    """Leave a run alone that another job was given meanwhile: two drivers would clear each other's files."""
    mine = os.environ.get("SLURM_JOB_ID")
    try:
        given = str(read_json(paths.submission).get("job_id"))
    except TraceError:
        return  # not noted yet
    if mine is not None and given != mine:
        raise RunError(f"{paths.path}: given to Slurm job {given}; this is job {mine}, and leaves it alone")
