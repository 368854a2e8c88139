"""Weights pushed to a server that samples from images: the text changes, the tower stays."""

import asyncio

import pytest

from grpo_proto.client.clients import RolloutClient

from .conftest import VisionServer, encoded, picture, prompt_of, request_for
from .pushing import BOUND, check_that_sequences_go_on, push_model

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600), pytest.mark.xdist_group("engines")]


async def test_a_push_changes_the_text_behind_the_same_tower(vision: VisionServer):
    prompts = [prompt_of(encoded(picture(1))), prompt_of(encoded(picture(2)), encoded(picture(3)))]
    async with vision.trainer() as trainer:
        await trainer.join(take_over=True)
        for version, seed in ((1, 7), (2, 0)):
            await push_model(trainer, vision.model_of(seed), version)
            groups = await vision.groups(prompts)
            assert {span[0] for group in groups for one in group.completions for span in one.versions} == {version}
            assert vision.error(seed, prompts, groups) <= BOUND
            assert vision.error(seed + 1, prompts, groups) > 0.1


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
                await push_model(trainer, vision.model_of(0), version)
        pushed.set()
        await asyncio.gather(*sampling)
    assert {"length"} <= set(ends) <= {"stop", "length"}


async def test_sequences_with_images_go_on_under_the_new_weights(vision: VisionServer):
    await check_that_sequences_go_on(vision, whole=False)
