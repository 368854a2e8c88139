"""Score given sequences (`POST /v1/logprobs`): the logprobs that the served weights give to tokens of anybody.

vLLM computes the logprobs of a prompt while it processes it, from the model's own logits: neither temperature nor
truncation, and none of it from the prefix cache, which keeps no logits. It does not end a prompt without sampling, so a
sequence needs room for one token more.

Waits for: the engine, and while weights load for their commit. A sequence that a push interrupts is processed anew, so
all its logprobs are of one version. Ends earlier at the deadline, when the client disconnects, and when the weights
become stale.
"""

import asyncio
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from vllm.inputs import MultiModalInput
from vllm.outputs import RequestOutput
from vllm.sampling_params import RequestOutputKind, SamplingParams

from grpo_proto.messages.logprobs import GivenSequence, LogprobsRequest
from grpo_proto.server.refusal import Refusal

from . import metrics, weight_state
from .cut_off import client_gone, together, until_cut_off
from .engine import Engine
from .images import Images
from .pushes import Pushes
from .rollouts import check_finite, check_vocabulary

RETRY_AFTER_S = 1.0
SEQUENCES_OF_A_CONTEXT = 256
"""How many sequences the engine has at once behind one processing of their images, which counts the memory of all."""
MAX_PICTURES = 4096
"""How many pictures the different contexts of a request show: an image may be in many, and is processed for each."""


class Logprobs:
    """Scores given sequences; one instance per server.

    Args:
        max_tokens: of all sequences of one request, prompts included (`--max-scored-tokens`).
        max_tokens_in_flight: of all requests that are unanswered (`--max-scored-tokens-in-flight`).
    """

    def __init__(
        self,
        engine: Engine,
        pushes: Pushes,
        images: Images,
        *,
        max_model_len: int,
        max_tokens: int,
        max_tokens_in_flight: int,
    ):
        self.engine = engine
        self.pushes = pushes
        self.images = images
        self.max_model_len = max_model_len
        self.max_tokens = max_tokens
        self.max_tokens_in_flight = max_tokens_in_flight
        self.vocab_size = engine.client.model_config.get_vocab_size()
        self._tokens_in_flight = 0

    async def score(self, request: LogprobsRequest, disconnected: asyncio.Future[Any]) -> bytes:
        """Return the encoded body of a LogprobsResponse.

        Raises Refusal: 422 a sequence or a request that does not fit, 429 too many tokens in flight, 503 no weights are
        served or others came meanwhile, 504 deadline.
        """
        weight_state.check_request(self.pushes.weights, session=None, min_version=None)
        for position, sequence in enumerate(request.sequences):
            self._check_sequence(position, sequence)
        contexts = equal_contexts(request.sequences)
        num_pictures = sum(len(request.sequences[positions[0]].images) for positions in contexts)
        if num_pictures > MAX_PICTURES:
            raise Refusal.invalid(
                "too_many_images",
                f"the contexts show {num_pictures} pictures in all; a request may have {MAX_PICTURES}",
                "send fewer sequences in a request",
            )
        tokens = _Tokens(sum(len(sequence.token_ids) for sequence in request.sequences))
        self._check_room(tokens.count)
        self._tokens_in_flight += tokens.count
        try:
            ends = {disconnected: client_gone()}
            answer = self._score_all(request, contexts, tokens)
            return await until_cut_off(answer, deadline_s=request.deadline_s, ends=ends)
        finally:
            self._tokens_in_flight -= tokens.count

    async def _score_all(self, request: LogprobsRequest, contexts: list[list[int]], tokens: "_Tokens") -> bytes:
        session, engine_id = self.pushes.weights.committed_session, uuid.uuid4().hex
        scored: list[dict[str, Any]] = [{}] * len(request.sequences)

        async def score(position: int, prompt: list[int] | MultiModalInput) -> None:
            output = await self.engine.generate(prompt, scoring_params(), f"logprobs-{engine_id}/{position}")
            scored[position] = sequence_fields(output, request.sequences[position].num_scored)

        async def score_behind_images(positions: list[int]) -> None:
            first = request.sequences[positions[0]]
            named, images = f"sequence {positions[0]}", [request.images[number] for number in first.images]
            prepared = self.images.prepared(named, first.prompt_ids, images, num_sequences=len(positions))
            async with prepared as ready:
                self._count_images(tokens, len(positions) * (len(ready["prompt_token_ids"]) - first.num_prompt_tokens))
                whole = [self._behind(ready, position, request.sequences[position]) for position in positions]
                await together(*map(score, positions, whole))

        texts = [position for position, one in enumerate(request.sequences) if not one.images]
        await together(
            *(score(position, request.sequences[position].token_ids) for position in texts),
            *map(score_behind_images, contexts),
        )
        weights = self.pushes.weights
        if weights.committed_session != session and (session is None or not weights.are_of(session)):
            raise Refusal.busy(
                503, "weights_replaced", "weights of another session came while this was scored", RETRY_AFTER_S
            )
        for position, one in enumerate(scored):
            check_finite(f"sequence {position}", one["logprobs"])
        metrics.SCORED_TOKENS.inc(sum(len(one["logprobs"]) for one in scored))
        return msgspec.json.encode({"sequences": scored, "session": session, "server_id": self.pushes.server_id})

    def _count_images(self, tokens: "_Tokens", more: int) -> None:
        """Count what the images of a request take, once it is known. Raises Refusal (422) for too much in one request;
        what others leave room for was asked before."""
        if tokens.count + more > self.max_tokens:
            raise self._too_many_tokens(f"{tokens.count + more} tokens or more, with those of their images")
        tokens.count += more
        self._tokens_in_flight += more

    def _behind(self, ready: MultiModalInput, position: int, sequence: GivenSequence) -> MultiModalInput:
        """Return a context with its images and the tokens to score behind it. Raises Refusal (422) for too many."""
        token_ids = [*ready["prompt_token_ids"], *sequence.token_ids[sequence.num_prompt_tokens :]]
        self._check_length(position, len(token_ids))
        return {**ready, "prompt_token_ids": token_ids}

    def _check_sequence(self, position: int, sequence: GivenSequence) -> None:
        """Raises Refusal (422) for a sequence that the model cannot process."""
        self._check_length(position, len(sequence.token_ids))
        check_vocabulary(f"sequence {position}", sequence.token_ids, self.vocab_size)
        self.images.check(f"sequence {position}", sequence.prompt_ids, num_images=len(sequence.images))

    def _check_length(self, position: int, length: int) -> None:
        if length >= self.max_model_len:
            raise Refusal.invalid(
                "sequence_too_long",
                f"sequence {position} has {length} tokens; the context holds {self.max_model_len}, including one token "
                "that the engine samples after it",
                "shorten the sequence or start the server with a larger --max-model-len",
            )

    def _check_room(self, num_tokens: int) -> None:
        """Raises Refusal: 422 for a request over the bound of one, 429 while others leave no room for it."""
        if num_tokens > self.max_tokens:
            raise self._too_many_tokens(f"{num_tokens} tokens in all")
        if self._tokens_in_flight + num_tokens > self.max_tokens_in_flight:
            raise Refusal.busy(
                429,
                "too_many_tokens_in_flight",
                f"{self._tokens_in_flight} tokens are being scored, {num_tokens} more would exceed "
                f"--max-scored-tokens-in-flight {self.max_tokens_in_flight}",
                RETRY_AFTER_S,
            )

    def _too_many_tokens(self, number: str) -> Refusal:
        return Refusal.invalid(
            "too_many_tokens",
            f"the sequences have {number}; --max-scored-tokens is {self.max_tokens}",
            "send fewer sequences in a request, or start the server with a greater --max-scored-tokens",
        )


