"""Ranks of one machine without the seconds of their imports: `one_machine.py` with forks in place of new processes."""

import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.warm_python import Forked, warm_python

from grpo_trainer.ranks import one_machine


class WarmStart:
    """In place of `one_machine._start`: each rank is a fork that has imported the libraries. Keeps what they print."""

    def __init__(self, folder: Path):
        self._folder = folder

    def __call__(
        self, command: Sequence[str], environment: Mapping[str, str], rank: int, listener: socket.socket | None
    ) -> Forked:
        _python, *words = command
        return warm_python(
            *words,
            output=self._log(rank),
            environment={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            sockets={} if listener is None else {one_machine.LISTENER_VARIABLE: listener},
        )

    def printed(self) -> str:
        """What all ranks have printed, one after another."""
        return "".join(log.read_text() for log in sorted(self._folder.glob("log-of-rank-*")))

    def _log(self, rank: int) -> Path:
        return self._folder / f"log-of-rank-{rank}"
