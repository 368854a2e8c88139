"""Rank 0 drives, the other ranks follow: a command, its arrays, and an answer from each rank.

A command is the name of a method of the `work` that every rank has; rank 0 calls its own at the same time, so that both
meet in the collectives inside. Rank 0 goes on only when every rank has answered. A RunError is an answer; any other
error ends its process at once, because the ranks that wait for it in a collective can be freed by nothing else.

Commands and arguments travel as JSON, arrays as bytes, in a Gloo group of their own (`ranks.py`). Nothing is pickled.
"""

import logging
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Any, Protocol, Self

from ..errors import RunError, TrainerError, UpdateError
from .place import Place
from .ranks import NamedArrays, Ranks
from .stop_signal import StopRequested

log = logging.getLogger(__name__)

END = "end"
ALONE_S = 120.0
"""How much later than the first rank the last one may fail in the same update."""


class Status(Protocol):
    """Where the main thread of a rank reports what it does; `observe/run_status.py` implements it."""

    def place(self) -> Place: ...

    def waiting_for_rank(self) -> AbstractContextManager[None]: ...

    def go_to(self, place: Place) -> None: ...


class Crew:
    """Rank 0's way to have all ranks do something. Use as a context manager: leaving it sends `end` to the others.

    `work` has a method for each of `commands`. With a single rank a command is a plain call. `status` is rank 0's: its
    stage and bound are those of every rank in a command.
    """

    def __init__(self, ranks: Ranks, work: Any, commands: Sequence[str], status: Status):
        self.ranks, self._work, self._commands, self._status = ranks, work, commands, status
        self._in_command = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Send `end` with what the run ends with, so that the others end with the same status.

        An error in the middle of a command is not sent: the others are in a collective, and end with this process.
        """
        if self._in_command or self.ranks.world_size == 1:
            return
        ending: dict[str, Any] | None = None
        if isinstance(error, TrainerError):
            ending = error.told()
        elif error is not None and not isinstance(error, StopRequested):
            ending = {"message": f"{type(error).__name__}: {error}"[:1000], "hint": None, "exit_status": 1}
        try:
            self.ranks.broadcast_json([END, [ending], False, self._status.place()])
        except RunError as lost:
            if error is None:
                raise
            log.warning("the other ranks are gone: %s", lost)

    def do(self, command: str, *arguments: Any, each: Sequence[NamedArrays] | None = None) -> Any:
        """What rank 0's own `command` returns, after every rank has done it; see `gather`."""
        return self.gather(command, *arguments, each=each)[0]

    def gather(self, command: str, *arguments: Any, each: Sequence[NamedArrays] | None = None) -> list[Any]:
        """Have every rank do `command`. Returns what each rank returned: of the others as JSON.

        `arguments` are JSON values, the same for all ranks; `each` are arrays for each rank, its first argument.
        Raises RunError when a rank could not do it: rank 0's own where all failed alike, else one that names them. It
        is of the class of rank 0's own where all failed.
        """
        if command not in self._commands:
            raise ValueError(f"{command} is none of the commands {', '.join(self._commands)}")
        self._in_command = True
        self.ranks.broadcast_json([command, arguments, each is not None, self._status.place()])
        given = () if each is None else (self.ranks.scatter_arrays(each),)
        own, failure = _attempt(self._work, command, *given, *arguments)
        with self._status.waiting_for_rank(), _ending_alone(failure):
            answers = self.ranks.gather_json([None, failure.told() if failure else None])
        self._in_command = False
        failures = [told for _, told in answers]
        if failure is not None and all(told == failures[0] for told in failures):
            raise failure
        named = "; ".join(f"rank {rank}: {told['message']}" for rank, told in enumerate(failures) if told)
        if failure is not None and all(failures):
            raise type(failure)(named, hint=failure.hint)
        if named:
            raise RunError(named)
        return [own, *(result for result, _ in answers[1:])]


def follow(ranks: Ranks, work: Any, commands: Sequence[str], status: Status) -> int:
    """Do what rank 0 commands until it sends `end`; for the other ranks. Returns the exit status that it ended with.

    Raises RunError when rank 0 is gone or silent for longer than the group's timeout.
    """
    while True:
        with status.waiting_for_rank():
            command, arguments, has_arrays, place = ranks.broadcast_json(None)
        status.go_to(Place(*place))
        if command == END:
            (ending,) = arguments
            if ending is not None:
                log.debug("rank 0 ended: %s", ending["message"])
            return int(ending["exit_status"]) if ending else 0
        if command not in commands:
            raise RuntimeError(f"rank 0 commands {command}, which this release does not have")
        given = (ranks.scatter_arrays(None),) if has_arrays else ()
        result, failure = _attempt(work, command, *given, *arguments)
        with status.waiting_for_rank(), _ending_alone(failure):
            ranks.gather_json([result, failure.told() if failure else None])


@contextmanager
def _ending_alone(failure: RunError | None) -> Iterator[None]:
    """Wrap the wait for the answers of all ranks. After a failed update, end this process when they do not come.

    An update may fail on all ranks alike, which then answer; where it fails on one alone, the others are in a
    collective, which only the end of this process ends.
    """
    if not isinstance(failure, UpdateError):
        yield
        return
    answered = threading.Event()

    def end() -> None:
        if not answered.wait(ALONE_S):
            log.error("%s; the other ranks went on, so this one ends: go on with --resume", failure)
            os._exit(1)

    threading.Thread(target=end, name="ending-alone", daemon=True).start()
    try:
        yield
    finally:
        answered.set()


def _attempt(work: Any, command: str, *arguments: Any) -> tuple[Any, RunError | None]:
    try:
        return getattr(work, command)(*arguments), None
    except RunError as error:
        return None, error
