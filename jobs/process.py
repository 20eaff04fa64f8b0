"""Processes that must not outlive their owner: a session of their own, a death signal, and a sure end.

Also tells whether a process that a file names is still the same one. Knows nothing of runs.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

PR_SET_PDEATHSIG = 1
POLL_S = 0.05
SAME_START_S = 2.0
"""Start times of one process, read at different moments, differ by less: the boot time is rounded."""
_libc = ctypes.CDLL(None, use_errno=True)  # loaded here: between fork and exec is no place for it


class Owned:
    """A program in a session of its own. SIGTERM reaches it when the process that started it dies.

    SIGTERM and not SIGKILL: a launcher that is killed leaves its ranks behind, one that is told to
    stop ends them first.
    """

    def __init__(
        self, argv: Sequence[str], environment: Mapping[str, str], folder: Path, output: Path
    ) -> None:
        self.started = time.time()
        parent = os.getpid()

        def bind() -> None:
            _libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != parent:
                os._exit(1)

        with output.open("ab") as stream:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                cwd=folder,
                start_new_session=True,
                preexec_fn=bind,  # noqa: PLW1509  the driver has no threads
            )
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """Exit status, negative for a signal; None while it runs. Never blocks."""
        return self._process.poll()

    def wait(self, seconds: float) -> bool:
        """Whether it ended within `seconds`; by polling, so that signal handlers can reap as well."""
        end = time.monotonic() + seconds
        while self.poll() is None and time.monotonic() < end:
            time.sleep(POLL_S)
        return self.poll() is not None

    def signal(self, number: int) -> None:
        """Signal the program itself."""
        if self.poll() is None:
            self._process.send_signal(number)

    def sweep(self) -> None:
        """Kill whatever is left of its session: launchers give each rank a process group of its own."""
        kill(session_members(self.pid))
        self.wait(5)


def session_members(session: int) -> list[psutil.Process]:
    """The processes of a session, zombies left out."""
    found = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (OSError, psutil.Error):
            continue
    return found


def same_process(pid: int, started: float) -> psutil.Process | None:
    """The process `pid` of this host if it is the one that started then, else None."""
    try:
        process = psutil.Process(pid)
        same = abs(process.create_time() - started) < SAME_START_S
        return process if same and process.status() != psutil.STATUS_ZOMBIE else None
    except psutil.Error:
        return None


def send(processes: Iterable[psutil.Process], number: int) -> None:
    """Signal each process that still is the one it was."""
    for process in processes:
        try:
            process.send_signal(number)
        except psutil.Error:
            continue


def kill(processes: Iterable[psutil.Process]) -> None:
    """SIGKILL for each process that still is the one it was."""
    send(processes, signal.SIGKILL)


@contextmanager
def handling(numbers: Iterable[int], handler: Callable[[int, Any], Any] | signal.Handlers) -> Iterator[None]:
    """Let `handler` have these signals, in place of what they did before and will do again."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def myself() -> tuple[int, str, float]:
    """(process number, host, start time) of this process, as a state file keeps them."""
    return os.getpid(), socket.gethostname(), psutil.Process().create_time()


def age_s() -> float:
    """Age of this process to a hundredth: psutil's times carry the boot time's rounding."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0.0
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))


def lives(pid: int | None, host: str | None, started: float | None) -> bool:
    """Whether the process that a state file names may still run. On another host nobody can tell: it may."""
    if pid is None or started is None:
        return False
    if host != socket.gethostname():
        return True
    return same_process(pid, started) is not None
