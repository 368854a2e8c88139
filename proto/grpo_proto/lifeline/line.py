"""One end of a connection: frames, a beat every second, and how long the other end has been silent.

A thread reads and beats. Waits for: the other end's frames. Ends: when the connection ends, and, while it is watched,
when nothing was heard for `silence_s`.
"""

import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress

BEAT_S = 1.0
TICK_S = 0.25
SEND_TIMEOUT_S = 5.0
MAX_FRAME_BYTES = 2**20
_HEADER = struct.Struct("!cI")
_KEY_LENGTH = struct.Struct("!H")

BEAT, SET, GET, VALUE, END, LEAVE = b"b", b"s", b"g", b"v", b"e", b"l"
"""Kinds of frames: nothing but a sign of life; a key and its value, to rank 0; a key that is asked for; its value; why
the session ends, which a worker at fault says of itself and rank 0 to all; a worker leaves, and is not at fault."""

CLOSED = "closed the connection"
"""Reason of a line's end when the other end closes it or dies."""


class Line:
    """Frames over `connection`, from `start` on.

    `on_frame(kind, payload)` and `on_end(reason)` are called in the line's thread, the latter at most once, and not
    after `close`. `silence_s` 0: a silent end is never taken for a dead one, for debuggers.
    """

    def __init__(
        self,
        connection: socket.socket,
        *,
        silence_s: float,
        on_frame: Callable[[bytes, bytes], None],
        on_end: Callable[[str], None],
    ):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(SEND_TIMEOUT_S)
        self._connection, self.silence_s = connection, silence_s
        self._on_frame, self._on_end = on_frame, on_end
        self._sending = threading.Lock()
        self._closed = threading.Event()
        self._watched_since_s: float | None = None
        self.longest_gap_s = 0.0

    def start(self) -> None:
        threading.Thread(target=self._run, name="lifeline", daemon=True).start()

    def watch(self, *, on: bool) -> None:
        """Take silence for death from now on, or no longer."""
        self._watched_since_s = time.monotonic() if on else None

    def send(self, kind: bytes, payload: bytes = b"") -> None:
        """Send a frame. Of an error the reading thread learns, too."""
        with self._sending, suppress(OSError):
            self._connection.sendall(_HEADER.pack(kind, len(payload)) + payload)

    def close(self) -> None:
        """Close the connection without a word; the other end is told that it has ended."""
        self._closed.set()
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def _run(self) -> None:
        reason = None
        try:
            reason = self._read()
        except ConnectionError:  # a reset: it was closed, or died, while a frame of ours was on its way
            reason = CLOSED
        except (OSError, ValueError) as error:
            reason = f"broke the connection: {error}"
        finally:
            self._connection.close()
        if not self._closed.is_set():
            self._on_end(reason)

    def _read(self) -> str:
        """Read frames until the end. Returns why it ended."""
        received, heard_s, beaten_s = bytearray(), time.monotonic(), float("-inf")
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        while not self._closed.is_set():
            if time.monotonic() >= beaten_s + BEAT_S:
                beaten_s = time.monotonic()
                self.send(BEAT)
            # Look for what has arrived before the silence is judged: this process may have stood still itself.
            if not poll.poll(TICK_S * 1000):
                since_s = self._watched_since_s
                if since_s is not None and 0 < self.silence_s < time.monotonic() - max(heard_s, since_s):
                    return f"was silent for {self.silence_s:g} s"
                continue
            data = self._connection.recv(65536)
            if not data:
                return CLOSED
            if self._watched_since_s is not None:
                self.longest_gap_s = max(self.longest_gap_s, time.monotonic() - max(heard_s, self._watched_since_s))
            heard_s = time.monotonic()
            received += data
            self._take_frames(received)
        return "was closed"

    def _take_frames(self, received: bytearray) -> None:
        """Hand over all whole frames, and remove them. Raises ValueError for a frame that is too long."""
        while len(received) >= _HEADER.size:
            kind, size = _HEADER.unpack_from(received)
            if size > MAX_FRAME_BYTES:
                raise ValueError(f"a frame of {size} bytes")
            end = _HEADER.size + size
            if len(received) < end:
                return
            payload = bytes(received[_HEADER.size : end])
            del received[:end]
            if kind != BEAT:
                self._on_frame(kind, payload)


def pack_pair(key: str, value: bytes) -> bytes:
    name = key.encode()
    return _KEY_LENGTH.pack(len(name)) + name + value


def unpack_pair(payload: bytes) -> tuple[str, bytes]:
    """Raises ValueError for a payload that is no pair."""
    if len(payload) < _KEY_LENGTH.size:
        raise ValueError("a frame without a key")
    (length,) = _KEY_LENGTH.unpack_from(payload)
    name = payload[_KEY_LENGTH.size : _KEY_LENGTH.size + length]
    return name.decode(), payload[_KEY_LENGTH.size + length :]
