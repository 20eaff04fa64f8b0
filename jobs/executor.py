"""Hands a run to submitit: the only module that imports it, in the version that the lock pins.

submitit is told the script (rendered elsewhere) and a `Driver`; it starts the one with the other.
Whether a run is done is asked of its state file, never of submitit.
"""

from __future__ import annotations

import logging
import os
import shlex
import signal
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from submitit import LocalExecutor, SlurmExecutor
from submitit.core.utils import DelayedSubmission, FailedJobError, FailedSubmissionError
from submitit.local.local import LocalJob

from hpcckpt.errors import SubmitError
from hpcckpt.rundir import RunDir
from jobs import process, slurm
from jobs.driver import Driver
from jobs.site import Site

TIMES_TAKEN_AWAY = 100
"""How often a job may be requeued: submitit counts each one of a short job as a time-out."""


class Handle:
    """A submitted run, as far as its process can tell."""

    def __init__(self, job: Any) -> None:
        self._job = job
        self.job_id = str(job.job_id)

    def ended(self) -> bool:
        """Whether nothing of the submission runs any more."""
        return bool(self._job.done())


class _ScriptedLocal(LocalExecutor):
    """Starts a script of ours in place of submitit's own command line; the script ends in that command."""

    def __init__(self, folder: Path, script: Path) -> None:
        super().__init__(folder)
        self.script = script

    @classmethod
    def name(cls) -> str:
        return "local"

    @property
    def _submitit_command_str(self) -> str:
        return f"bash {shlex.quote(str(self.script))}"

    def _submit_command(self, command: str) -> LocalJob[Any]:
        with _deaf():
            return super()._submit_command(command)


class _ScriptedSlurm(SlurmExecutor):
    """Submits a script of ours, with our own header, in place of the one that submitit would write."""

    def __init__(self, folder: Path, script: Path) -> None:
        super().__init__(folder, max_num_timeout=TIMES_TAKEN_AWAY)
        self.script = script

    @classmethod
    def name(cls) -> str:
        return "slurm"

    def _make_submission_file_text(self, command: str, uid: str) -> str:
        return self.script.read_text()  # submitit keeps a copy beside its pickles

    def _make_submission_command(self, submission_file_path: Path) -> list[str]:
        return ["sbatch", str(self.script)]

    def _num_tasks(self) -> int:
        return 1  # the driver; submitit would wait for a result of every rank else


def _deaf() -> AbstractContextManager[None]:
    """Children started meanwhile ignore the terminal's Ctrl-C: it is handled once, here, and passed on."""
    return process.handling((signal.SIGINT, signal.SIGHUP), signal.SIG_IGN)


def submit(run_dir: RunDir, limit_s: float) -> Handle:
    """Start the run whose script lies in its directory, here; `limit_s` ends it whatever happens inside."""
    logging.getLogger("submitit").setLevel(logging.WARNING)
    executor = _ScriptedLocal(run_dir.log, run_dir.script)
    # The 30 s before submitit's own limit, at which it asks to requeue, lie behind every limit of ours.
    executor.update_parameters(timeout_min=limit_s / 60 + 1)
    return Handle(executor.submit(Driver(run_dir.path)))


def submit_batch(site: Site, run_dir: RunDir, limit_s: float) -> str:
    """Give the run whose script lies in its directory to Slurm; the job's number.

    Raises SubmitError with Slurm's own words where it refuses.
    """
    logging.getLogger("submitit").setLevel(logging.WARNING)
    with _environment(slurm.environment(site)):
        try:
            executor = _ScriptedSlurm(run_dir.log, run_dir.script)
            executor.update_parameters(time=max(1, round(limit_s / 60)))
            return str(executor.submit(Driver(run_dir.path)).job_id)
        except (FailedJobError, FailedSubmissionError, RuntimeError, OSError) as error:
            words = " ".join(str(error).split())
            raise SubmitError(f"site {site.name}: sbatch refuses {run_dir.script}: {words}") from error


@contextmanager
def _environment(wanted: Mapping[str, str]) -> Iterator[None]:
    """Let sbatch, which submitit starts without asking for one, see this environment."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(wanted)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def requeue(driver: Driver) -> DelayedSubmission:
    """What submitit wants back from a `checkpoint`: the same driver, again."""
    return DelayedSubmission(Driver(driver.run_dir))
