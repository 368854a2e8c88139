"""Sample groups of completions (`POST /v1/rollouts`).

Waits for: the engine, and while weights load for their commit. Ends earlier at the deadline, when the client
disconnects, at a newer request with the same id, and when the weights become stale.
"""

import asyncio
import hashlib
import logging
import math
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Any

import msgspec
from vllm import envs
from vllm.inputs import MultiModalInput
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams

from grpo_proto.messages.base import Message
from grpo_proto.messages.rollout import Prompt, RolloutRequest, Sampling
from grpo_proto.server.refusal import Refusal

from . import metrics, weight_state
from .chat_messages import template_messages
from .completion_text import CompletionText
from .cut_off import client_gone, together, until_cut_off
from .engine import Engine
from .images import Images
from .pushes import Pushes
from .regex_grammar import check_regex, given_up

logger = logging.getLogger("vllm.grpo_rollout.rollouts")

GREEDY_BELOW = 1e-5
"""vLLM samples greedily at temperatures below."""


class Rollouts:
    """Samples groups; one instance per server.

    Args:
        tokenizer: the server's Hugging Face tokenizer.
        chat_template: replaces the tokenizer's own template when not None.
        template_kwargs: what else the template reads, such as `enable_thinking`.
    """

    def __init__(
        self,
        engine: Engine,
        pushes: Pushes,
        images: Images,
        *,
        tokenizer: Any,
        chat_template: str | None,
        template_kwargs: Mapping[str, Any] = MappingProxyType({}),
        max_model_len: int,
    ):
        self.engine = engine
        self.pushes = pushes
        self.images = images
        self.tokenizer = tokenizer
        self.text = CompletionText(tokenizer)
        self.chat_template, self.template_kwargs = chat_template, template_kwargs
        self.max_model_len = max_model_len
        self.vocab_size = engine.client.model_config.get_vocab_size()
        # Use one thread: Hugging Face tokenizers are not made for several, and the event loop has to stay free.
        self.text_thread = ThreadPoolExecutor(1, thread_name_prefix="grpo-text")
        self._running: dict[str, asyncio.Future[None]] = {}

    async def sample(self, request: RolloutRequest, disconnected: asyncio.Future[Any]) -> bytes:
        """Return the encoded body of a RolloutResponse.

        Raises Refusal: 409 session or version, 422 a prompt that does not fit, 503 no weights served, 504 deadline.
        """
        weight_state.check_request(self.pushes.weights, session=request.session, min_version=request.min_version)
        superseded = asyncio.get_running_loop().create_future()
        older = self._running.pop(request.request_id, None)
        if older is not None and not older.done():
            older.set_result(None)
        self._running[request.request_id] = superseded
        newer = Refusal.conflict(
            "superseded", f"a newer request has the id {request.request_id}", "use a new id for a new request"
        )
        try:
            return await until_cut_off(
                self._sample_all(request),
                deadline_s=request.deadline_s,
                ends={superseded: newer, disconnected: client_gone()},
            )
        finally:
            superseded.cancel()
            if self._running.get(request.request_id) is superseded:
                del self._running[request.request_id]

    async def _sample_all(self, request: RolloutRequest) -> bytes:
        prompts_token_ids = await self._token_ids(request.prompts)
        for position, (prompt, token_ids) in enumerate(zip(request.prompts, prompts_token_ids, strict=True)):
            self._check_prompt(position, token_ids)
            self.images.check(f"prompt {position}", token_ids, num_images=len(prompt.images))
        await self.check_sampling(request.sampling)
        stops = self.text.stops(request.sampling)
        outputs = await together(
            *(
                self._sample_group(position, token_ids, prompt, request, stops)
                for position, (prompt, token_ids) in enumerate(zip(request.prompts, prompts_token_ids, strict=True))
            )
        )
        if request.session is not None:
            weight_state.require_current(self.pushes.weights, request.session)
        return await self._body(request, outputs)

    async def _sample_group(
        self, position: int, token_ids: list[int], prompt: Prompt, request: RolloutRequest, stops: Mapping[str, Any]
    ) -> RequestOutput:
        if not prompt.images:
            return await self._sample_prompt(position, token_ids, len(token_ids), prompt, request, stops)
        named, num_sequences = f"prompt {position}", num_sampled(request)
        async with self.images.prepared(named, token_ids, prompt.images, num_sequences=num_sequences) as ready:
            num_tokens = len(ready["prompt_token_ids"])
            if num_tokens >= self.max_model_len:
                raise self._too_long(position, f"{len(token_ids)} tokens, with its images {num_tokens}")
            return await self._sample_prompt(position, ready, num_tokens, prompt, request, stops)

    async def _sample_prompt(
        self,
        position: int,
        ready: list[int] | MultiModalInput,
        num_tokens: int,
        prompt: Prompt,
        request: RolloutRequest,
        stops: Mapping[str, Any],
    ) -> RequestOutput:
        params = sampling_params(request, prompt.seed, room=self.max_model_len - num_tokens, stops=stops)
        trace = {"traceparent": prompt.traceparent} if prompt.traceparent else None
        output = await self.engine.generate(ready, params, f"{request.request_id}/{position}", trace_headers=trace)
        if request.sampling.structured_outputs is not None and "error" in [one.finish_reason for one in output.outputs]:
            raise given_up()
        return output

    async def check_sampling(self, sampling: Sampling) -> None:
        """Raises Refusal (422) for what is impossible with this model."""
        await self._in_thread(check_token_ids, sampling, self.tokenizer, self.vocab_size)
        if sampling.structured_outputs is not None:
            await self._in_thread(check_regex, sampling.structured_outputs.regex, self.tokenizer, self.vocab_size)

    async def _token_ids(self, prompts: list[Prompt]) -> list[list[int]]:
        """Return the prompts as token ids. A thread renders messages with the chat template."""
        conversations = [prompt.messages for prompt in prompts if prompt.messages is not None]
        rendered = iter(await self._in_thread(self._render, conversations) if conversations else [])
        return [prompt.token_ids if prompt.token_ids is not None else next(rendered) for prompt in prompts]

    def _render(self, conversations: list[list[Message]]) -> list[list[int]]:
        readable = [template_messages(messages) for messages in conversations]
        try:
            token_ids: list[list[int]] = self.tokenizer.apply_chat_template(
                readable,
                chat_template=self.chat_template,
                add_generation_prompt=True,
                tokenize=True,
                return_dict=False,
                **self.template_kwargs,
            )
            return token_ids
        # Catch everything: a template is a program of the model's author.
        except Exception as error:
            raise Refusal.invalid(
                "chat_template", f"the chat template refused the messages: {error}", "send token_ids instead"
            ) from error

    def _check_prompt(self, position: int, token_ids: list[int]) -> None:
        if len(token_ids) >= self.max_model_len:
            raise self._too_long(position, f"{len(token_ids)} tokens")
        check_vocabulary(f"prompt {position}", token_ids, self.vocab_size)

    def _too_long(self, position: int, length: str) -> Refusal:
        return Refusal.invalid(
            "prompt_too_long",
            f"prompt {position} has {length}; the context holds {self.max_model_len}, including at least one sampled "
            "token",
            "shorten the prompt or start the server with a larger --max-model-len",
        )

    async def _body(self, request: RolloutRequest, outputs: list[RequestOutput]) -> bytes:
        """Encode the response group by group, and yield to the event loop after each group."""
        sampled = [completion for output in outputs for completion in output.outputs]
        texts = iter(await self._in_thread(self.text.texts, sampled, request.sampling))
        groups = []
        for position, output in enumerate(outputs):
            completions = [completion_fields(completion, next(texts)) for completion in output.outputs]
            for number, completion in enumerate(completions):
                check_finite(f"completion {number} of prompt {position}", completion["logprobs"] or [])
            completions *= request.n // len(completions)
            groups.append(
                msgspec.json.encode({"prompt_token_ids": output.prompt_token_ids, "completions": completions})
            )
            for completion in completions:
                metrics.SEQUENCES.labels(completion["finish_reason"]).inc()
                metrics.TOKENS.inc(len(completion["token_ids"]))
            await asyncio.sleep(0)
        rest = msgspec.json.encode({"session": request.session, "server_id": self.pushes.server_id})
        return b'{"groups":[' + b",".join(groups) + b"]," + rest[1:]

    async def _in_thread(self, function: Any, *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self.text_thread, function, *args)


