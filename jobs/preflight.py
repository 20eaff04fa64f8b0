"""Looks before any rank starts: can scratch be written, and is there room for what the runs will write?

Called on the login side of a local site, and again by the driver where the run really happens.
"""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from hpcckpt.errors import SubmitError
from hpcckpt.experiment import Run
from hpcckpt.sizing import bytes_needed

HINT = "choose another directory by --scratch or in the site's file"


def check(scratch: Path, runs: list[Run]) -> None:
    """Raises SubmitError, with bytes needed and free, if the largest of `runs` cannot write in `scratch`."""
    needed = max(map(bytes_needed, runs), default=0)
    made = _made(scratch)
    try:
        free = shutil.disk_usage(scratch).free
        why = _refusal(scratch)
    finally:
        for folder in made:  # a check leaves nothing behind
            _remove_empty(folder)
    if why is not None or needed > free:
        cause = f"cannot be written ({why}), " if why else ""
        raise SubmitError(f"scratch {scratch}: {cause}{needed} bytes needed, {free} bytes free; {HINT}")


def _made(scratch: Path) -> list[Path]:
    """Make the directory; returns those that were missing, deepest first."""
    missing = [folder for folder in (scratch, *scratch.parents) if not folder.exists()]
    try:
        scratch.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        for folder in missing:
            _remove_empty(folder)
        raise SubmitError(f"scratch {scratch}: cannot be made ({_why(error)}); {HINT}") from error
    return missing


def _refusal(scratch: Path) -> str | None:
    """Why a real file, synced, cannot be written: a quota or a read-only mount shows in nothing less."""
    path = scratch / f".hpcckpt-write-test.{os.getpid()}"
    try:
        try:
            with path.open("xb") as stream:
                stream.write(bytes(4096))
                stream.flush()
                os.fsync(stream.fileno())
        finally:
            path.unlink(missing_ok=True)
    except OSError as error:
        return _why(error)
    return None


def _why(error: OSError) -> str:
    name = errno.errorcode.get(error.errno or 0, "unknown")
    return f"{error.strerror}, {name}"


def _remove_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        return
