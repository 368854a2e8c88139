"""A push of a whole model, vision tower included.

The server takes no push without the tower any more: this file stands last of those that share it.
"""

import pytest

from tests.rollout.adapters.asking import refused

from .conftest import VisionServer, encoded, picture, prompt_of
from .pushing import BOUND, check_that_sequences_go_on, push_model

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600), pytest.mark.xdist_group("engines")]


async def test_a_push_with_a_tower_changes_it_and_one_without_it_is_refused_behind_it(vision: VisionServer):
    prompts = [prompt_of(encoded(picture(1))), prompt_of(encoded(picture(2)), encoded(picture(3)))]
    async with vision.trainer() as trainer:
        await trainer.join(take_over=True)
        for version, seed in ((1, 7), (2, 0)):
            await push_model(trainer, vision.model_of(seed, whole=True), version, whole=True)
            assert vision.error(seed, prompts, await vision.groups(prompts), whole=True) <= BOUND
        with refused(422, "absent_overwritten"):
            await push_model(trainer, vision.model_of(7), 3)
        assert vision.error(0, prompts, await vision.groups(prompts)) <= BOUND


async def test_sequences_with_images_go_on_under_the_new_tower(vision: VisionServer):
    await check_that_sequences_go_on(vision, whole=True)
