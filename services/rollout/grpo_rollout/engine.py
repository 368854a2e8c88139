"""What the routes ask of vLLM's engine client, with one addition: nothing waits for an engine that has died.

vLLM never answers a pending utility call of a dead engine. Every call here ends by `EngineDiedError` instead.
"""

import asyncio
import logging
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

from vllm.engine.protocol import EngineClient
from vllm.v1.engine.exceptions import EngineDeadError

logger = logging.getLogger("vllm.grpo_rollout.engine")

DEATH_POLL_S = 0.2
HEARTBEAT_PERIOD_S = 1.0
ResultT = TypeVar("ResultT")


class EngineDiedError(Exception):
    """The engine process has ended; the server is about to."""


class WorkerError(Exception):
    """The engine or a worker answered a call with an error."""


async def abort_all(client: Any) -> None:
    """End every sequence of vLLM's engine client; each request gets what it has. Does not wait for the engine."""
    running = list(client.output_processor.request_states)
    if running:
        await client.abort(running, internal=True)


class Engine:
    """The engine of this server. `start` it inside the event loop."""

    def __init__(self, client: EngineClient):
        self.client: Any = client
        self.died = asyncio.Event()
        self.last_heartbeat_s = time.monotonic()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._watch_for_death()), asyncio.create_task(self._take_heartbeats())]

    async def call(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        """Await `work`, or raise EngineDiedError as soon as the engine is gone.

        A caller that is cancelled leaves `work` running: the engine will answer it, and somebody has to take that.
        Raises WorkerError for what failed inside the engine, which vLLM tells by a bare Exception.
        """
        task = asyncio.ensure_future(work)
        death = asyncio.ensure_future(self.died.wait())
        try:
            await asyncio.wait((task, death), return_when=asyncio.FIRST_COMPLETED)
        finally:
            death.cancel()
        if not task.done():
            task.cancel()
            raise EngineDiedError("the engine process has died")
        try:
            return task.result()
        except Exception as error:
            if type(error) is Exception:
                raise WorkerError(str(error)) from error
            raise

    async def workers(self, call: str, *args: Any) -> list[Any]:
        """Call the receiver of every worker; the answers by rank. Never with a time-out: see `receiver.py`.

        Raises WorkerError with the first error, EngineDiedError.
        """
        answers = await self.call(self.client.collective_rpc("grpo_weights", args=(call, *args)))
        errors = [f"worker {rank}: {answer['error']}" for rank, answer in enumerate(answers) if "error" in answer]
        if errors:
            raise WorkerError(f"{call}: {errors[0]}")
        return [answer["ok"] for answer in answers]

    async def pause(self) -> None:
        """Freeze all sequences; their KV is computed anew afterwards, under whatever weights are there then.

        The two calls inside vLLM's `pause_generation`, without the 20 ms it sleeps at its end to have outputs in a
        pleasant order.
        """
        await self.call(self.client.renderer.clear_mm_cache_async())
        await self.call(self.client.engine_core.pause_scheduler_async(mode="keep", clear_cache=True))

    async def resume(self, version: int) -> None:
        """Go on sampling, as version `version`."""
        await self.set_version(version)
        await self.call(self.client.resume_generation())

    async def set_version(self, version: int) -> None:
        """What every token sampled from now on is labelled with."""
        await self.call(self.client.update_weight_version(str(version)))

    async def abort_all(self) -> None:
        """End every sequence, whoever asked for it; each request gets what it has. Does not wait for the engine."""
        await abort_all(self.client)

    @property
    def num_running(self) -> int:
        """Sequences that have been added and not ended."""
        return len(self.client.output_processor.request_states)

    async def _watch_for_death(self) -> None:
        # vLLM keeps a flag that its own thread sets, and no event.
        while not self.client.engine_core.resources.engine_dead:  # noqa: ASYNC110
            await asyncio.sleep(DEATH_POLL_S)
        self.died.set()
        # After an orderly stop vLLM leaves its generators waiting, and its server waits for them for ever.
        self.client.output_processor.propagate_error(EngineDeadError())

    async def _take_heartbeats(self) -> None:
        """A round trip through the engine's loop; no worker is asked. It waits behind a long step, as work does."""
        while True:
            try:
                await self.call(self.client.is_paused())
            except EngineDiedError:
                return
            self.last_heartbeat_s = time.monotonic()
            await asyncio.sleep(HEARTBEAT_PERIOD_S)
