"""Call a user's function, sync or async, for a limited time, inside the process of an episode.

A call that is late is interrupted by a signal, which reaches Python code and calls of the system that wait. What waits
inside a library without looking at signals goes on; the trainer then kills the process.
"""

import asyncio
import inspect
import signal
from collections.abc import Callable
from types import FrameType
from typing import Any

AGAIN_S = 1.0
"""Seconds until the next signal, for code that catches the first."""
ASYNC_SLACK_S = 0.5

_runner: asyncio.Runner | None = None


class CallTimeoutError(BaseException):
    """A call did not return in time. No `Exception`: `except Exception` of the user's code must not swallow it."""


def call(function: Callable[..., Any], *arguments: Any, timeout_s: float, **named: Any) -> Any:
    """Return what `function` returns, awaited where it has to be. Raises CallTimeoutError, and what it raises."""
    name = getattr(function, "__qualname__", repr(function))
    late = CallTimeoutError(f"{name} did not return within {timeout_s:g} s")

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise late

    signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, timeout_s, AGAIN_S)
        found = function(*arguments, **named)
        if inspect.isawaitable(found):
            signal.setitimer(signal.ITIMER_REAL, timeout_s + ASYNC_SLACK_S, AGAIN_S)
            found = _await(found, timeout_s, late)
        return found
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)


def _await(awaitable: Any, timeout_s: float, late: CallTimeoutError) -> Any:
    global _runner
    _runner = _runner or asyncio.Runner()

    async def limited() -> Any:
        limit = asyncio.timeout(timeout_s)
        try:
            async with limit:
                return await awaitable
        except TimeoutError:
            if limit.expired():
                raise late from None
            raise

    return _runner.run(limited())
