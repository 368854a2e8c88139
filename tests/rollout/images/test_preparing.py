"""Prompts with images are prepared one after the other, while the engine has room; without an engine."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.waiting import wait_until

from .conftest import encoded, picture, prompt_of

# vLLM is imported here, and uses what torch has deprecated.
pytestmark = [pytest.mark.vllm, pytest.mark.timeout(120), pytest.mark.filterwarnings("ignore::DeprecationWarning")]
IMAGE_BYTES = 4000


class Renderer:
    """Stands in for vLLM's: each image becomes `IMAGE_BYTES`, and its placeholder two tokens."""

    mm_processor = SimpleNamespace(info=SimpleNamespace(allowed_mm_limits={"image": 2}))
    num_rendered = 0

    async def process_for_engine_async(self, prompt: Any, arrival_time: float) -> Any:
        self.num_rendered += 1
        place = SimpleNamespace(offset=1, length=2)
        pixels = [torch.zeros(IMAGE_BYTES // 4) for _ in prompt["multi_modal_data"]["image"]]
        return {
            "prompt_token_ids": [1, 9, 9, *prompt["prompt_token_ids"][2:]],
            "mm_placeholders": {"image": [place]},
            "mm_kwargs": {"image": pixels},
        }


async def test_a_prompt_waits_for_the_end_of_those_that_fill_the_memory(monkeypatch: pytest.MonkeyPatch):
    from grpo_rollout import images

    monkeypatch.setattr(images, "MAX_BYTES_IN_ENGINE", 2 * 3 * IMAGE_BYTES)
    renderer = Renderer()
    client = SimpleNamespace(renderer=renderer, model_config=SimpleNamespace(hf_config=SimpleNamespace()))
    prepared = images.Images(SimpleNamespace(client=client))  # type: ignore[arg-type]
    prompt = prompt_of(encoded(picture(1))).model_copy(update={"token_ids": [1, 8, 2]})
    ends = [asyncio.Event() for _ in range(6)]
    entered: list[int] = []

    async def hold(position: int) -> None:
        async with prepared.prepared(f"prompt {position}", prompt.token_ids or [], prompt.images, num_sequences=3):
            entered.append(position)
            await ends[position].wait()

    held = [asyncio.create_task(hold(position)) for position in range(6)]
    await asyncio.to_thread(wait_until, lambda: len(entered) >= 2, "two prompts fit")
    await asyncio.sleep(0.2)
    # Two fill the memory; one more may have been decoded beside the second.
    assert len(entered) <= 3
    held[5].cancel()
    for end in ends:
        end.set()
    await asyncio.gather(*held, return_exceptions=True)
    assert sorted(entered) == [0, 1, 2, 3, 4]
    assert prepared._bytes_in_engine == 0


@pytest.mark.parametrize(
    ("token_ids", "expanded", "places", "number"),
    [
        ([1, 8, 2], [1, 9, 9, 9, 2], [(1, 3)], 1),
        ([1, 8, 2, 8], [1, 9, 9, 9, 2, 8], [(1, 3)], 2),
        ([8, 8, 2, 8], [9, 9, 9, 9, 2, 8], [(0, 2), (2, 2)], 3),
        ([1, 7, 8, 2, 7, 8, 7], [1, 9, 9, 9, 2, 7, 8, 7], [(1, 3)], 2),
        ([1, 2, 3], [9, 9, 1, 2, 3], [(0, 2)], 1),
    ],
    ids=["one", "one too many", "two and one too many", "of two tokens", "put before the text"],
)
def test_placeholders_are_counted(token_ids: list[int], expanded: list[int], places: list[Any], number: int):
    from grpo_rollout.images import count_placeholders

    found = [SimpleNamespace(offset=offset, length=length) for offset, length in places]
    ready: Any = {"prompt_token_ids": expanded, "mm_placeholders": {"image": found}}
    assert count_placeholders(token_ids, ready) == number
