"""Completions of prompts with images: what is sampled from, what is refused, and what the server survives."""

import base64

import pytest
import torch
from PIL import Image
from transformers import AutoProcessor

from grpo_proto.messages.errors import DataError
from grpo_proto.messages.logprobs import GivenSequence, LogprobsRequest
from grpo_proto.messages.rollout import Prompt
from tests.tiny_vision_model import make_vision_tokenizer

from .conftest import MAX_MODEL_LEN, VisionServer, encoded, picture, prompt_of, request_for

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600), pytest.mark.xdist_group("engines")]
BOUND = 1e-4


async def test_completions_are_sampled_from_what_transformers_computes(vision: VisionServer):
    one, other = encoded(picture(1)), encoded(picture(2, (20, 90)), "JPEG")
    prompts = [prompt_of(one), prompt_of(other, one), prompt_of()]
    groups = await vision.groups(prompts, n=3)
    assert vision.error(0, prompts[:2], groups[:2]) <= BOUND
    assert groups == await vision.groups(prompts, n=3)
    swapped = prompts[1].model_copy(update={"images": [one, other]})
    assert vision.error(0, [swapped], groups[1:2]) > 0.01


async def test_the_prompt_comes_back_as_the_models_processor_expands_it(vision: VisionServer):
    prompt = prompt_of(encoded(picture(1)))
    [group] = await vision.groups([prompt], n=1)
    text = make_vision_tokenizer().decode(prompt.token_ids)
    processor = AutoProcessor.from_pretrained(vision.folder)
    assert [group.prompt_token_ids] == processor(text=[text], images=[[picture(1)]])["input_ids"]
    assert len(group.prompt_token_ids) > len(prompt.token_ids or [])


async def test_another_image_makes_another_completion(vision: VisionServer):
    sampled = await vision.groups([prompt_of(encoded(picture(seed))) for seed in range(4)], n=1, max_tokens=24)
    assert len({tuple(group.completions[0].token_ids) for group in sampled}) == 4


async def test_the_expanded_prompt_leaves_the_rest_of_the_context(vision: VisionServer):
    request = request_for([prompt_of(encoded(picture(1)))], n=1)
    longest = request.sampling.model_copy(update={"min_tokens": 4096, "max_tokens": 4096})
    async with vision.client() as client:
        [group] = (await client.rollouts(request.model_copy(update={"sampling": longest}))).groups
    assert len(group.prompt_token_ids) + len(group.completions[0].token_ids) == MAX_MODEL_LEN


PICTURE = encoded(picture(1))
CUT_OFF = base64.b64encode(base64.b64decode(PICTURE)[:500]).decode()


@pytest.mark.parametrize(
    ("prompt", "problem"),
    [
        (prompt_of(PICTURE, CUT_OFF), "image 1 of prompt 1: the PNG file is broken"),
        (prompt_of("%%%"), "image 0 of prompt 1: it is not standard base64"),
        (prompt_of(base64.b64encode(b"<svg/>").decode()), "image 0 of prompt 1: the file is none of PNG, JPEG, WEBP"),
        (prompt_of(PICTURE, placeholders=2), "prompt 1 hold 2 image placeholders and there are 1 images"),
        (prompt_of(placeholders=1), "prompt 1 hold 1 image placeholders and there are 0 images"),
        (prompt_of(PICTURE, PICTURE, placeholders=1), "processor refused the images of prompt 1"),
        (prompt_of(PICTURE, PICTURE, PICTURE), "prompt 1 has 3 images; this server takes 2 a prompt"),
        (prompt_of(PICTURE, text="a" * 220), r"prompt 1 has 2\d\d tokens, with its images 2\d\d; the context holds"),
    ],
)
async def test_what_cannot_be_used_is_named(vision: VisionServer, prompt: Prompt, problem: str):
    with pytest.raises(DataError, match=problem):
        await vision.groups([prompt_of(PICTURE), prompt])