def check_finite(named: str, logprobs: list[float]) -> None:
    """Raises Refusal (500) for a logprob that is no finite number, which JSON would make null."""
    if all(map(math.isfinite, logprobs)):
        return
    position = next(position for position, logprob in enumerate(logprobs) if not math.isfinite(logprob))
    raise Refusal(
        500,
        "logprob_not_finite",
        f"logprob {position} of {named} is {logprobs[position]}: the served weights, or a kernel, computed no number",
        hint="look for NaN in the policy's weights; without any, use another dtype or attention backend",
    )


def check_vocabulary(named: str, token_ids: list[int], vocab_size: int) -> None:
    """Raises Refusal (422) for a token id that the model does not have."""
    if max(token_ids) >= vocab_size:
        raise Refusal.invalid(
            "unknown_token",
            f"{named} holds token {max(token_ids)}; the vocabulary ends at {vocab_size - 1}",
            "compare tokenizer_fingerprint of GET /info with the client's tokenizer",
        )


def check_token_ids(sampling: Sampling, tokenizer: Any, vocab_size: int) -> None:
    """Raises Refusal (422) for tokens that the model does not have, and for more of `bad_words` than an engine takes.

    vLLM's engine dies on a GPU of more.
    """
    if sampling.stop_token_ids:
        check_vocabulary("stop_token_ids", sampling.stop_token_ids, vocab_size)
    if sampling.logit_bias:
        check_vocabulary("logit_bias", list(sampling.logit_bias), vocab_size)
    words = [prefix + word.lstrip() for word in sampling.bad_words for prefix in ("", " ")]
    if ids := [token_id for word in words for token_id in tokenizer.encode(word, add_special_tokens=False)]:
        check_vocabulary("bad_words", ids, vocab_size)
    if len(ids) > envs.VLLM_MAX_BAD_WORDS_TOTAL_TOKENS:
        raise Refusal.invalid(
            "too_many_bad_words",
            f"bad_words has {len(ids)} tokens, alone and behind a blank; the engine takes "
            f"{envs.VLLM_MAX_BAD_WORDS_TOTAL_TOKENS}",
            "send fewer or shorter ones",
        )


