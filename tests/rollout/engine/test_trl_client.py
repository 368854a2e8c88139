"""TRL's client of a vLLM server, as it is installed, against our server: what its trainers ask before and while they
train, without the weights, which it sends over NCCL alone."""

import asyncio
import importlib
import math
import re
from typing import Any
from urllib.parse import urlparse

import pytest
import torch

from tests.rollout.conftest import Server
from tests.rollout.pushing import manifest_of

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("engine"),
    # vLLM's dependencies warn about each other, and TRL about a vLLM that is newer than those it lists.
    pytest.mark.filterwarnings("ignore"),
]
BF16_BOUND = 2**-5
PROMPTS = [[5, 6, 7], [9, 10]]


@pytest.fixture(scope="module", autouse=True)
def trl_knows_vllm() -> None:
    """Other tests of this process import TRL without vLLM, and TRL's modules keep what they found then."""
    importlib.reload(importlib.import_module("trl.generation.vllm_client"))


def client(server: Server, **address: Any) -> Any:
    from trl.generation.vllm_client import VLLMClient

    return VLLMClient(**(address or {"base_url": server.url}), connection_timeout=5.0)


def logprobs_of(server: Server, seed: int, prompt: list[int], completion: list[int]) -> list[float]:
    """What transformers computes for each token of the completion."""
    with torch.no_grad():
        logprobs = server.model(seed)(torch.tensor([prompt + completion])).logits[0, :-1].float().log_softmax(-1)
    return logprobs[len(prompt) - 1 :].gather(1, torch.tensor(completion)[:, None])[:, 0].tolist()


def check(server: Server, seed: int, answer: dict[str, Any], *, n: int) -> None:
    """`n` completions a prompt, in the order of the prompts, with the logprobs of the model of this seed."""
    assert len(answer["completion_ids"]) == len(answer["logprobs"]) == n * len(answer["prompt_ids"])
    for number, (completion, logprobs) in enumerate(zip(answer["completion_ids"], answer["logprobs"], strict=True)):
        ours = logprobs_of(server, seed, answer["prompt_ids"][number // n], completion)
        assert [one for (one,) in logprobs] == pytest.approx(ours, abs=BF16_BOUND)


def test_it_finds_the_server_by_its_url_and_by_its_own_default_host(fresh: Server):
    port = urlparse(fresh.url).port
    names = {client(fresh, **address).model for address in ({"base_url": fresh.url}, {"server_port": port})}
    assert len(names) == 1
    assert names.pop().endswith("/model")


def test_it_generates(fresh: Server):
    answer = client(fresh).generate(PROMPTS, n=3, max_tokens=8)
    assert answer["prompt_ids"] == PROMPTS
    check(fresh, 1, answer, n=3)


def test_it_generates_by_the_token_route(fresh: Server):
    """Its way for prompts with images, which a prompt without any may take too. Without logprobs: TRL 1.16 reads those
    of this route as vLLM wrote them before 0.32."""
    answer = client(fresh).generate(
        PROMPTS, features=[None, None], n=3, max_tokens=8, logprobs=None, generation_kwargs={"ignore_eos": True}
    )
    assert answer["prompt_ids"] == PROMPTS
    assert [len(completion) for completion in answer["completion_ids"]] == [8] * 6
    assert answer["logprobs"] is None


def test_it_renders_on_the_server(fresh: Server):
    """An image is refused by a model of text alone, and not for want of the route."""
    from PIL import Image

    with pytest.raises(Exception, match=re.escape("Request failed: 400")):
        client(fresh).image_features([[Image.new("RGB", (8, 8))]])


def test_it_chats(fresh: Server):
    conversations = [[{"role": "user", "content": text}] for text in ("Hello", "Bye")]
    answer = client(fresh).chat(conversations, n=2, max_tokens=8)
    check(fresh, 1, answer, n=2)


def test_it_scores_with_its_own_number_of_logprobs(fresh: Server):
    sequences = [[*prompt, 20, 21, 22, 23] for prompt in PROMPTS]
    answer = client(fresh).get_sequence_logprobs(sequences, [len(prompt) for prompt in PROMPTS])
    for number, (prompt, sequence) in enumerate(zip(PROMPTS, sequences, strict=True)):
        completion = sequence[len(prompt) :]
        ours = logprobs_of(fresh, 1, prompt, completion)
        assert [one for (one,) in answer["actual_logprobs"][number]] == pytest.approx(ours, abs=BF16_BOUND)
        assert answer["actual_token_ids"][number] == [[token] for token in completion]
        for row in answer["logprobs"][number]:
            assert len(row) == 100
            assert sum(map(math.exp, row)) == pytest.approx(1.0, abs=0.02)


async def test_it_gets_the_weights_of_a_push_that_it_waited_for(fresh: Server):
    asking = client(fresh)
    async with fresh.trainer() as trainer:
        await trainer.join(take_over=True)
        await trainer.push(fresh.model(1), 1)
        manifest = manifest_of(fresh.model(7))
        await trainer.begin(2, manifest)
        waiting = asyncio.create_task(asyncio.to_thread(asking.generate, PROMPTS, n=2, max_tokens=8))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        await trainer.commit(2, await trainer.send(fresh.model(7), manifest))
        check(fresh, 7, await waiting, n=2)
