"""Tasks that leave nothing behind when they are cancelled."""

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def leaves_no_circle(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """For the coroutine function of a task, or of what a task waits for, that holds large things.

    A task that was cancelled keeps the exception, which knows the frames that it came through; among these are frames
    that know the task, such as those of `asyncio.timeout`. That circle, with all that the frames hold, would stay until
    the garbage collector comes by, which then takes seconds: so the exception forgets its way.
    """

    @functools.wraps(function)
    async def forgetful(*arguments: P.args, **options: P.kwargs) -> T:
        try:
            return await function(*arguments, **options)
        except asyncio.CancelledError as error:
            raise error.with_traceback(None) from None

    return forgetful