@dataclass
class _Tokens:
    """Counts those of one request; what its images take is added as it becomes known."""

    count: int


def equal_contexts(sequences: Sequence[GivenSequence]) -> list[list[int]]:
    """Group the positions of sequences with images by their context, some hundred at most: its pictures are processed
    once for them."""
    groups: dict[tuple[tuple[int, ...], ...], list[int]] = {}
    for position, one in enumerate(sequences):
        if one.images:
            groups.setdefault((tuple(one.images), tuple(one.prompt_ids)), []).append(position)
    step = SEQUENCES_OF_A_CONTEXT
    return [part[first : first + step] for part in groups.values() for first in range(0, len(part), step)]


def scoring_params() -> SamplingParams:
    """Return vLLM's parameters for one sequence. 0 requests the logprob of each prompt token alone."""
    return SamplingParams(
        temperature=0.0,
        max_tokens=1,
        prompt_logprobs=0,
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def sequence_fields(output: RequestOutput, num_scored: int) -> dict[str, Any]:
    """Return the fields of a wire SequenceLogprobs of the last `num_scored` tokens; the version is that of the token
    that ended the sequence.

    Raises Refusal (503) for a sequence that was aborted.
    """
    flat: Any = output.prompt_logprobs
    sampled = output.outputs[0]
    # The first token of a sequence has no logprob, and no entry in the flat list.
    if flat is None or not sampled.token_ids or len(flat.logprobs) != len(output.prompt_token_ids or ()) - 1:
        raise Refusal.busy(
            503, "aborted", "the sequence was aborted: a push failed, or the server is stopping", RETRY_AFTER_S
        )
    version = int((sampled.weight_versions or [])[-1].version)
    return {"logprobs": flat.logprobs[-num_scored:], "version": version}
