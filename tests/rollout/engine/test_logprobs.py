"""`POST /v1/logprobs` against a real engine."""

import asyncio

import httpx
import pytest

from grpo_proto.messages.errors import DataError, ErrorBody, InfrastructureError
from grpo_proto.messages.logprobs import GivenSequence, LogprobsRequest, LogprobsResponse
from grpo_proto.messages.weights import AbortRequest
from tests.rollout.conftest import Server, given, given_error, in_flight, long_request
from tests.rollout.engine.conftest import MAX_SCORED_TOKENS
from tests.rollout.pushing import manifest_of
from tests.waiting import PATIENCE_S

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900), pytest.mark.xdist_group("engine")]


async def score(server: Server, *sequences: GivenSequence, deadline_s: float = 60.0) -> LogprobsResponse:
    async with server.client() as client:
        return await client.logprobs(LogprobsRequest(sequences=list(sequences), deadline_s=deadline_s))


async def test_the_answer_is_that_of_the_served_weights_beside_sampling(fresh: Server):
    sequences = [given(length, num_prompt_tokens) for length, num_prompt_tokens in ((2, 1), (40, 7), (255, 250))]
    async with in_flight(fresh, long_request("beside", prompts=8)):  # the engine takes requests in their order
        answer = await score(fresh, *sequences)
    assert given_error(fresh.model(1), sequences, answer) <= 0.03
    async with fresh.client() as client:
        info = await client.info()
    assert {one.version for one in answer.sequences} == {1}
    assert (answer.session, answer.server_id) == (info.weights.newest_session, info.server_id)


async def test_the_logprobs_are_of_temperature_1_as_the_sampled_ones_are(fresh: Server):
    """Of a prompt that the prefix cache has, too: the cache holds no logits."""
    group = (await fresh.sample(prompts=[[5] * 64], n=1, max_tokens=16)).groups[0]
    completion = group.completions[0]
    sequence = GivenSequence(token_ids=group.prompt_token_ids + completion.token_ids, num_prompt_tokens=64)
    for _ in range(2):
        scored = (await score(fresh, sequence)).sequences[0]
        assert scored.logprobs == pytest.approx(completion.logprobs, abs=0.03)


@pytest.mark.parametrize(
    ("sequences", "type", "named"),
    [
        ([given(20, 2), given(256, 2)], "sequence_too_long", "sequence 1 has 256 tokens"),
        ([GivenSequence(token_ids=[5, 4711], num_prompt_tokens=1)], "unknown_token", "4711"),
        ([given(250, 2)] * 17, "too_many_tokens", f"4250 tokens in all; --max-scored-tokens is {MAX_SCORED_TOKENS}"),
    ],
)
async def test_what_cannot_be_scored(fresh: Server, sequences: list[GivenSequence], type: str, named: str):
    with pytest.raises(DataError, match=named) as refused:
        await score(fresh, *sequences)
    assert (refused.value.status, refused.value.detail.type) == (422, type)


@pytest.mark.parametrize(
    ("sequence", "named"),
    [
        ({"token_ids": [5, 6], "num_prompt_tokens": 2}, "num_prompt_tokens 2 leaves nothing to score of 2 token_ids"),
        ({"token_ids": [5, 6], "num_prompt_tokens": 0}, "num_prompt_tokens"),
        ({"token_ids": [5, -6], "num_prompt_tokens": 1}, "token_ids"),
        ({"token_ids": [5, 6], "num_prompt_tokens": 1, "temperature": 2}, "temperature"),
    ],
)
async def test_a_body_that_makes_no_sense(server: Server, sequence: dict[str, object], named: str):
    async with httpx.AsyncClient(trust_env=False, timeout=PATIENCE_S) as http:
        response = await http.post(f"{server.url}/v1/logprobs", json={"sequences": [sequence]})
    assert response.status_code == 422
    assert named in ErrorBody.model_validate_json(response.content).error.message


async def test_while_weights_load_requests_wait_up_to_a_bound_and_end_with_the_push(fresh: Server):
    async with fresh.trainer() as trainer:
        await trainer.join(take_over=True)
        await trainer.push(fresh.model(2), 1)
        await trainer.begin(2, manifest_of(fresh.model(3)), bucket_timeout_s=600.0)  # no take-over waits for it
        waiting = asyncio.create_task(score(fresh, *[given(250, 2)] * 10))
        await asyncio.sleep(1.0)  # until it has arrived
        with pytest.raises(InfrastructureError) as busy:
            await score(fresh, *[given(250, 2)] * 10)
        assert f"2500 more would exceed --max-scored-tokens-in-flight {MAX_SCORED_TOKENS}" in str(busy.value)
        assert (busy.value.status, busy.value.detail.type) == (429, "too_many_tokens_in_flight")
        with pytest.raises(InfrastructureError) as late:
            await score(fresh, given(20, 2), deadline_s=0.2)
        assert (late.value.status, late.value.detail.type) == (504, "deadline")
        await trainer.clients[0].abort(AbortRequest(session=trainer.session))
        with pytest.raises(InfrastructureError, match="weights_stale"):
            await score(fresh, given(20, 2))
        assert not waiting.done(), "another push of this trainer may go on with it"
        await fresh.heal()
        with pytest.raises(InfrastructureError) as aborted:
            await waiting
        assert (aborted.value.status, aborted.value.detail.type) == (503, "aborted")
