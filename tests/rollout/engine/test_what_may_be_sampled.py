"""Penalties, biases, bad words and regexes against a real engine: what is sampled, and with which logprobs."""

import asyncio
import math
import re

import pytest
import torch

from grpo_proto.messages.errors import DataError
from grpo_proto.messages.rollout import Completion, RolloutResponse
from tests.rollout.conftest import Server, long_request, until_running
from tests.tiny_model import make_tokenizer

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900), pytest.mark.xdist_group("engine")]
EOS = make_tokenizer().eos_token_id
LETTER = 5
EXPLODES = "((a{0,200}){0,200}){0,200}"
"""Compiles at once; in xgrammar each further `a` takes longer than the one before, the twenty-fifth seconds."""


def completions_of(answer: RolloutResponse) -> list[Completion]:
    return [completion for group in answer.groups for completion in group.completions]


@torch.no_grad()
def expected_logprobs(server: Server, prompt: list[int], completion: Completion, **asked: float) -> list[float]:
    """What the weights of seed 1 give to the tokens, with the penalties of tokens and a bias of `LETTER`."""
    ids = torch.tensor([prompt + completion.token_ids])
    logits = server.model(1)(ids).logits[0, len(prompt) - 1 : -1].float()
    for step, row in enumerate(logits):
        row[LETTER] += asked.get("bias", 0.0)
        counts = torch.bincount(torch.tensor(completion.token_ids[:step], dtype=torch.long), minlength=len(row))
        row -= asked.get("presence", 0.0) * (counts > 0) + asked.get("frequency", 0.0) * counts
    return logits.log_softmax(-1).gather(1, ids[0, len(prompt) :, None])[:, 0].tolist()


async def test_logprobs_are_of_the_penalized_and_biased_distribution(fresh: Server):
    sampling = {"presence_penalty": 0.7, "frequency_penalty": 1.5, "logit_bias": {LETTER: 6.0}}
    answer = await fresh.sample(n=4, max_tokens=30, sampling=sampling)
    for group in answer.groups:
        for one in group.completions:
            expected = expected_logprobs(fresh, group.prompt_token_ids, one, bias=6.0, presence=0.7, frequency=1.5)
            assert one.logprobs == pytest.approx(expected, abs=0.05)
    assert any(one.token_ids.count(LETTER) > 1 for one in completions_of(answer))


async def test_nothing_ends_before_min_tokens(fresh: Server):
    short = completions_of(await fresh.sample(n=32, max_tokens=30))
    answer = completions_of(await fresh.sample(n=32, max_tokens=30, sampling={"min_tokens": 30}))
    assert any(len(one.token_ids) < 30 for one in short)
    assert {(len(one.token_ids), EOS in one.token_ids[:-1]) for one in answer} == {(30, False)}


async def test_min_tokens_is_capped_as_max_tokens_is(fresh: Server):
    answer = await fresh.sample(prompts=[[5] * 250], n=1, max_tokens=1000, sampling={"min_tokens": 900})
    assert len(completions_of(answer)[0].token_ids) == 6


async def test_bad_words_are_not_sampled(fresh: Server):
    bad = make_tokenizer().convert_tokens_to_ids("q")
    free, without = [
        completions_of(await fresh.sample(n=64, max_tokens=40, sampling=sampling))
        for sampling in ({}, {"bad_words": ["q"]})
    ]
    assert any(bad in one.token_ids for one in free)
    assert not any(bad in one.token_ids for one in without)


async def test_completions_match_the_regex_and_repeat_by_their_seeds(fresh: Server):
    sampling = {"structured_outputs": {"regex": "-?[0-9]{1,3}(<b>|yes)"}}
    first, again = [completions_of(await fresh.sample(n=16, sampling=sampling, request_id=name)) for name in "ab"]
    assert [(one.token_ids, one.logprobs) for one in first] == [(one.token_ids, one.logprobs) for one in again]
    assert len({one.text for one in first}) > 8
    for one in first:
        assert re.fullmatch("-?[0-9]{1,3}(<b>|yes)", one.text)
        assert (one.finish_reason, one.token_ids[-1], one.logprobs[-1]) == ("stop", EOS, 0.0)


async def test_the_logprobs_under_a_regex_are_of_what_it_allows(fresh: Server):
    answer = await fresh.sample(prompts=1, n=256, sampling={"structured_outputs": {"regex": "[a-d]"}})
    logprobs = {one.token_ids[0]: one.logprobs[0] for one in completions_of(answer)}
    assert len(logprobs) == 4
    assert math.fsum(map(math.exp, logprobs.values())) == pytest.approx(1.0, abs=1e-5)


async def test_a_complete_regex_ends_before_min_tokens(fresh: Server):
    answer = await fresh.sample(sampling={"structured_outputs": {"regex": "[0-9]{3}"}, "min_tokens": 10})
    assert {(len(one.token_ids), one.token_ids[-1]) for one in completions_of(answer)} == {(4, EOS)}


async def test_a_regex_goes_on_over_a_push(fresh: Server):
    request = long_request("across", prompts=2, sampling={"structured_outputs": {"regex": "([0-9]{3},)*"}})
    async with fresh.trainer() as trainer, fresh.client() as client:
        await trainer.join(take_over=True)
        await trainer.push(fresh.model(41), 1)
        with fresh.slow():
            sampling = asyncio.create_task(client.rollouts(request))
            await until_running(fresh)
            await trainer.push(fresh.model(42), 2)
        completions = completions_of(await sampling)
    assert any([version for version, _ in one.versions] == [1, 2] for one in completions)
    for one in completions:
        assert re.fullmatch("([0-9]{3},)*[0-9]{0,3}", one.text), one.text


async def test_a_regex_that_would_stop_the_engine_ends_its_own_request_alone(fresh: Server):
    """`logit_bias` has the policy sample what is the hardest."""
    hard = {"structured_outputs": {"regex": f"x?{EXPLODES}"}, "logit_bias": {LETTER: 100.0}}
    refused, other = await asyncio.gather(
        fresh.sample(n=8, max_tokens=200, sampling=hard), fresh.sample(request_id="other"), return_exceptions=True
    )
    assert isinstance(refused, DataError)
    assert "has too many states" in str(refused)
    assert len(completions_of(other)) == 4


@pytest.mark.parametrize(
    ("sampling", "message"),
    [
        ({"structured_outputs": {"regex": "a{1000000000}"}}, "has given up"),
        ({"structured_outputs": {"regex": "[\u4e00-\u9fff]"}}, "no token continues it"),
        ({"structured_outputs": {"regex": "<eos>"}}, "no token continues it"),
        ({"structured_outputs": {"regex": "a("}}, "cannot be compiled: at 1"),
        ({"structured_outputs": {"regex": "a\0"}}, "NUL"),
        ({"logit_bias": {5000: 1.0}}, "logit_bias holds token 5000; the vocabulary ends at 100"),
        ({"bad_words": ["x" * 200] * 3}, "bad_words has 1203 tokens"),
        ({"bad_words": [" "]}, "at least one token"),
    ],
)
async def test_what_cannot_be_sampled_is_refused_and_the_server_goes_on(
    fresh: Server, sampling: dict[str, object], message: str
):
    with pytest.raises(DataError, match=message):
        await fresh.sample(sampling=sampling)
    assert len(completions_of(await fresh.sample(request_id="next", max_tokens=2))) == 4
