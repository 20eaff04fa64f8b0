"""Lock files: who submits a campaign, and whose run has the machine. A lock ends with its process.

The file's content names the holder, for messages and for `cancel`; the lock itself is the kernel's.
"""

from __future__ import annotations

import fcntl
import os
import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from hpcckpt.errors import SubmitError
from jobs import process

PAUSE_S = 0.2


class Holder(msgspec.Struct, frozen=True):
    """The process that holds a lock."""

    pid: int
    host: str
    started: float


class Lock:
    """An exclusive lock on a file, taken without waiting."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def take(self) -> bool:
        """Whether this process holds it now. Raises SubmitError where no lock can be written."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        except OSError as error:
            raise SubmitError(f"{self.path}: cannot be written ({error.strerror or error})") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        try:
            self.sign()
        except OSError as error:
            os.close(descriptor)
            self._descriptor = None
            raise SubmitError(f"{self.path}: cannot be written ({error.strerror or error})") from error
        return True

    def take_within(self, seconds: float) -> bool:
        """The same, for as long as another process may need to let go."""
        end = time.monotonic() + seconds
        while not (taken := self.take()) and time.monotonic() < end:
            time.sleep(PAUSE_S)
        return taken

    def sign(self) -> None:
        """Name this process as the holder: again after a fork, which hands the lock on."""
        assert self._descriptor is not None
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, msgspec.json.encode(Holder(*process.myself())), 0)

    def release(self) -> None:
        """Let go. A process forked meanwhile keeps the lock for as long as it lives."""
        if self._descriptor is not None:
            who = self.holder()
            if who is not None and who.pid == os.getpid():  # a forked process may have signed meanwhile
                os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None

    def holder(self) -> Holder | None:
        """The process that the file names, if it may still run."""
        try:
            found = msgspec.json.decode(self.path.read_bytes(), type=Holder)
        except (OSError, msgspec.MsgspecError):
            return None
        return found if process.lives(found.pid, found.host, found.started) else None


def of_machine(site: str) -> Lock:
    """The lock of this user's runs on this host, wherever their campaigns are kept."""
    name = re.sub(r"[^\w.-]", "_", site)
    return Lock(Path(tempfile.gettempdir(), f"hpcckpt-{os.getuid()}-{name}.lock"))


@contextmanager
def held(lock: Lock) -> Iterator[bool]:
    """Take a lock for a block; the value says whether it could be taken."""
    taken = lock.take()
    try:
        yield taken
    finally:
        if taken:
            lock.release()
