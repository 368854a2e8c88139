"""Server-sent events: one task reads the run once a second and sends every page the changes.

Waits for: the clock; a client's stream for its queue. Unblocked by: the next look, `close`, or the client going away.
Without a client nothing runs. A client is dropped when `MAX_WAITING` events wait for it; its browser reconnects and
begins anew.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator

from .live_view import LiveView, to_json

log = logging.getLogger(__name__)

MAX_CLIENTS = 16
MAX_WAITING = 16
TICK_S = 1.0
PING_S = 10.0
"""Longest silence; a page that receives nothing for much longer takes the connection for dead."""
RETRY_MS = 2000

END = None
"""Last entry in a client's queue: its stream is over."""

Queue = asyncio.Queue[bytes | None]


class LiveEvents:
    """Used by the server's event loop alone."""

    def __init__(self, view: LiveView, *, max_clients: int = MAX_CLIENTS, tick_s: float = TICK_S):
        self._view, self._max_clients, self._tick_s = view, max_clients, tick_s
        self._clients: set[Queue] = set()
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self._sequence = 0
        self._sent: dict[str, str] = {}
        self._last_event = 0.0

    @property
    def num_clients(self) -> int:
        return len(self._clients)

    @property
    def full(self) -> bool:
        return len(self._clients) >= self._max_clients

    async def stream(self) -> AsyncIterator[bytes]:
        """The events of one client: `hello` with everything, then `update`, `ping` and at the end `bye`."""
        if self.full or self._closed:
            return
        queue: Queue = asyncio.Queue(MAX_WAITING)
        if self._task is None or self._task.done():
            self._begin()
        self._clients.add(queue)
        try:
            # The next update may repeat these steps: they have numbers, and the page takes each once.
            _, whole = self._view.whole()
            yield f"retry: {RETRY_MS}\nevent: hello\ndata: {whole}\n\n".encode()
            while (event := await queue.get()) is not END:
                yield event
        finally:
            self._clients.discard(queue)
            if not self._clients and self._task:
                self._task.cancel()
                self._task = None

    def close(self) -> None:
        """Send the end of the run and end every stream."""
        self._closed = True
        if self._clients:  # the last steps and warnings may be newer than the last look
            self._could_look()
        self._broadcast("bye", self._view.end())
        for queue in self._clients:
            self._end(queue)

    def _could_look(self) -> bool:
        """Look, and log any error instead of raising it: the run continues."""
        try:
            self.look()
        except Exception:
            log.exception("the live page could not be updated")
            return False
        return True

    def _begin(self) -> None:
        self._sequence, _ = self._view.whole()
        self._sent = {name: to_json(section) for name, section in self._view.sections().items()}
        self._last_event = time.monotonic()
        self._task = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._tick_s)
            if not self._could_look():
                # Disconnect every client, which may reconnect; the run continues.
                for queue in self._clients:
                    self._end(queue)
                return

    def look(self) -> None:
        """Send the changes since the last look, or a ping when nothing has been sent for `PING_S`."""
        news = self._view.history_since(self._sequence)
        if news is None:  # more new steps than the history keeps one by one
            self._sequence, whole = self._view.whole()
            self._broadcast("hello", whole)
            return
        self._sequence, steps = news
        current = {name: to_json(section) for name, section in self._view.sections().items()}
        changed = [f"{to_json(name)}:{text}" for name, text in current.items() if self._sent.get(name) != text]
        self._sent = current
        if steps or changed:
            head = f'{{"now_s":{time.time():.3f},"steps":{to_json(steps)}'
            self._broadcast("update", f'{head},"sections":{{{",".join(changed)}}}}}')
        elif time.monotonic() - self._last_event > PING_S:
            self._broadcast("ping", f'{{"now_s":{time.time():.3f}}}')

    def _broadcast(self, kind: str, data: str) -> None:
        self._last_event = time.monotonic()
        event = f"event: {kind}\ndata: {data}\n\n".encode()
        for queue in self._clients:
            if queue.full():
                self._end(queue)
            else:
                queue.put_nowait(event)

    @staticmethod
    def _end(queue: Queue) -> None:
        while queue.full():
            queue.get_nowait()
        queue.put_nowait(END)
