"""Pushes to a server that samples from images."""

import asyncio

import torch

from grpo_proto.transport import plan_manifest
from tests.rollout.conftest import until_running
from tests.rollout.pushing import SMALL_BUCKET_BYTES, Trainer

from .conftest import VisionServer, encoded, is_text, picture, prompt_of, request_for

BOUND = 1e-4


async def push_model(trainer: Trainer, model: torch.nn.Module, version: int, *, whole: bool = False) -> None:
    """Push the decoder and the output head; what is before them is pushed, too, or declared absent."""
    parameters = dict(model.named_parameters())
    pushed = [name for name in parameters if whole or is_text(name)]
    manifest = plan_manifest([(name, "float32", parameters[name].shape) for name in pushed], SMALL_BUCKET_BYTES)
    await trainer.begin(version, manifest, absent=[name for name in parameters if name not in pushed])
    await trainer.commit(version, await trainer.send(model, manifest))


async def check_that_sequences_go_on(vision: VisionServer, *, whole: bool) -> None:
    """Sequences with images, sampled before a push and after it, under the weights of either."""
    prompts = [prompt_of(encoded(picture(seed))) for seed in range(3)]
    seeds = {1: 0, 2: 8, 3: 0}
    async with vision.trainer() as trainer, vision.client() as client:
        await trainer.join(take_over=True)
        await push_model(trainer, vision.model_of(0), 1, whole=whole)
        with vision.slow():
            sampling = asyncio.create_task(client.rollouts(request_for(prompts, n=8, max_tokens=150)))
            await until_running(vision)
            await push_model(trainer, vision.model_of(8, whole=whole), 2, whole=whole)
        groups = (await sampling).groups
        await push_model(trainer, vision.model_of(0), 3, whole=whole)
    versions = [[version for version, _ in one.versions] for group in groups for one in group.completions]
    assert [1, 2] in versions
    for prompt, group in zip(prompts, groups, strict=True):
        for one in group.completions[::3]:
            start = 0
            for version, count in one.versions:
                ours = vision.logprobs(seeds[version], prompt, group, one, whole=whole)[start : start + count]
                theirs = torch.tensor(one.logprobs[start : start + count])  # type: ignore[index]
                assert float((ours - theirs).abs().max()) <= BOUND
                start += count
