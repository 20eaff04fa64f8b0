"""One leg: the ranks are started, watched and, where they must be, stopped.

The order of a stop: stop file, grace, SIGTERM to the ranks and then to the launcher, SIGKILL for all
that is left of the session. What the ranks' files say about the end is worked out in `ranks`.
"""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hpcckpt.experiment import Job
from hpcckpt.rundir import LegDir
from jobs import process, ranks
from jobs.process import POLL_S, Owned

STOP_GRACE_S = 5.0
"""After the stop file: ranks look for it at their next save."""
HUNG_GRACE_S = 1.0
"""The same for a leg over its limit: a rank that hangs comes to no save."""
TERM_GRACE_S = 3.0
"""After SIGTERM: a rank writes its closing line, its tracer a log."""


@dataclass
class Request:
    """What somebody outside asks of the driver. `level` only grows: 0 go on, 1 stop, 2 stop now."""

    stop_file: Path
    level: int = 0
    requeue: bool = False
    """The scheduler takes the machine away: stop, and come back."""
    can_requeue: bool = False
    """Whether a scheduler would start the run again."""
    notice_s: float = STOP_GRACE_S
    """How long ranks may go on to their next save when the scheduler has warned."""

    def ask(self) -> None:
        """Stop; whoever asks a second time, in whichever way, means now."""
        self.level = 2 if self.wanted else 1
        self.stop_file.touch()

    @property
    def wanted(self) -> bool:
        if self.level == 0 and self.stop_file.exists():
            self.level = 1
        return self.level > 0


@dataclass
class Outcome:
    """How a leg ended: `ending` is None where every rank is done."""

    ending: ranks.Ending | None
    stopped: bool
    timings_s: dict[str, float] = field(default_factory=dict)


class Launch:
    """One launch of all ranks of a leg."""

    def __init__(self, job: Job, leg: LegDir, request: Request) -> None:
        self.job = job
        self.leg = leg
        self.request = request
        self._presence = _Presence(leg, job.run.ranks)

    def run(self, argv: list[str], environment: Mapping[str, str], folder: Path) -> Outcome:
        """Start the ranks and return when all of them are gone, whatever happens."""
        began = time.monotonic()
        owned = Owned(argv, environment, folder, self.leg.output)
        try:
            overdue = self._watch(owned, began + self.job.run.settings.leg_limit_s)
        finally:
            owned.sweep()
        gone = time.monotonic()
        stopped = self.request.wanted and not overdue
        ending = ranks.failure(self.job, self.leg, owned.poll() or 0, overdue)
        return Outcome(ending, stopped and ending is not None, self._timings(began, gone))

    def _watch(self, owned: Owned, deadline: float) -> bool:
        """Wait for the launcher; whether the leg was stopped for being over its limit."""
        while owned.poll() is None:
            self._presence.look()
            if self.request.wanted:
                self._stop(owned, self.request.notice_s if self.request.requeue else STOP_GRACE_S)
                return False
            if time.monotonic() > deadline:
                self._stop(owned, HUNG_GRACE_S)
                return True
            time.sleep(POLL_S)
        return False

    def _stop(self, owned: Owned, grace: float) -> None:
        self.request.stop_file.touch()
        if self._gone(owned, grace):
            return
        running = ranks.processes(ranks.views(self.leg, self.job.run.ranks), socket.gethostname())
        process.send(running, signal.SIGTERM)  # to each rank first: a launcher gives them little time
        if self._gone(owned, TERM_GRACE_S):
            return
        owned.signal(signal.SIGTERM)
        self._gone(owned, TERM_GRACE_S)
        process.kill(ranks.processes(ranks.views(self.leg, self.job.run.ranks), socket.gethostname()))

    def _gone(self, owned: Owned, seconds: float) -> bool:
        """Whether the launcher ended in time; cut short where somebody asks for a stop now."""
        end = time.monotonic() + seconds
        while owned.poll() is None and time.monotonic() < end and self.request.level < 2:
            self._presence.look()
            time.sleep(POLL_S)
        return owned.poll() is not None

    def _timings(self, began: float, gone: float) -> dict[str, float]:
        """The leg's time in three parts: before the first rank, the ranks' processes, after the last one."""
        first = self._presence.first or gone
        last = min(max(first, self._presence.last or gone), gone)
        name = self.leg.name
        parts = {"launch": first - began, "ranks": last - first, "teardown": gone - last}
        return {f"{part}_{name}": seconds for part, seconds in parts.items()}


class _Presence:
    """When the ranks' processes were there, by this host's monotonic clock."""

    def __init__(self, leg: LegDir, ranks_: int) -> None:
        self._leg = leg
        self._nobody = set(range(ranks_))
        """Ranks that have not yet said which process they are."""
        self._pids: set[int] = set()
        self.first: float | None = None
        """When the first rank's wrapper had run."""
        self.last: float | None = None
        """When a rank's process was last seen; None where no rank said who it is."""

    def look(self) -> None:
        """Note who is there now. Cheap: called at every poll."""
        now = time.monotonic()
        if self.first is None:
            self.first = now if any(self._leg.darshan.iterdir()) else None
            return
        for rank in list(self._nobody):
            start = ranks.introduction(self._leg.rank_file(rank))
            if start is not None:
                self._nobody.discard(rank)
                self._pids |= {start.pid} if start.host == socket.gethostname() else set()
        if self._nobody or any(Path(f"/proc/{pid}").exists() for pid in self._pids):
            self.last = now
