"""Errors that end a run with one readable message instead of a stack trace.

TrainerError
├── UsageError      the user can mend it: configuration, data, a missing server
└── RunError        the run cannot go on: what happened, and what is kept
"""


class TrainerError(Exception):
    """`message` says what is wrong, `hint` what to change."""

    def __init__(self, message: str, hint: str | None = None):
        self.message, self.hint = message, hint
        super().__init__(f"{message} ({hint})" if hint else message)


class UsageError(TrainerError):
    """Something the user gave is wrong."""


class RunError(TrainerError):
    """The run cannot go on."""
