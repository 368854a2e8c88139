"""Rank 0's side of one session: its workers, the keys they set, and who of them was lost."""

import secrets
import socket
import threading
from collections.abc import Callable

from .lifeline import Lifeline
from .line import END, GET, LEAVE, SET, VALUE, Line, pack_pair, unpack_pair


class Crew(Lifeline):
    """The workers 1 … `world_size` - 1 of a session, once they have joined. Made by `Host.crew`.

    The first one that is lost, or says that it cannot go on, ends the session for all: `lost` names it. One that only
    leaves ends it, too, and is not named.
    """

    def __init__(self, session: int, world_size: int, *, silence_s: float, forget: Callable[[int], None]):
        super().__init__()
        self.session, self.secret = session, secrets.token_hex(32)
        self.lost: dict[int, str] = {}
        """Why, by rank."""
        self._ranks = range(1, world_size)
        self._silence_s, self._forget = silence_s, forget
        self._lines: dict[int, Line] = {}
        self._asked: dict[str, list[int]] = {}
        self._lock = threading.Lock()
        self._over = False
        self._watched = False

    def take_in(self, rank: int, connection: socket.socket) -> bool:
        """Begin the line of a worker that has proved who it is. Returns False for a rank that is taken or unknown."""
        line = Line(
            connection,
            silence_s=self._silence_s,
            on_frame=lambda kind, payload: self._on_frame(rank, kind, payload),
            on_end=lambda reason: self._lose(rank, reason),
        )
        with self._lock:
            if self._over or rank in self._lines or rank not in self._ranks:
                return False
            self._lines[rank] = line
            line.watch(on=self._watched)
        line.start()
        return True

    @property
    def arrived(self) -> set[int]:
        """The ranks that have joined."""
        return set(self._lines)

    @property
    def longest_gap_s(self) -> float:
        """The longest time between two signs of life of a worker while it was watched."""
        return max((line.longest_gap_s for line in self._lines.values()), default=0.0)

    def watch(self, *, on: bool) -> None:
        """Take a silent worker for a dead one from now on, or no longer."""
        with self._lock:
            self._watched = on
            for line in self._lines.values():
                line.watch(on=on)

    def set(self, key: str, value: bytes) -> None:
        self._learn(key, value)
        with self._lock:
            waiting = [self._lines[rank] for rank in self._asked.pop(key, [])]
        for line in waiting:
            line.send(VALUE, pack_pair(key, value))

    def close(self) -> None:
        """Close all lines, which tells the workers that the session is over."""
        self._forget(self.session)
        with self._lock:
            self._over = True
            lines = list(self._lines.values())
        for line in lines:
            line.close()
        self._end("the trainer has closed the session")

    def _on_frame(self, rank: int, kind: bytes, payload: bytes) -> None:
        if kind == SET:
            self.set(*unpack_pair(payload))
        elif kind == GET:
            self._answer(rank, payload.decode())
        elif kind == END:
            self._lose(rank, payload.decode(errors="replace"))
        elif kind == LEAVE:
            self._free_others(rank, "left")

    def _answer(self, rank: int, key: str) -> None:
        with self._lock:
            if not self.known(key):
                self._asked.setdefault(key, []).append(rank)
                return
            line = self._lines[rank]
        line.send(VALUE, pack_pair(key, self._known[key]))

    def _lose(self, rank: int, reason: str) -> None:
        with self._lock:
            if self._over:
                return
            self.lost[rank] = reason
        self._free_others(rank, reason)

    def _free_others(self, rank: int, reason: str) -> None:
        with self._lock:
            if self._over:
                return
            self._over = True
            others = [line for other, line in self._lines.items() if other != rank]
        # Free the others first: each waits in an operation for a member that does not come.
        for line in others:
            line.send(END, f"another worker of the session, rank {rank}, {reason}".encode())
        self._end(f"worker {rank} {reason}")
