"""Call vLLM's engine client, and raise `EngineDiedError` when the engine has died.

vLLM never answers a pending utility call to a dead engine: without this, the caller would wait forever.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from vllm.engine.protocol import EngineClient
from vllm.exceptions import VLLMClientError
from vllm.inputs import MultiModalInput
from vllm.inputs.engine import tokens_input
from vllm.outputs import RequestOutput
from vllm.sampling_params import SamplingParams
from vllm.v1.engine.exceptions import EngineDeadError

from grpo_proto.messages.weights import KvCache
from grpo_proto.server.refusal import Refusal

from .kept_sequences import KEEP_CALL

logger = logging.getLogger("vllm.grpo_rollout.engine")

DEATH_POLL_S = 0.2
HEARTBEAT_PERIOD_S = 1.0
ResultT = TypeVar("ResultT")


class EngineDiedError(Exception):
    """The engine process has ended, or refuses because the server stops; the server is about to end.

    `refusal` answers a request that this befell. It tells a stop from a death: of a death, a prompt may be the cause.
    """

    def __init__(self, *, stopping: bool):
        message = "the server is stopping" if stopping else "the engine process has died"
        self.refusal = Refusal(503, "stopping" if stopping else "engine_died", message, retryable=True)
        super().__init__(message)


class WorkerError(Exception):
    """The engine or a worker answered a call with an error."""


async def abort_all(client: Any) -> None:
    """Abort every sequence of the engine client; each request returns the tokens it has. Does not await the engine."""
    running = list(client.output_processor.request_states)
    if running:
        await client.abort(running, internal=True)


def before_shutdown(client: Any, act: Callable[[], None]) -> None:
    """Call `act` in this event loop before the engine client shuts down, which vLLM has it do in a thread when the
    server is told to stop."""
    shutdown, loop = client.shutdown, asyncio.get_running_loop()

    def act_and_shut_down(*args: Any, **options: Any) -> Any:
        if not loop.is_closed():
            loop.call_soon_threadsafe(act)
        return shutdown(*args, **options)

    client.shutdown = act_and_shut_down


class Engine:
    """The engine of this server. Make and `start` it inside the event loop."""

    def __init__(self, client: EngineClient):
        self.client: Any = client
        self.died = asyncio.Event()
        self._stopping = asyncio.Event()
        before_shutdown(client, self._stopping.set)
        self.last_heartbeat_s = time.monotonic()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._watch_for_death()), asyncio.create_task(self._take_heartbeats())]

    def ended(self) -> EngineDiedError:
        """Return the error for whoever finds the engine gone."""
        return EngineDiedError(stopping=self._stopping.is_set())

    def check_alive(self) -> None:
        """Raises EngineDiedError when vLLM has found the engine gone."""
        if self.client.errored:
            raise self.ended()

    async def call(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        """Await `work`, or raise EngineDiedError as soon as the engine is gone.

        Cancelling the caller leaves `work` running, because the engine's answer still has to be received.
        Raises WorkerError for an error inside the engine, which vLLM reports as a bare Exception.
        """
        task = asyncio.ensure_future(work)
        death = asyncio.ensure_future(self.died.wait())
        try:
            await asyncio.wait((task, death), return_when=asyncio.FIRST_COMPLETED)
        finally:
            death.cancel()
        if not task.done():
            task.cancel()
            raise self.ended()
        try:
            return task.result()
        except EngineDeadError as error:
            raise self.ended() from error
        except Exception as error:
            if type(error) is Exception:
                if self._stopping.is_set():
                    raise self.ended() from error  # an engine that is ending refuses in this way
                raise WorkerError(str(error)) from error
            raise

    async def generate(
        self,
        prompt: list[int] | MultiModalInput,
        params: SamplingParams,
        engine_id: str,
        *,
        trace_headers: Mapping[str, str] | None = None,
    ) -> RequestOutput:
        """Process one prompt to its end; cancelling aborts it. `params` asks for the final output only.

        A prompt is token ids, or what `images.py` has prepared.

        Raises EngineDiedError, and Refusal (422) for what vLLM refuses.
        """
        try:
            ready = tokens_input(prompt) if isinstance(prompt, list) else prompt
            async for output in self.client.generate(ready, params, engine_id, trace_headers=trace_headers):
                final: RequestOutput = output
        except EngineDeadError as error:
            raise self.ended() from error
        except (VLLMClientError, ValueError) as error:
            raise Refusal.invalid("refused_by_engine", str(error)) from error
        return final

    async def workers(self, call: str, *args: Any) -> list[Any]:
        """Call the receiver of every worker; return the answers by rank. Never with a timeout: see `receiver.py`.

        Raises WorkerError with the first worker's error, or EngineDiedError.
        """
        answers = await self.call(self.client.collective_rpc("grpo_weights", args=(call, *args)))
        errors = [f"worker {rank}: {answer['error']}" for rank, answer in enumerate(answers) if "error" in answer]
        if errors:
            raise WorkerError(f"{call}: {errors[0]}")
        return [answer["ok"] for answer in answers]

    async def pause(self, kv_cache: KvCache) -> None:
        """Freeze all sequences. After `resume` the engine recomputes their KV under the weights it then has, or goes on
        with the KV that it has, see `kept_sequences.py`.

        Make the call of vLLM's `pause_generation`, without the 20 ms it sleeps at its end to order outputs, and without
        clearing the cache of processed images: there is none, see `options.py`.
        """
        clear = kv_cache == "recompute"
        await self.call(self.client.engine_core.pause_scheduler_async(mode="keep", clear_cache=clear))
        if kv_cache == "keep":
            await self.call(self.client.engine_core.call_utility_async(KEEP_CALL))

    async def resume(self, version: int) -> None:
        """Continue sampling, as version `version`."""
        await self.set_version(version)
        await self.call(self.client.resume_generation())

    async def set_version(self, version: int) -> None:
        """Label every token sampled from now on with `version`."""
        await self.call(self.client.update_weight_version(str(version)))

    async def abort_all(self) -> None:
        """Abort every sequence, also of vLLM's own routes; each request returns the tokens it has."""
        await abort_all(self.client)

    async def _watch_for_death(self) -> None:
        # Poll: vLLM's own thread sets a flag, and there is no event to wait for.
        while not self.client.engine_core.resources.engine_dead:  # noqa: ASYNC110
            await asyncio.sleep(DEATH_POLL_S)
        self.died.set()
        # End pending generators: after an orderly stop vLLM leaves them waiting, and its server waits for them forever.
        self.client.output_processor.propagate_error(EngineDeadError())

    async def _take_heartbeats(self) -> None:
        """Time a round trip through the engine's loop, without the workers. Like a request it waits for a long step."""
        while True:
            try:
                await self.call(self.client.is_paused())
            except EngineDiedError:
                return
            self.last_heartbeat_s = time.monotonic()
            await asyncio.sleep(HEARTBEAT_PERIOD_S)