@pytest.mark.parametrize(
    "image",
    [
        encoded(Image.new("RGB", (1, 1), "red")),
        encoded(Image.new("RGB", (1, 3000), "red")),
        encoded(picture(1).convert("CMYK"), "JPEG"),
        encoded(picture(1).convert("P"), transparency=3),
        encoded(Image.new("I;16", (9, 9), 40_000)),
        encoded(picture(1), "WEBP", save_all=True, append_images=[picture(2)], lossless=True),
        encoded(picture(1, (2000, 1500))),
    ],
    ids=["a pixel", "a line", "CMYK", "palette with transparency", "16 bits", "animation", "large"],
)
async def test_an_odd_image_is_what_transformers_sees_in_it(vision: VisionServer, image: str):
    prompt = prompt_of(image)
    assert vision.error(0, [prompt], await vision.groups([prompt])) <= BOUND


async def test_info_tells_how_many_images_a_prompt_may_have(vision: VisionServer):
    async with vision.client() as client:
        assert (await client.info()).max_images == 2


async def test_an_expanded_prompt_is_not_scored_without_its_images(vision: VisionServer):
    prompt = prompt_of(PICTURE)
    [group] = await vision.groups([prompt], n=1)
    ids = group.prompt_token_ids
    sequence = GivenSequence(token_ids=[*ids, 40], num_prompt_tokens=len(ids))
    async with vision.client() as client:
        with pytest.raises(DataError, match="sequence 0 hold 20 image placeholders and there are 0 images"):
            await client.logprobs(LogprobsRequest(sequences=[sequence]))


async def test_given_tokens_are_scored_behind_their_images(vision: VisionServer):
    """Of a group, of two images, and of text in one request; a context's pictures are processed once."""
    images = [PICTURE, encoded(picture(5))]
    prompts = [prompt_of(PICTURE), prompt_of(images[1], PICTURE), prompt_of()]
    groups = await vision.groups(prompts, n=3)
    asked = [(prompt, group, one) for prompt, group in zip(prompts, groups, strict=True) for one in group.completions]
    given = [
        behind(prompt, one.token_ids, [images.index(image) for image in prompt.images]) for prompt, _, one in asked
    ]
    async with vision.client() as client:
        answer = await client.logprobs(LogprobsRequest(sequences=given, images=images))
    for (prompt, group, one), scored in zip(asked, answer.sequences, strict=True):
        expected = vision.logprobs(0, prompt, group, one, bias={})
        assert float((torch.tensor(scored.logprobs) - expected).abs().max()) <= BOUND


def behind(prompt: Prompt, token_ids: list[int], images: list[int]) -> GivenSequence:
    ids = prompt.token_ids or []
    return GivenSequence(token_ids=[*ids, *token_ids], num_prompt_tokens=len(ids), images=images)


@pytest.mark.parametrize(
    ("sequence", "problem"),
    [
        (behind(prompt_of(PICTURE, placeholders=2), [40], [0]), "sequence 1 hold 2 image placeholders and there are 1"),
        (behind(prompt_of(PICTURE), [40], [1]), "image 0 of sequence 1: it is not standard base64"),
        (behind(prompt_of(PICTURE), [40], [0, 0, 0]), "sequence 1 has 3 images; this server takes 2"),
        (behind(prompt_of(PICTURE), [40] * 230, [0]), r"sequence 1 has 2\d\d tokens; the context holds 256"),
    ],
)
async def test_what_cannot_be_scored_behind_images_is_named(
    vision: VisionServer, sequence: GivenSequence, problem: str
):
    fine = behind(prompt_of(PICTURE), [40], [0])
    async with vision.client() as client:
        with pytest.raises(DataError, match=problem):
            await client.logprobs(LogprobsRequest(sequences=[fine, sequence], images=[PICTURE, "%%%"]))
    with pytest.raises(ValueError, match="sequence 0 names image 2, and the request has 1"):
        LogprobsRequest(sequences=[behind(prompt_of(PICTURE), [40], [2])], images=[PICTURE])
