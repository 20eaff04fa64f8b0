"""The one error that set-up raises on purpose."""

from __future__ import annotations


class SetupError(Exception):
    """Set-up cannot go on: the message says what is missing or failed, and what to do."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        """1: a step failed. 2: something must be changed on the machine or the command line first."""
