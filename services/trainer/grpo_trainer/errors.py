"""Errors that end a run with one readable message instead of a stack trace.

TrainerError
├── UsageError         exit status 2: what the user gave is wrong, and the same command is wrong at every try
├── UnavailableError   exit status 3: something outside is missing or does not fit (yet); the same command may succeed
└── RunError           exit status 1: the run cannot go on: what happened, and what is kept
    ├── ServersError   the servers did not do their part: what was trained is saved first
    ├── UpdateError    a batch made no update, as a user's own estimator or loss failed: what was trained is saved first
    ├── CallbackError  a user's callback failed: what was trained is saved first
    ├── DiskError      a file of the run folder could not be written, as on a full disk
    └── GuardStop      exit status 2: a rule of the run file ended the run, which is saved
"""

import errno
from pathlib import Path
from typing import Any, Self

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_LASTING = {
    errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.EACCES, errno.EPERM, errno.EROFS, errno.ELOOP,
    errno.ENAMETOOLONG, errno.EINVAL,
}  # fmt: skip


class TrainerError(Exception):
    """`message` says what is wrong, `hint` what to change; `exit_status` where it is not that of the class."""

    exit_status = 1

    def __init__(self, message: str, hint: str | None = None, *, exit_status: int | None = None):
        self.message, self.hint = message, hint
        self.exit_status = exit_status or self.exit_status
        super().__init__(f"{message} ({hint})" if hint else message)

    def told(self) -> dict[str, Any]:
        """For the other ranks, as JSON; `RunError(**told)` is the way back."""
        return {"message": self.message, "hint": self.hint, "exit_status": self.exit_status}


class UsageError(TrainerError):
    """The configuration, a file or the data is wrong: nothing outside can mend it."""

    exit_status = 2


class UnavailableError(TrainerError):
    """A server did not come up in time or serves something that does not fit, the Hub gave nothing, a port is taken."""

    exit_status = 3


def is_full(error: OSError) -> bool:
    """Whether the disk, a quota or a limit on file sizes has no room left."""
    return error.errno in _FULL


def storage_error_class(error: OSError) -> type[TrainerError]:
    """Class of a file's error: what is not there or not allowed stays so; a full disk, or a server away, may not."""
    return UsageError if error.errno in _LASTING else UnavailableError


def model_error_class(name: str, error: BaseException) -> type[TrainerError]:
    """Class of the error of a model that does not load: a folder will not get better; the Hub may have been away."""
    if isinstance(error, OSError) and error.errno is not None:
        return storage_error_class(error)
    is_path = name.startswith(("/", "./", "../", "~")) or Path(name).is_dir()
    return UsageError if is_path else UnavailableError


class RunError(TrainerError):
    """The run cannot go on."""


class ServersError(RunError):
    """The servers gave nothing to train on, or took no weights. The policy is intact."""


class UpdateError(RunError):
    """No update can be made of a batch. The policy is what it was after the last update, and is saved."""


class CallbackError(RunError):
    """A callback of the run file raised. The policy is saved; whether the callback works at the next try is unknown."""


class DiskError(RunError):
    """A file of the run folder could not be written. What was written before is intact."""

    @classmethod
    def of(cls, error: OSError, *, run_dir: Path) -> Self:
        where = error.filename or f"a file of {run_dir}"
        hint = "free some space, then go on with --resume" if is_full(error) else "mend it, then go on with --resume"
        return cls(f"{where} could not be written: {error.strerror or error}", hint=hint)


class GuardStop(RunError):  # noqa: N818 - nothing failed: the run file asked for it
    """A rule of the run file ended the run. The policy is saved; the same command would run into it again."""

    exit_status = 2
