"""Errors a user can act on, and the exit codes of every command.

Each message says what is wrong, where (file and key, path or rank) and what to do next.
Nothing here imports anything of the project.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from enum import IntEnum


class ExitCode(IntEnum):
    """How a command ends. REGRESSION never means that something could not be measured."""

    OK = 0
    UNEXPECTED = 1
    BAD_SPEC = 2
    REFUSED = 3
    RUNS_FAILED = 4
    REGRESSION = 5
    NOT_TRUSTWORTHY = 6
    INTERRUPTED = 130


class HpcCkptError(Exception):
    """Base of every error that the project raises on purpose; `exit_code` is the command's."""

    exit_code = ExitCode.UNEXPECTED


class SpecError(HpcCkptError):
    """An experiment, a run record or a command line that cannot be meant."""

    exit_code = ExitCode.BAD_SPEC


class SiteError(HpcCkptError):
    """A site file that lacks something, or a site that is not what its file says."""

    exit_code = ExitCode.BAD_SPEC


class SubmitError(HpcCkptError):
    """A submission that was refused before any rank started."""

    exit_code = ExitCode.REFUSED


class RunError(HpcCkptError):
    """A run that failed: which rank, where, and why."""

    exit_code = ExitCode.RUNS_FAILED


class TraceError(HpcCkptError):
    """A trace that cannot be read or cannot be trusted."""

    exit_code = ExitCode.NOT_TRUSTWORTHY


def nearest(word: str, known: Iterable[str]) -> str:
    """The closing half of an error about an unknown name: the nearest known one, or all of them."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]!r}?"
    return "known: " + (", ".join(names) if names else "none")
