"""Joining a Ray cluster, whose library blocks: in a thread beside the event loop."""

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import AuthenticationError

from .base import ExecutorUnavailable

JOIN_LIMIT_S = 90.0
"""How long the cluster may take to answer, or a new one to start."""


async def join_cluster() -> None:
    """Raises ExecutorUnavailable. In a thread `ray.init` leaves our signal handlers alone."""
    own = {} if os.environ.get("RAY_ADDRESS") not in (None, "", "local") else {"include_dashboard": False}
    try:
        async with asyncio.timeout(JOIN_LIMIT_S):
            # The cluster's processes are that thread's children, and Linux has them killed when it ends.
            await beside(lambda: ray.init(log_to_driver=False, logging_level="ERROR", **own), stay=True)
    except TimeoutError:
        raise ExecutorUnavailable(
            f"no Ray cluster answered within {JOIN_LIMIT_S:g} s: set RAY_ADDRESS to one that runs, or to local for "
            "one of its own; without it, Ray takes the last one that was started here, which may be gone"
        ) from None
    except Exception as error:  # Ray raises a bare one when a cluster of our own has not started within its 30 s
        # Ray says why only in the traceback that its error's cause quotes.
        if isinstance(error, AuthenticationError) or AuthenticationError.__name__ in str(error.__cause__):
            raise ExecutorUnavailable(
                "the Ray cluster asks for a token, and this server has none or another: set RAY_AUTH_MODE=token and "
                "RAY_AUTH_TOKEN (or RAY_AUTH_TOKEN_PATH) to the token that the cluster was started with"
            ) from error
        raise ExecutorUnavailable(f"no Ray cluster: {error}") from error


async def beside(call: Callable[[], Any], *, stay: bool = False) -> None:
    """Run `call` in a thread that nobody waits for at the end; with `stay` it lives as long as the process."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def tell(error: Exception | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    def work() -> None:
        error: Exception | None = None
        try:
            call()
        except Exception as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(tell, error)
        if stay:
            threading.Event().wait()

    threading.Thread(target=work, name="ray", daemon=True).start()
    await done
