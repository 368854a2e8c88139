"""Bounds of a request for logprobs behind images, on an engine that never answers."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from grpo_proto.messages.logprobs import GivenSequence, LogprobsRequest
from grpo_proto.server.refusal import Refusal
from grpo_rollout.weight_state import Weights

# vLLM is imported here, and uses what torch has deprecated.
pytestmark = [pytest.mark.vllm, pytest.mark.timeout(120), pytest.mark.filterwarnings("ignore::DeprecationWarning")]
PLACES = 40
"""Of an image."""


class Engine:
    def __init__(self) -> None:
        self.client = SimpleNamespace(model_config=SimpleNamespace(get_vocab_size=lambda: 100))
        self.running: set[str] = set()
        self.begun = 0
        self.nine_have = asyncio.Event()

    async def generate(self, _: Any, __: Any, engine_id: str) -> None:
        self.running.add(engine_id)
        self.begun += 1
        if self.begun == 9:
            self.nine_have.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.running.discard(engine_id)


class Images:
    """Of which "bad" cannot be used, once nine sequences have begun."""

    def __init__(self, engine: Engine):
        self._engine = engine
        self.prepared_at_once: list[int] = []

    def check(self, *_: Any, num_images: int) -> None:
        pass

    @asynccontextmanager
    async def prepared(
        self, _: str, token_ids: list[int], images: Sequence[str], *, num_sequences: int
    ) -> AsyncIterator[dict[str, list[int]]]:
        self.prepared_at_once.append(num_sequences)
        if "bad" in images:
            await self._engine.nine_have.wait()
            raise Refusal.invalid("unusable_image", "it is none", "send another")
        yield {"prompt_token_ids": [1] * (PLACES - 1) + token_ids}


def scorer(*, max_tokens: int) -> tuple[Any, Engine, Images]:
    """A `Logprobs`, and what it asks."""
    from grpo_rollout.logprobs import Logprobs

    engine = Engine()
    images = Images(engine)
    pushes = SimpleNamespace(weights=Weights(), server_id="s")
    limits = {"max_model_len": 256, "max_tokens": max_tokens, "max_tokens_in_flight": max_tokens}
    return Logprobs(engine, pushes, images, **limits), engine, images  # type: ignore[arg-type]


def asked(count: int, *, bad: bool = False) -> LogprobsRequest:
    """Sequences of three tokens behind one picture, each in a context of its own; `bad`: the last behind another."""
    sequences = [
        GivenSequence(token_ids=[number + 2, 5, 6], num_prompt_tokens=2, images=[int(bad and number == count - 1)])
        for number in range(count)
    ]
    return LogprobsRequest(sequences=sequences, images=["good", "bad"])


async def refused(scores: Any, request: LogprobsRequest) -> str:
    with pytest.raises(Refusal) as error:
        await scores.score(request, asyncio.get_running_loop().create_future())
    return error.value.detail.type


async def test_an_image_that_cannot_be_used_ends_all_sequences_of_its_request():
    scores, engine, _ = scorer(max_tokens=10_000)
    assert await refused(scores, asked(10, bad=True)) == "unusable_image"
    assert (engine.begun, engine.running, scores._tokens_in_flight) == (9, set(), 0)


async def test_the_tokens_of_images_count():
    scores, engine, _ = scorer(max_tokens=4 * (3 + PLACES - 1) - 1)
    assert await refused(scores, asked(4)) == "too_many_tokens"
    assert (engine.running, scores._tokens_in_flight) == (set(), 0)


async def test_a_request_shows_a_bounded_number_of_pictures_however_small_it_is(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("grpo_rollout.logprobs.MAX_PICTURES", 5)
    scores, engine, _ = scorer(max_tokens=10_000)
    assert await refused(scores, asked(6)) == "too_many_images"
    assert engine.begun == 0


async def test_a_context_of_many_sequences_is_scored_in_parts(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("grpo_rollout.logprobs.SEQUENCES_OF_A_CONTEXT", 2)
    scores, _, images = scorer(max_tokens=10_000)
    request = LogprobsRequest(
        sequences=[GivenSequence(token_ids=[2, 5, number], num_prompt_tokens=2, images=[0]) for number in range(5)],
        images=["good"],
        deadline_s=0.2,
    )
    assert await refused(scores, request) == "deadline"
    assert images.prepared_at_once == [2, 2, 1]
