"""An HTTP connection for uvicorn that a slow client cannot hold open. Needs uvicorn and httptools.

uvicorn bounds neither the size of headers nor the time for headers and a body, and keeps an answer in memory until it
is read. A client without a token could hold every file descriptor with requests that never begin, or never end. Each
service sets its own limits on this class.
"""

import asyncio
import logging
import socket
from typing import Any, ClassVar, NoReturn
from weakref import WeakKeyDictionary

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from .http_parser import Parser
from .listening import most_files
from .refusal import Refusal

FORGIVEN_PER_BODY_BYTE = 9
"""Bytes of framing forgiven for each byte of data: a chunk of one byte has five bytes around it."""
LOOK_S = 5.0
"""Interval of the checks of a connection with an unread answer."""
DEPARTED_LOOK_S = 1.0
"""Interval of the checks whether the client has gone, while the connection is not read."""
TCP_CLOSED = frozenset({7, 8})
"""States of Linux's TCP_INFO: closed, and close-wait (the other end has closed)."""
MAX_FIELDS = 200
"""Most header fields of a request. A field costs the time of 100 bytes of a body, and fifty times its own memory."""
FREE_CHUNKS, LEAST_CHUNK_BYTES = 1_000, 128
"""Chunks of any size in a body, and least average bytes of further chunks: a chunk costs the time of 1,000 bytes."""
LARGE_READ_BYTES = 32 * 1024
"""Bytes read at once from one connection before the others get their turn; uvloop would read 32 times as many."""

log = logging.getLogger("grpo_proto.server.connection")

_idle: WeakKeyDictionary[ServerState, dict["BoundedConnection", None]] = WeakKeyDictionary()
"""Connections of each server without a request under way; the longest idle comes first."""


