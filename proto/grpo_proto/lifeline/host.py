"""Rank 0's listener: it admits the workers of all sessions that are open.

Everybody may connect; who does not prove within seconds that it knows the secret of an open session is cut off. Only so
many may try at the same time.
"""

import logging
import socket
import threading
from contextlib import suppress

from .crew import Crew
from .handshake import StrangerError, admit

log = logging.getLogger("grpo_proto.lifeline")

PROOF_TIMEOUT_S = 5.0
MAX_UNPROVED = 256


class Host:
    """Takes over `listener`, and closes it in `close`."""

    def __init__(self, listener: socket.socket, *, silence_s: float):
        self.port = int(listener.getsockname()[1])
        self._listener, self._silence_s = listener, silence_s
        self._crews: dict[int, Crew] = {}
        self._unproved = threading.BoundedSemaphore(MAX_UNPROVED)
        self._strangers = 0
        threading.Thread(target=self._accept, name="lifeline-host", daemon=True).start()

    def crew(self, session: int, world_size: int) -> Crew:
        """Open a session for the workers 1 … `world_size` - 1; its secret is theirs alone."""
        crew = self._crews[session] = Crew(session, world_size, silence_s=self._silence_s, forget=self._forget)
        return crew

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._listener.close()
        for crew in list(self._crews.values()):
            crew.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, address = self._listener.accept()
            except OSError:  # closed
                return
            if not self._unproved.acquire(blocking=False):
                connection.close()
                continue
            threading.Thread(
                target=self._admit, args=(connection, address[0]), name="lifeline-proof", daemon=True
            ).start()

    def _admit(self, connection: socket.socket, address: str) -> None:
        taken = False
        try:
            session, rank = admit(connection, self._secret_of, timeout_s=PROOF_TIMEOUT_S)
            crew = self._crews.get(session)
            taken = crew is not None and crew.take_in(rank, connection)
        except (StrangerError, OSError) as error:
            self._strangers += 1
            if self._strangers & (self._strangers - 1) == 0:  # the 1st, 2nd, 4th, 8th …
                log.warning("connection %d from a stranger, %s: %s", self._strangers, address, error)
        finally:
            self._unproved.release()
            if not taken:
                connection.close()

    def _forget(self, session: int) -> None:
        self._crews.pop(session, None)

    def _secret_of(self, session: int) -> str | None:
        crew = self._crews.get(session)
        return crew.secret if crew is not None else None
