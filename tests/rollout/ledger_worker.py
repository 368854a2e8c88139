"""A worker without a model, under vLLM's real engine core: it notes which weights computed each entry of the KV cache.

It keeps the state that a worker keeps, in one of the two ways that vLLM's runners do, and computes nothing: a token is
a function of the request's seed and the position. `schedules.py` drives it.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from vllm.v1.executor.abstract import Executor
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, ModelRunnerOutput

BLOCK_SIZE = 16
VOCABULARY = 256


def sampled_token(seed: int, position: int) -> int:
    """What a request with `seed` samples at `position`, whatever happens meanwhile."""
    return 5 + hashlib.blake2b(f"{seed}/{position}".encode(), digest_size=1).digest()[0] % 90


@dataclass
class Sequence:
    """A request as the worker knows it. `prefix[i]` stands for the tokens up to and with `i`."""

    seed: int
    tokens: list[int]
    prefix: list[int]
    num_given: int
    """Tokens that were given with the request, or at its return: a step that ends there samples."""
    num_computed: int
    blocks: list[int]

    def append(self, token: int) -> None:
        self.tokens.append(token)
        self.prefix.append(hash((self.prefix[-1] if self.prefix else 0, token)))

    def slot(self, position: int) -> tuple[int, int]:
        return self.blocks[position // BLOCK_SIZE], position % BLOCK_SIZE


@dataclass(frozen=True)
class Sampled:
    """A token at a position: by which version, on a context of which versions, and the last version at which all
    sequences had to start again."""

    version: int
    context: frozenset[int]
    floor: int


class LedgerExecutor(Executor):
    """`version` are the weights that compute now. `samples[request, position]` and `errors` are what it writes down."""

    uses_ray, supports_pp = False, True
    forgets_preempted: ClassVar[bool] = True
    """As Model Runner V2 does: a preempted request comes back as a new one. The older runner keeps it."""

    def _init_executor(self) -> None:
        self.version = self.floor = 0
        self.num_steps = 0
        self.samples: dict[tuple[str, int], list[Sampled]] = defaultdict(list)
        self.errors: list[str] = []
        self._kv: dict[tuple[int, int], tuple[int, frozenset[int]]] = {}
        self._sequences: dict[str, Sequence] = {}
        self._pending: ModelRunnerOutput | None = None

    # --- a step ------------------------------------------------------------------------------------------------

    def execute_model(self, plan: Any, non_block: bool = False) -> Any:
        self._update(plan)
        if plan.total_num_scheduled_tokens == 0:
            self._pending = None
            return _done(EMPTY_MODEL_RUNNER_OUTPUT) if non_block else EMPTY_MODEL_RUNNER_OUTPUT
        self.num_steps += 1
        tokens = [self._compute(name, count) for name, count in plan.num_scheduled_tokens.items()]
        names = list(plan.num_scheduled_tokens)
        index = {name: number for number, name in enumerate(names)}
        self._pending = ModelRunnerOutput(req_ids=names, req_id_to_index=index, sampled_token_ids=tokens)
        return _done(None) if non_block else None

    def sample_tokens(self, grammar: Any, non_block: bool = False) -> Any:
        output, self._pending = self._pending, None
        return _done(output) if non_block else output

    def _update(self, plan: Any) -> None:
        gone: Iterable[str] = set(plan.finished_req_ids)
        if self.forgets_preempted:
            gone = {*gone, *(plan.preempted_req_ids or ())}
        for name in gone:
            self._sequences.pop(name, None)
        for new in plan.scheduled_new_reqs:
            given = new.prefill_token_ids if self.forgets_preempted else new.prompt_token_ids
            sequence = Sequence(
                new.sampling_params.seed, [], [], len(given), new.num_computed_tokens, list(new.block_ids[0])
            )
            for token in given:
                sequence.append(token)
            self._sequences[new.req_id] = sequence
        known = plan.scheduled_cached_reqs
        for name, num_computed, blocks in zip(
            known.req_ids, known.num_computed_tokens, known.new_block_ids, strict=True
        ):
            sequence = self._sequences[name]
            sequence.num_computed = num_computed
            if name in known.resumed_req_ids:
                sequence.blocks, sequence.num_given = list(blocks[0]), len(sequence.tokens)
            elif blocks is not None:
                sequence.blocks += blocks[0]

    def _compute(self, name: str, count: int) -> list[int]:
        """Compute `count` tokens of a sequence, and sample one where they reach its end."""
        sequence = self._sequences[name]
        start, end = sequence.num_computed, sequence.num_computed + count
        if end > len(sequence.tokens):
            self.errors.append(f"{name}: scheduled up to {end}, and the worker has {len(sequence.tokens)} tokens")
        context: frozenset[int] = frozenset()
        for position in range(start):
            prefix, versions = self._kv.get(sequence.slot(position), (None, context))
            if prefix != sequence.prefix[position]:
                self.errors.append(f"{name}: the KV at {position} belongs to other tokens")
                break
            context |= versions
        context |= {self.version}
        for position in range(start, min(end, len(sequence.tokens))):
            self._kv[sequence.slot(position)] = (sequence.prefix[position], context)
        sequence.num_computed = end
        if end != len(sequence.tokens) or end < sequence.num_given:
            return []
        token = sampled_token(sequence.seed, end)
        sequence.append(token)
        self.samples[name, end].append(Sampled(self.version, context, self.floor))
        return [token]

    # --- what vLLM asks at the start, and in between --------------------------------------------------------------

    def get_kv_cache_specs(self) -> list[dict[str, Any]]:
        spec = FullAttentionSpec(block_size=BLOCK_SIZE, num_kv_heads=1, head_size=32, dtype=torch.float32)
        return [{"layer": spec}]

    def get_supported_kv_cache_layouts(self) -> list[list[str]]:
        return [["LBNHC"]]

    def determine_available_memory(self) -> list[int]:
        return [2**24]

    def compile_or_warm_up_model(self) -> float:
        return 0.0

    def collective_rpc(self, *_: Any, **__: Any) -> list[None]:
        return [None]

    def set_kv_cache_layout(self, *_: Any) -> None: ...

    def initialize_from_config(self, *_: Any, **__: Any) -> None: ...

    def check_health(self) -> None: ...

    def reset_mm_cache(self) -> None: ...

    def reset_encoder_cache(self) -> None: ...

    @classmethod
    def supports_async_scheduling(cls) -> bool:
        return True


def _done(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future