def num_sampled(request: RolloutRequest) -> int:
    """Return how many completions of a prompt are sampled: one when greedy, because all n would be the same."""
    return request.n if request.sampling.temperature >= GREEDY_BELOW else 1


def sampling_params(
    request: RolloutRequest, seed: int | None, *, room: int, stops: Mapping[str, Any] = MappingProxyType({})
) -> SamplingParams:
    """Return vLLM's parameters for one prompt. `max_tokens` is capped to `room`, what the prompt leaves of the context.

    Request one completion when greedy: vLLM refuses to sample more than one.

    Spread the seed: vLLM gives completion i the seed plus i, and seeds of prompts are often consecutive. Otherwise
    completion 1 of prompt 7 and completion 0 of prompt 8 would draw the same numbers.
    """
    sampling = request.sampling
    return SamplingParams(
        n=num_sampled(request),
        **distribution(sampling, max_tokens=min(sampling.max_tokens, room)),
        **stops,
        seed=None if seed is None else spread_seed(seed),
        # 0 requests the logprob of the sampled token alone. Flat lists save an object per token.
        logprobs=0 if sampling.logprobs else None,
        flat_logprobs=True,
        detokenize=bool(sampling.stop),
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def distribution(sampling: Sampling, *, max_tokens: int, num_sampled: int = 0) -> dict[str, Any]:
    """Return the parameters of vLLM that each token is drawn by, and how many there may be, behind `num_sampled`."""
    structured = sampling.structured_outputs
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "logit_bias": sampling.logit_bias or None,
        "bad_words": sampling.bad_words,
        "structured_outputs": StructuredOutputsParams(regex=structured.regex) if structured is not None else None,
        "max_tokens": max_tokens,
        "min_tokens": min(max(0, sampling.min_tokens - num_sampled), max_tokens),
    }


def spread_seed(seed: int) -> int:
    """Hash a seed to a number below 2⁶², so that consecutive seeds end far apart."""
    return int.from_bytes(hashlib.blake2b(seed.to_bytes(8), digest_size=8).digest()) >> 2


def completion_fields(completion: CompletionOutput, text: str) -> dict[str, Any]:
    """Return the fields of a wire Completion. Skip validation: checking every token costs more than sampling it."""
    logprobs: Any = completion.logprobs
    return {
        "token_ids": list(completion.token_ids),
        "logprobs": None if logprobs is None else logprobs.logprobs,
        "text": text,
        "finish_reason": completion.finish_reason,
        "versions": [(int(span.version), span.end - span.start) for span in completion.weight_versions or []],
    }
