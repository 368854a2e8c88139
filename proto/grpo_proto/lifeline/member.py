"""A worker's connection to rank 0."""

import socket

from .handshake import introduce
from .lifeline import Lifeline
from .line import END, GET, LEAVE, SET, VALUE, Line, pack_pair, unpack_pair


class Member(Lifeline):
    """Joins a session as `rank`, and is told when it is over.

    Raises StrangerError when rank 0 has another secret, and OSError when it cannot be reached within `timeout_s`.
    """

    def __init__(
        self, host: str, port: int, *, session: int, rank: int, secret: str, timeout_s: float, silence_s: float
    ):
        super().__init__()
        connection = socket.create_connection((host, port), timeout=timeout_s)
        try:
            introduce(connection, secret, session=session, rank=rank, timeout_s=timeout_s)
        except BaseException:
            connection.close()
            raise
        self._line = Line(
            connection,
            silence_s=silence_s,
            on_frame=self._on_frame,
            on_end=lambda how: self._end_here(f"the trainer {how}"),
        )
        self._line.start()

    def set(self, key: str, value: bytes) -> None:
        self._learn(key, value)
        self._line.send(SET, pack_pair(key, value))

    def watch(self, *, on: bool) -> None:
        """Take a silent trainer for a dead one from now on, or no longer."""
        self._line.watch(on=on)

    def fail(self, reason: str) -> None:
        """Tell rank 0 that this worker cannot go on, which ends the session for everybody."""
        self._line.send(END, reason.encode())

    def close(self) -> None:
        """Leave. That is no fault, though nobody else can go on: who gives up has waited for another one."""
        self._line.send(LEAVE)
        self._line.close()
        self._end("this worker has left")

    def _ask(self, key: str) -> None:
        if not self.known(key):
            self._line.send(GET, key.encode())

    def _on_frame(self, kind: bytes, payload: bytes) -> None:
        if kind == VALUE:
            self._learn(*unpack_pair(payload))
        elif kind == END:
            self._end_here(payload.decode(errors="replace"))

    def _end_here(self, reason: str) -> None:
        self._line.close()
        self._end(reason)
