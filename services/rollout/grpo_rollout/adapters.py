"""The adapters that this server serves, by version, and which of them each request samples from.

A version is an adapter of its own, named `policy@<session>.<version>`: vLLM's prefix cache tells adapters apart by
name, so a version's KV never serves another version. Requests that name no adapter get the newest version, vLLM's own
routes too; `policy` is an alias for it. A request keeps its version to its end, and a version that no request uses any
more is unloaded, unless it is the newest.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from vllm.config.lora import LoRAConfig
from vllm.exceptions import VLLMNotFoundError
from vllm.lora.request import LoRARequest
from vllm.outputs import RequestOutput

from grpo_proto.messages.rollout import AdapterLimits
from grpo_proto.messages.weights import BeginRequest
from grpo_proto.server.refusal import Refusal

from . import metrics
from .adapter_check import BaseDigest, check_config, check_tensors, tensor_names
from .engine import Engine
from .weight_state import Push

ALIAS = "policy"
FIRST_ID = 2**20
"""Above the ids of vLLM's own: those of its warm-up and of --lora-modules count from 1."""
RETRY_AFTER_S = 1.0
SETTLE_S = 0.05
"""How long after its last use a version stays: vLLM may tell the client that a sequence has ended a moment before it
tells the engine."""


@dataclass(frozen=True, eq=False)
class Adapter:
    """One version. Compare by identity: a failed version may be pushed again, under the same name."""

    request: LoRARequest


def adapter_name(session: int, version: int) -> str:
    return f"{ALIAS}@{session}.{version}"


def version_of(request: LoRARequest | None) -> int | None:
    """Return the policy version of the adapter that a sequence was sampled from; None for the base."""
    if request is None or request.lora_int_id < FIRST_ID:
        return None
    return int(request.lora_name.rpartition(".")[2])


class Adapters:
    """Holds the versions of one server; made for a server with --enable-lora.

    Args:
        models: vLLM's `OpenAIServingModels`, which resolves the model names of vLLM's own routes.
        on_unused: called when a version that is not the newest has lost its last request.
    """

    def __init__(self, engine: Engine, limits: LoRAConfig, base: BaseDigest, models: Any):
        self.engine, self.base, self.config, self.models = engine, base, limits, models
        max_cpu_loras = limits.max_cpu_loras or limits.max_loras
        self.limits = AdapterLimits(
            max_loras=limits.max_loras, max_lora_rank=limits.max_lora_rank, max_cpu_loras=max_cpu_loras
        )
        self.newest: Adapter | None = None
        self.on_unused: Callable[[], None] = lambda: None
        self._loading: Adapter | None = None
        self._loaded: dict[str, Adapter] = {}
        self._retired: list[Adapter] = []
        self._num_requests: Counter[Adapter] = Counter()
        self._next_id = FIRST_ID
        self._generate = engine.client.generate
        engine.client.generate = self.generate

    # --- requests ----------------------------------------------------------------------------------------------

    async def generate(
        self,
        prompt: Any,
        sampling_params: Any,
        request_id: str,
        *,
        lora_request: LoRARequest | None = None,
        **options: Any,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Stand in for `generate` of the engine client, which every route calls; hold the version while it samples.

        Raises VLLMNotFoundError for a version that has been unloaded.
        """
        adapter = self._choose(lora_request)
        if adapter is not None:
            lora_request = adapter.request
            self._num_requests[adapter] += 1
        try:
            outputs = self._generate(prompt, sampling_params, request_id, lora_request=lora_request, **options)
            async with aclosing(outputs):
                async for output in outputs:
                    yield output
        finally:
            if adapter is not None:
                self._release(adapter)

    def _choose(self, asked: LoRARequest | None) -> Adapter | None:
        """Return the version for a request; None when it takes the base, or an adapter of --lora-modules."""
        if asked is None or (asked.lora_name == ALIAS and asked.lora_int_id >= FIRST_ID):
            return self.newest
        if asked.lora_int_id < FIRST_ID:
            return None
        adapter = self._loaded.get(asked.lora_name)
        if adapter is None:
            raise VLLMNotFoundError(f"{asked.lora_name} is not served any more; {ALIAS} names the newest version")
        return adapter

    def _release(self, adapter: Adapter) -> None:
        self._num_requests[adapter] -= 1
        if self._num_requests[adapter] <= 0:
            del self._num_requests[adapter]
            if adapter is not self.newest:
                self.on_unused()

    # --- pushes ------------------------------------------------------------------------------------------------

    async def check(self, request: BeginRequest) -> None:
        """Raises Refusal for a push that cannot be served: 422 adapter, 409 base, 429 versions in use, 503 digest."""
        helper = check_config(request.peft_config, self.config)
        await self.base.check(request.base_digest, timeout_s=request.deadline_s)
        names = tensor_names(request.manifest)
        answers = await self.engine.workers("adapter_sizes", names)
        # Of several workers, each knows the layers that it has.
        check_tensors(request.manifest, helper, {name: size for answer in answers for name, size in answer.items()})
        self._check_room()

    def _check_room(self) -> None:
        """Raises Refusal (429) when one more version would not fit beside those that are in use."""
        self._retire()
        if len(self._loaded) >= self.limits.max_cpu_loras:
            raise Refusal.busy(
                429,
                "versions_in_use",
                f"{len(self._loaded)} versions are in use, and --max-cpu-loras is {self.limits.max_cpu_loras}",
                RETRY_AFTER_S,
                hint="push once the oldest sequences have ended, or start the server with a greater --max-cpu-loras",
            )

    def start(self, push: Push) -> LoRARequest:
        """Return what the version of a push will be called. It has an id of its own; no request gets it yet."""
        self._next_id += 1
        name = adapter_name(push.session, push.version)
        self._loading = Adapter(LoRARequest(lora_name=name, lora_int_id=self._next_id, lora_path=f"/{name}"))
        return self._loading.request

    def publish(self) -> None:
        """Serve the version that has been loaded, from now on, as the newest."""
        if self._loading is None:
            raise RuntimeError("no adapter has been loaded")
        self.newest, self._loading = self._loading, None
        request = self.newest.request
        self._loaded[request.lora_name] = self.newest
        self._retire()
        alias = LoRARequest(lora_name=ALIAS, lora_int_id=request.lora_int_id, lora_path=request.lora_path)
        self.models.lora_requests |= {ALIAS: alias, request.lora_name: request}

    def abandon(self) -> None:
        """Forget the version that was being loaded: its push has failed."""
        if self._loading is not None:
            self._retired.append(self._loading)
            self._loading = None

    def withdraw(self) -> None:
        """Serve no version to new requests: all weights are about to be overwritten."""
        self.newest = None
        self.models.lora_requests.pop(ALIAS, None)
        self._retire()

    def _retire(self) -> None:
        """Withdraw the names of versions that no request uses, except the newest version's."""
        for name, adapter in list(self._loaded.items()):
            if adapter is not self.newest and adapter not in self._num_requests:
                self._retired.append(self._loaded.pop(name))
                self.models.lora_requests.pop(name, None)

    async def unload_unused(self) -> None:
        """Have the workers unload versions that no request can get any more. Raises WorkerError, EngineDiedError."""
        self._retire()
        retired, self._retired = self._retired, []
        if retired:
            await asyncio.sleep(SETTLE_S)
            ids = [adapter.request.lora_int_id for adapter in retired]
            metrics.ADAPTERS.set(max(await self.engine.workers("unload_adapters", ids)))
