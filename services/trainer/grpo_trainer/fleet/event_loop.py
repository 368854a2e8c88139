"""Run an event loop in its own thread: HTTP goes on while the main thread computes.

Waits for: coroutines handed over by `run` and `start`. Unblocked by: their results. The next `run` raises the error of
a background task that died: a dead task is a crash, never a hang.
"""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, Self, TypeVar

ResultT = TypeVar("ResultT")


class EventLoopThread:
    """Use as a context manager; leaving it cancels all running coroutines."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="event-loop", daemon=True)
        self._background: list[Future[Any]] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(timeout=10.0)

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            tasks = asyncio.all_tasks(self.loop)
            for task in tasks:
                task.cancel()
            self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        finally:
            self.loop.close()

    def run(self, coroutine: Coroutine[Any, Any, ResultT], *, timeout_s: float | None = None) -> ResultT:
        """Run a coroutine to its end. `timeout_s` is for coroutines without deadlines of their own."""
        try:
            self.check()
        except BaseException:
            coroutine.close()
            raise
        future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        try:
            return future.result(timeout_s)
        except BaseException:
            # Cancel after a timeout or a stop signal, too: a coroutine without a waiter must not go on.
            future.cancel()
            raise

    def start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Start a background task; if it dies, the next `run` or `check` raises its error."""
        self._background.append(asyncio.run_coroutine_threadsafe(coroutine, self.loop))

    def end_background(self) -> None:
        """Cancel the background tasks, before their clients are closed: none of them runs or fails after that."""
        for future in self._background:
            future.cancel()

    def cancel(self, task: "asyncio.Task[Any]") -> None:
        """Cancel a task of this loop, without waiting for its end."""
        self.loop.call_soon_threadsafe(task.cancel)

    def check(self) -> None:
        """Raise the error of a background task that died."""
        for future in self._background:
            if future.done():
                try:
                    future.result()
                except CancelledError:
                    continue
