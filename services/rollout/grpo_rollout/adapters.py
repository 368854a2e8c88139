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
from typing import Any

from vllm.config.lora import LoRAConfig
from vllm.exceptions import VLLMNotFoundError
from vllm.lora.request import LoRARequest
from vllm.outputs import RequestOutput, WeightVersionSpan

from grpo_proto.messages.rollout import AdapterLimits
from grpo_proto.messages.weights import BeginRequest
from grpo_proto.server.refusal import Refusal

from . import metrics
from .adapter_check import BaseDigest, check_config, check_tensors, tensor_names
from .engine import Engine, WorkerError
from .weight_state import Push

ALIAS = "policy"
FIRST_ID = 2**20
"""Above the ids of vLLM's own: those of its warm-up and of --lora-modules count from 1."""
RETRY_AFTER_S = 1.0
SETTLE_S = 0.05
"""How long after its last use a version stays: vLLM may tell the client that a sequence has ended a moment before it
tells the engine."""


def adapter_name(session: int, version: int) -> str:
    return f"{ALIAS}@{session}.{version}"


def version_of(request: LoRARequest | None) -> int | None:
    """Return the policy version of the adapter that a sequence was sampled from; None for the base."""
    if request is None or request.lora_int_id < FIRST_ID:
        return None
    return int(request.lora_name.rpartition(".")[2])


def _label(output: RequestOutput, version: int | None) -> None:
    if version is None:
        return
    for completion in output.outputs:
        if completion.weight_versions:
            end = completion.weight_versions[-1].end
            completion.weight_versions = [WeightVersionSpan(version=str(version), start=0, end=end)]


class Adapters:
    """Holds the versions of one server with --enable-lora, each as the request of vLLM's that names it.

    Args:
        config: vLLM's limits.
        base: the digest of the checkpoint that adapters must have been trained on.
        models: vLLM's `OpenAIServingModels`, which resolves the model names of vLLM's own routes.

    `on_unused` is called when a version that is not the newest has lost its last request.
    """

    def __init__(self, engine: Engine, config: LoRAConfig, base: BaseDigest, models: Any):
        self.engine, self.config, self.base, self.models = engine, config, base, models
        self.limits = AdapterLimits(
            max_loras=config.max_loras,
            max_lora_rank=config.max_lora_rank,
            max_cpu_loras=config.max_cpu_loras or config.max_loras,
        )
        self.newest: LoRARequest | None = None
        self.on_unused: Callable[[], None] = lambda: None
        self._loading: LoRARequest | None = None
        self._loaded: dict[str, LoRARequest] = {}
        self._retired_ids: list[int] = []
        self._num_requests: Counter[str] = Counter()
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

        Every token of a sequence is of its adapter's version; the engine's own label is that of all weights.

        Raises VLLMNotFoundError for a version that has been unloaded.
        """
        chosen = self._choose(lora_request)
        self._hold(chosen)
        try:
            outputs = self._generate(prompt, sampling_params, request_id, lora_request=chosen, **options)
            async with aclosing(outputs):
                async for output in outputs:
                    _label(output, version_of(chosen))
                    yield output
        finally:
            self._release(chosen)

    def _choose(self, asked: LoRARequest | None) -> LoRARequest | None:
        """Return the version for a request; None for the base. An adapter of --lora-modules is none of ours."""
        if asked is None:
            return self.newest
        if asked.lora_int_id < FIRST_ID:
            return asked
        chosen = self.newest if asked.lora_name == ALIAS else self._loaded.get(asked.lora_name)
        if chosen is None:
            raise VLLMNotFoundError(f"{asked.lora_name} is not served any more; GET /v1/models lists what is")
        return chosen

    def _hold(self, chosen: LoRARequest | None) -> None:
        if chosen is not None:
            self._num_requests[chosen.lora_name] += 1

    def _release(self, chosen: LoRARequest | None) -> None:
        if chosen is not None:
            self._num_requests[chosen.lora_name] -= 1
            if self._num_requests[chosen.lora_name] == 0:
                del self._num_requests[chosen.lora_name]
                if chosen.lora_name in self._loaded and chosen is not self.newest:
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
        """Raises Refusal (429) when one more version would not fit beside those that have requests."""
        num_used = sum(name in self._num_requests for name in self._loaded)
        if num_used >= self.limits.max_cpu_loras:
            raise Refusal.busy(
                429,
                "versions_in_use",
                f"{num_used} versions have requests, and --max-cpu-loras is {self.limits.max_cpu_loras}",
                RETRY_AFTER_S,
                hint="push once the oldest sequences have ended, or start the server with a greater --max-cpu-loras",
            )

    def start(self, push: Push) -> LoRARequest:
        """Return what the version of a push will be called. It has an id of its own; no request gets it yet."""
        self._next_id += 1
        name = adapter_name(push.session, push.version)
        self._loading = LoRARequest(lora_name=name, lora_int_id=self._next_id, lora_path=f"/{name}")
        return self._loading

    def publish(self) -> None:
        """Serve the version that has been loaded, from now on, as the newest."""
        if self._loading is None:
            raise RuntimeError("no adapter has been loaded")
        newest, self._loading = self._loading, None
        self.newest = self._loaded[newest.lora_name] = newest
        metrics.ADAPTERS.set(len(self._loaded))
        self._retire()
        alias = LoRARequest(lora_name=ALIAS, lora_int_id=newest.lora_int_id, lora_path=newest.lora_path)
        self.models.lora_requests |= {ALIAS: alias, newest.lora_name: newest}

    def abandon(self) -> None:
        """Forget the version that was being loaded: its push has failed."""
        if self._loading is not None:
            self._retired_ids.append(self._loading.lora_int_id)
            self._loading = None

    def withdraw(self) -> None:
        """Serve no version to new requests: all weights are about to be overwritten."""
        self.newest = None
        self.models.lora_requests.pop(ALIAS, None)
        self._retire()

    def _retire(self) -> None:
        """Withdraw the names of versions that no request uses, except the newest version's."""
        for name, version in list(self._loaded.items()):
            if version is not self.newest and name not in self._num_requests:
                del self._loaded[name]
                self._retired_ids.append(version.lora_int_id)
                self.models.lora_requests.pop(name, None)

    async def unload_unused(self) -> None:
        """Have the workers unload versions that no request can get any more. Raises WorkerError, EngineDiedError."""
        self._retire()
        ids, self._retired_ids = self._retired_ids, []
        if ids:
            await asyncio.sleep(SETTLE_S)
            try:
                left = await self.engine.workers("unload_adapters", ids)
            except WorkerError:
                self._retired_ids += ids
                raise
            metrics.ADAPTERS.set(max(left))
