"""Await the answer of a request until something cuts it off."""

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from grpo_proto.server.refusal import Refusal

ResultT = TypeVar("ResultT")

CLIENT_GONE = 499
"""The status that proxies log for a client that closed its request. It reaches the metrics only."""


async def until_cut_off(
    answer: Coroutine[Any, Any, ResultT], *, deadline_s: float, ends: Mapping[asyncio.Future[Any], Refusal]
) -> ResultT:
    """Await `answer`, or cancel it, which aborts its sequences: vLLM aborts a sequence whose generator is cancelled.

    Raises the Refusal of the first of `ends` that is done, and Refusal 504 after `deadline_s`.
    """
    work = asyncio.create_task(answer)
    try:
        await asyncio.wait((work, *ends), timeout=deadline_s, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            return work.result()
        work.cancel()
        await asyncio.wait((work,))
        late = Refusal(504, "deadline", f"not finished within {deadline_s:g} s", hint="its sequences are aborted")
        raise next((refusal for end, refusal in ends.items() if end.done()), late)
    finally:
        work.cancel()


async def together(*work: Coroutine[Any, Any, ResultT]) -> list[ResultT]:
    """Await all of `work`. When one raises, cancel the others and await their end, so that nothing of the request goes
    on behind its answer."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        raise


def client_gone() -> Refusal:
    return Refusal(CLIENT_GONE, "client_gone", "the client disconnected")
