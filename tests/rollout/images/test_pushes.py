"""Weights pushed to a server that samples from images: the text changes, the tower stays."""

import asyncio

import pytest
import torch

from grpo_proto.client.clients import RolloutClient
from grpo_proto.transport import plan_manifest
from tests.rollout.conftest import until_running
from tests.rollout.pushing import SMALL_BUCKET_BYTES, Trainer

from .conftest import VisionServer, encoded, is_text, picture, prompt_of, request_for

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600), pytest.mark.xdist_group("engines")]
BOUND = 1e-4


async def push_text(trainer: Trainer, model: torch.nn.Module, version: int) -> None:
    """Push the decoder and the output head; what is before them is declared absent."""
    names = [name for name, _ in model.named_parameters()]
    listed = [(name, "float32", tensor.shape) for name, tensor in model.named_parameters() if is_text(name)]
    manifest = plan_manifest(listed, SMALL_BUCKET_BYTES)
    await trainer.begin(version, manifest, absent=[name for name in names if not is_text(name)])  # type: ignore[arg-type]
    await trainer.commit(version, await trainer.send(model, manifest))


async def test_a_push_changes_the_text_behind_the_same_tower(vision: VisionServer):
    prompts = [prompt_of(encoded(picture(1))), prompt_of(encoded(picture(2)), encoded(picture(3)))]
    async with vision.trainer() as trainer:
        await trainer.join(take_over=True)
        for version, seed in ((1, 7), (2, 0)):
            await push_text(trainer, vision.model_with_text_of(seed), version)
            groups = await vision.groups(prompts)
            assert {span[0] for group in groups for one in group.completions for span in one.versions} == {version}
            assert vision.error(seed, prompts, groups) <= BOUND
            assert vision.error(seed + 1, prompts, groups) > 0.1


async def test_sequences_with_images_go_on_under_the_new_weights(vision: VisionServer):
    prompts = [prompt_of(encoded(picture(seed))) for seed in range(3)]
    seeds = {1: 0, 2: 8, 3: 0}
    async with vision.trainer() as trainer, vision.client() as client:
        await trainer.join(take_over=True)
        await push_text(trainer, vision.model_with_text_of(0), 1)
        with vision.slow():
            sampling = asyncio.create_task(client.rollouts(request_for(prompts, n=8, max_tokens=150)))
            await until_running(vision)
            await push_text(trainer, vision.model_with_text_of(8), 2)
        groups = (await sampling).groups
        await push_text(trainer, vision.model_with_text_of(0), 3)
    versions = [[version for version, _ in one.versions] for group in groups for one in group.completions]
    assert [1, 2] in versions
    for prompt, group in zip(prompts, groups, strict=True):
        for one in group.completions[::3]:
            start = 0
            for version, count in one.versions:
                ours = vision.logprobs(seeds[version], prompt, group, one)[start : start + count]
                theirs = torch.tensor(one.logprobs[start : start + count])  # type: ignore[index]
                assert float((ours - theirs).abs().max()) <= BOUND
                start += count


async def test_images_that_come_while_pushes_begin_are_sampled_from_later_too(vision: VisionServer):
    """Few images again and again, while pushes begin and end: nobody may keep of one what another has forgotten."""
    prompts = [prompt_of(encoded(picture(seed))) for seed in range(4)]
    pushed = asyncio.Event()
    ends: list[str] = []

    async def sample(client: RolloutClient, number: int) -> None:
        while not pushed.is_set():
            answer = await client.rollouts(request_for(prompts[number:], max_tokens=4, id=f"again-{number}"))
            ends.extend(one.finish_reason for group in answer.groups for one in group.completions)

    async with vision.trainer() as trainer, vision.client() as client:
        await trainer.join(take_over=True)
        with vision.slow():
            sampling = [asyncio.create_task(sample(client, number)) for number in range(4)]
            for version in range(1, 9):
                await push_text(trainer, vision.model_with_text_of(0), version)
        pushed.set()
        await asyncio.gather(*sampling)
    assert {"length"} <= set(ends) <= {"stop", "length"}
