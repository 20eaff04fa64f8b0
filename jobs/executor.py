"""Hands a run to submitit: the only module that imports it.

submitit is told the script (rendered elsewhere) and a `Driver`; it starts the one with the other.
Whether a run is done is asked of its state file, never of submitit.
"""

from __future__ import annotations

import logging
import shlex
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from submitit import LocalExecutor
from submitit.core.utils import DelayedSubmission
from submitit.local.local import LocalJob

from hpcckpt.errors import SubmitError
from hpcckpt.rundir import RunDir
from jobs.driver import Driver
from jobs.site import Site


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


@contextmanager
def _deaf() -> Iterator[None]:
    """Children started meanwhile ignore the terminal's Ctrl-C: it is handled once, here, and passed on."""
    numbers = (signal.SIGINT, signal.SIGHUP)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def submit(site: Site, run_dir: RunDir, limit_s: float) -> Handle:
    """Submit the run whose script lies in its directory; `limit_s` ends it whatever happens inside."""
    if site.executor != "local":
        raise SubmitError(
            f"site {site.name}: this release submits to no {site.executor}; --dry-run shows the script"
        )
    logging.getLogger("submitit").setLevel(logging.WARNING)
    executor = _ScriptedLocal(run_dir.log, run_dir.script)
    # The 30 s before submitit's own limit, at which it asks to requeue, lie behind every limit of ours.
    executor.update_parameters(timeout_min=limit_s / 60 + 1)
    return Handle(executor.submit(Driver(run_dir.path)))


def requeue(driver: Driver) -> DelayedSubmission:
    """What submitit wants back from a `checkpoint`: the same driver, again."""
    return DelayedSubmission(Driver(driver.run_dir))