class BoundedConnection(HttpToolsProtocol):
    """Close when headers are too large (431), when headers or a body are late, or when an answer stays unread.

    Beyond `max_idle` connections without a request under way, close the longest idle. Between two requests uvicorn's
    `timeout_keep_alive` holds as well.
    """

    max_header_bytes: ClassVar[int] = 64 * 1024
    """Largest headers of a request, and most framing of its body: sizes and names of chunks, trailers."""
    max_pipelined: ClassVar[int] = 16
    """Requests of one connection that may wait for the answer to an earlier request."""
    header_limit_s: ClassVar[float] = 10.0
    """Longest time from the start of the connection, or of the request, to the end of the headers."""
    body_limit_s: ClassVar[float | None] = None
    """Longest time from the end of the headers to the end of the body; None: the application has its own limit."""
    unread_limit_s: ClassVar[float] = 60.0
    """Longest time in which a client may read nothing of an answer that exceeds the network's buffers."""
    max_unread_bytes: ClassVar[int] = 256 * 2**20
    """Most unread bytes of all answers of a server; beyond it, cut off the client that has read nothing for longest."""
    max_idle: ClassVar[int] = 2048
    """Most connections of a server without a request under way; at most half of the files it may open. Allow as many as
    honest clients may open while a busy server reads none of their requests."""

    @classmethod
    def with_body_limit(cls, limit_s: float) -> "type[BoundedConnection]":
        """This class with another `body_limit_s`."""
        return type(cls.__name__, (cls,), {"body_limit_s": limit_s})

    parser: Parser
    _limit: asyncio.TimerHandle | None = None
    _departure: asyncio.TimerHandle | None = None
    _running: RequestResponseCycle | None = None
    """The request that the application works on."""
    _reading_headers = True
    _closes_after_body = False
    """Whether the client asked to close. Closing before the body is read would turn an early refusal into a reset."""
    _field_bytes = _num_fields = 0
    """Bytes and number of the request's fields that are complete."""
    _num_chunks = _chunk_bytes = 0
    """Number and bytes of the chunks of the request's body."""
    _pieces: list[bytes]
    """Pieces of a body in the data that is being parsed."""
    _framing_bytes = 0
    """Estimated bytes of this request that are not data of its body; the framing of small chunks is forgiven."""
    _body_bytes, _new_request = 0, False
    """Bytes of bodies in the data that is being parsed, and whether a request begins in it."""
    _unread_timer: asyncio.TimerHandle | None = None
    _unread_bytes = 0
    _moved_at_s = 0.0

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self.parser = Parser(self)
        self._idle = _idle.setdefault(self.server_state, {})
        self._pieces = []

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_headers()
        self._idle[self] = None
        self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        self._idle.pop(self, None)
        self._stop_waiting()
        self._has_been_read()
        if self._departure is not None:
            self._departure.cancel()
        if self._running is not None and not self._running.response_complete:
            # uvicorn notifies the request that came last; this request may be an earlier one.
            self._running.disconnected = True
            self._running.message_event.set()
        super().connection_lost(exc)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def _watch_departure(self) -> None:
        """Abort when the client has gone, while reading is paused.

        Reading pauses while a second request waits, so the end of the connection is not read either: the work would go
        on without a client.
        """
        self._departure = None
        if self.transport.is_closing() or not self.flow.read_paused:
            return
        if self._has_departed():
            self.transport.abort()
        else:
            self._departure = self.loop.call_later(DEPARTED_LOOK_S, self._watch_departure)

    def _has_departed(self) -> bool:
        try:
            state = self.transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
        except OSError:  # not a TCP socket
            return False
        return state[0] in TCP_CLOSED

    # Requests: headers, body, answer.

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._await_headers()

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._count_field(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._reading_headers:  # ignore trailers
            super().on_header(name, value)
        self._count_field(len(name) + len(value))

    def _count_field(self, num_bytes: int) -> None:
        self._field_bytes += num_bytes
        self._num_fields += 1
        if self._field_bytes > self.max_header_bytes or self._num_fields > MAX_FIELDS:
            self._refuse_fields()
            self._stop_parsing()

    def _refuse_fields(self) -> None:
        """Answer 431; only close when another answer is under way, or when the fields are trailers."""
        if self.transport.is_closing():
            return
        if not self._reading_headers or not (self.cycle is None or self.cycle.response_complete):
            self.transport.abort()
            return
        message = (
            f"the line and the headers of a request may have {self.max_header_bytes} bytes and {MAX_FIELDS} fields"
        )
        hint = "send data in the body"
        self._refuse(b"431 Request Header Fields Too Large", Refusal(431, "headers_too_large", message, hint=hint))

    def _stop_parsing(self) -> NoReturn:
        """Parse nothing more, not even data that has arrived: that could take a hundred times as long as its bytes."""
        raise ConnectionAbortedError

    def on_headers_complete(self) -> None:
        if self.parser.passes_over_upgrade or self.transport.is_closing():
            return
        self._reading_headers = False
        self._idle.pop(self, None)
        self._stop_waiting()
        super().on_headers_complete()
        if self.parser.should_upgrade() and self._should_upgrade():
            return
        self._closes_after_body, self.cycle.keep_alive = not self.cycle.keep_alive, True
        if len(self.pipeline) > self.max_pipelined:
            self.transport.abort()
            self._stop_parsing()
        if self.body_limit_s is not None:
            self._limit = self.loop.call_later(self.body_limit_s, self._body_is_late)

    def on_chunk_header(self) -> None:
        self._num_chunks += 1
        if self._num_chunks > FREE_CHUNKS + self._chunk_bytes / LEAST_CHUNK_BYTES:
            message = f"the body has too many chunks of less than {LEAST_CHUNK_BYTES} bytes"
            hint = "send it in one piece, with its Content-Length"
            self._give_up(b"400 Bad Request", Refusal(400, "tiny_chunks", message, hint=hint))
            self._stop_parsing()

    def on_body(self, body: bytes) -> None:
        self._chunk_bytes += len(body)
        self._pieces.append(body)

    def _pass_on(self) -> None:
        """Pass all pieces on at once: uvicorn copies the body so far for each."""
        if self._pieces:
            body = b"".join(self._pieces)
            self._pieces.clear()
            self._body_bytes += len(body)
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.passes_over_upgrade:
            return
        self._pass_on()
        self._stop_waiting()
        super().on_message_complete()
        if self._closes_after_body:
            self._closes_after_body = self.cycle.keep_alive = False
            if self.cycle.response_complete:
                self.transport.close()

    def on_response_complete(self) -> None:
        if not self.pipeline and not self.transport.is_closing():
            self._idle[self] = None
        super().on_response_complete()

    def data_received(self, data: bytes) -> None:
        self._body_bytes, self._new_request = 0, False
        super().data_received(data)
        if self.transport.is_closing():
            self._pieces.clear()
            return
        self._pass_on()
        # A request that began in this data starts at 0: its part of the data is not known.
        framing_bytes = self._framing_bytes + len(data) - FORGIVEN_PER_BODY_BYTE * self._body_bytes
        self._framing_bytes = 0 if self._new_request else max(0, framing_bytes)
        if self._framing_bytes > self.max_header_bytes:
            self._refuse_fields()
            return
        if self in self._idle and self._limit is None:
            # uvicorn's own timeout ends at the first bytes, also when they never become a request.
            self._limit = self.loop.call_later(self.header_limit_s, self._headers_are_late)
        if self.flow.read_paused:
            if self._departure is None:
                self._departure = self.loop.call_later(DEPARTED_LOOK_S, self._watch_departure)
        elif len(data) >= LARGE_READ_BYTES:
            self.flow.pause_reading()
            self.loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        if not self.transport.is_closing():
            self.flow.resume_reading()

    def _await_headers(self) -> None:
        self._stop_waiting()
        self._reading_headers, self._field_bytes, self._framing_bytes, self._new_request = True, 0, 0, True
        self._num_fields = self._num_chunks = self._chunk_bytes = 0
        self._limit = self.loop.call_later(self.header_limit_s, self._headers_are_late)

    def _stop_waiting(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None

    def _headers_are_late(self) -> None:
        if not self.transport.is_closing():
            self.transport.abort()

    def _body_is_late(self) -> None:
        """Refuse a body that comes byte by byte, or close when the request has its answer already."""
        message = f"the body did not arrive within {self.body_limit_s:g} s"
        hint = "send it at once, or in smaller requests"
        self._give_up(b"408 Request Timeout", Refusal(408, "slow_body", message, hint=hint, retryable=True))

    def _give_up(self, status: bytes, refusal: Refusal) -> None:
        """Stop reading this request and refuse it; close without a refusal when another answer is under way."""
        if self.transport.is_closing():
            return
        if self.cycle.response_started or self.pipeline:
            self.transport.abort()
            return
        self.cycle.response_started = self.cycle.disconnected = True
        self.cycle.message_event.set()
        self._refuse(status, refusal)

    def send_400_response(self, msg: str) -> None:
        if self.transport.is_closing():  # a callback closed it
            return
        refusal = Refusal(400, "malformed_http", "the request is not valid HTTP/1.1")
        self._refuse(b"400 Bad Request", refusal)

    def _refuse(self, status: bytes, refusal: Refusal) -> None:
        """Answer instead of the application, and close."""
        body = refusal.json()
        head = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
        self.transport.write(head % (status, len(body)) + body)
        self.transport.close()

    def _make_room(self) -> None:
        if len(self._idle) > min(self.max_idle, most_files() // 2):
            oldest = next(iter(self._idle))
            del self._idle[oldest]
            oldest.transport.abort()

    # Unread answers.

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread_bytes, self._moved_at_s = self.transport.get_write_buffer_size(), self.loop.time()
        self._look_again()
        waiting = [each for each in self.connections if isinstance(each, BoundedConnection) and each._unread_timer]
        others = set(waiting) - {self}
        while others and sum(each.transport.get_write_buffer_size() for each in waiting) > self.max_unread_bytes:
            slowest = min(others, key=BoundedConnection._measure)
            others.discard(slowest)
            waiting.remove(slowest)
            slowest._close_unread()

    def resume_writing(self) -> None:
        self._has_been_read()
        super().resume_writing()

    def _measure(self) -> float:
        """When a check last found that the client had read something."""
        unread = self.transport.get_write_buffer_size()
        if unread < self._unread_bytes:
            self._unread_bytes, self._moved_at_s = unread, self.loop.time()
        return self._moved_at_s

    def _look_again(self) -> None:
        self._unread_timer = self.loop.call_later(min(LOOK_S, self.unread_limit_s), self._look)

    def _look(self) -> None:
        if self.loop.time() - self._measure() >= self.unread_limit_s:
            self._close_unread()
        else:
            self._look_again()

    def _has_been_read(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None

    def _close_unread(self) -> None:
        self._has_been_read()
        lost = self.transport.get_write_buffer_size()
        log.info("a client does not read its answer: its connection is closed, %d bytes are lost", lost)
        self.transport.abort()
