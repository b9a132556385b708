"""Errors of commands: one line for the user, and a non-zero exit code."""

from __future__ import annotations


class CommandError(Exception):
    """A command cannot do what was requested.

    Args:
        message: one line that says what is wrong and what to change.
        exit_code: 2 for a wrong command line, 1 for everything else.
    """

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code
