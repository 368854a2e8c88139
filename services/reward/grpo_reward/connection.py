"""An HTTP connection whose headers have a greatest size and a time to come, and whose answers have to be read.

uvicorn's fast parser has neither: one client without a token could fill the memory with a header that never ends, or
hold every file descriptor with requests that never begin; and an answer that nobody reads stays in memory.
"""

import asyncio
import logging
from typing import ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEADER_BYTES = 64 * 1024
HEADER_LIMIT_S = 10.0
UNREAD_LIMIT_S, LOOK_S = 60.0, 5.0
"""How long a client may read nothing of an answer that is larger than the network's buffers, and how often to look."""
MAX_UNREAD_BYTES = 256 * 2**20
"""Of the answers of all connections that are waiting to be read. Beyond, who has read nothing for longest is closed."""

log = logging.getLogger("grpo_reward")


class BoundedConnection(HttpToolsProtocol):
    """uvicorn's, closed when headers are too large or too late, or when an answer stays unread.

    Between two requests uvicorn's own limit holds.
    """

    _unread: ClassVar[set["BoundedConnection"]] = set()
    _unread_timer: asyncio.TimerHandle | None = None
    _unread_bytes = 0
    _moved_at = 0.0
    _late: asyncio.TimerHandle | None = None
    _reading_headers = True
    _header_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._has_been_read()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread.add(self)
        self._unread_bytes, self._moved_at = self.transport.get_write_buffer_size(), self.loop.time()
        self._unread_timer = self.loop.call_later(min(LOOK_S, UNREAD_LIMIT_S), self._look)
        others = self._unread - {self}
        while others and sum(each.transport.get_write_buffer_size() for each in self._unread) > MAX_UNREAD_BYTES:
            slowest = min(others, key=BoundedConnection._measure)
            others.discard(slowest)
            slowest._close_unread()

    def resume_writing(self) -> None:
        self._has_been_read()
        super().resume_writing()

    def _measure(self) -> float:
        """When the client was last seen to have read something."""
        unread = self.transport.get_write_buffer_size()
        if unread < self._unread_bytes:
            self._unread_bytes, self._moved_at = unread, self.loop.time()
        return self._moved_at

    def _look(self) -> None:
        if self.loop.time() - self._measure() >= UNREAD_LIMIT_S:
            self._close_unread()
        else:
            self._unread_timer = self.loop.call_later(min(LOOK_S, UNREAD_LIMIT_S), self._look)

    def _has_been_read(self) -> None:
        self._unread.discard(self)
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None

    def _close_unread(self) -> None:
        self._has_been_read()
        lost = self.transport.get_write_buffer_size()
        log.warning("a client does not read its answer: its connection is closed, %d bytes are lost", lost)
        self.transport.abort()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._await_headers()

    def on_headers_complete(self) -> None:
        self._reading_headers = False
        self._stop_waiting()
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        before = self._reading_headers
        super().data_received(data)
        if before and self._reading_headers:
            # Only what is headers and nothing else: what came with their end, or before their begin, may be a body.
            self._header_bytes += len(data)
            if self._header_bytes > MAX_HEADER_BYTES:
                self.transport.abort()

    def _await_headers(self) -> None:
        self._stop_waiting()
        self._reading_headers, self._header_bytes = True, 0
        self._late = self.loop.call_later(HEADER_LIMIT_S, self._too_late)

    def _stop_waiting(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _too_late(self) -> None:
        if not self.transport.is_closing():
            self.transport.abort()
