"""Sessions whose messages show images: what is sampled from, recorded and refused."""

from typing import Any

import pytest
import torch

from grpo_proto.messages.rollout import Completion, Prompt, RolloutGroup
from tests.rollout.sessions.opened import Opened, opened
from tests.tiny_vision_model import IMAGE, make_vision_tokenizer

from .conftest import NO_IMAGE, VisionServer, encoded, picture, prompt_of

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600), pytest.mark.xdist_group("engines")]
BOUND = 1e-4
SAMPLING = {"max_tokens": 12, "logit_bias": {str(token): bias for token, bias in NO_IMAGE.items()}}
ONE, OTHER = encoded(picture(1)), encoded(picture(2, (20, 90)), "JPEG")


def shows(*images: str, text: str = "count") -> dict[str, Any]:
    parts: list[dict[str, Any]] = [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{image}"}} for image in images
    ]
    return {"role": "user", "content": [*parts, {"type": "text", "text": text}]}


async def said(session: Opened, *messages: Any) -> str:
    answer = await session.chat(*messages)
    assert answer.status_code == 200, answer.text
    text: str = answer.json()["choices"][0]["message"]["content"]
    return text


def error(vision: VisionServer, segment: dict[str, Any], images: dict[str, str]) -> float:
    """The largest difference between a segment's logprobs and those of transformers, over all of its turns."""
    first, read, worst = segment["turns"][0], 0, 0.0
    prompt = Prompt(token_ids=[1], images=[images[name] for name in segment["images"]])
    group = RolloutGroup(prompt_token_ids=segment["token_ids"][: first["start"]], completions=[])
    rest = Completion(
        token_ids=segment["token_ids"][first["start"] :], text="", finish_reason="stop", logprobs=None, versions=[]
    )
    computed = vision.logprobs(0, prompt, group, rest)
    for turn in segment["turns"]:
        start, count = turn["start"] - first["start"], turn["end"] - turn["start"]
        given = torch.tensor(segment["logprobs"][read : read + count])
        worst = max(worst, float((computed[start : start + count] - given).abs().max()))
        read += count
    return worst


async def test_turns_are_sampled_from_all_images_before_them(vision: VisionServer):
    async with opened(vision, sampling=SAMPLING) as session:
        first = shows(ONE)
        answer = await said(session, first)
        again = shows(OTHER, text="and this")
        await said(session, first, {"role": "assistant", "content": answer}, again)
        found = await session.trajectory()
    [segment] = found["segments"]
    assert len(segment["turns"]) == 2
    assert [found["images"][name] for name in segment["images"]] == [ONE, OTHER]
    assert error(vision, segment, found["images"]) <= BOUND
    swapped = dict(zip(segment["images"], (OTHER, ONE), strict=True))
    assert error(vision, segment, swapped) > 0.01
    [group] = await vision.groups([prompt_of(ONE)], n=1)
    assert segment["token_ids"][: segment["turns"][0]["start"]] == group.prompt_token_ids
    [text, image] = reversed(segment["messages"][0]["content"])
    assert (text["text"], image) == ("count", {"type": "image", "image": segment["images"][0]})


async def test_branches_share_the_images_before_them(vision: VisionServer):
    async with opened(vision, sampling=SAMPLING) as session:
        first = await session.generate(messages=[shows(ONE)])
        for image in (OTHER, ONE):
            await session.generate(parent=first["turn"], messages=[shows(image, text="now")])
        found = await session.trajectory()
    segments = found["segments"]
    assert [[found["images"][name] for name in one["images"]] for one in segments] == [[ONE, OTHER], [ONE, ONE]]
    assert all(error(vision, one, found["images"]) <= BOUND for one in segments[:1])
    fork = {**segments[1], "turns": segments[1]["turns"][-1:]}
    assert error(vision, fork, found["images"]) <= BOUND


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (shows(ONE, OTHER, ONE), "the messages show 3 images; this server takes 2 in a prompt"),
        (shows(ONE[:400]), "image 0 of the new messages"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://h/a"}}]}, "by its URL"),
    ],
)
async def test_what_cannot_be_shown_is_refused_and_the_session_goes_on(
    vision: VisionServer, message: dict[str, Any], problem: str
):
    async with opened(vision, sampling=SAMPLING) as session:
        refused = await session.chat(message)
        assert refused.status_code == 400, refused.text
        assert problem in refused.json()["error"]["message"]
        await said(session, shows(ONE))
        assert (await session.trajectory())["stats"]["turns"] == 1


@pytest.mark.parametrize("images", [(), (ONE,)])
async def test_a_placeholder_in_a_text_shows_no_image(vision: VisionServer, images: tuple[str, ...]):
    """A policy may write it, and an environment repeat it."""
    async with opened(vision, sampling=SAMPLING) as session:
        first = shows(*images, text=f"see {IMAGE}")
        answer = await said(session, first)
        repeated = {"role": "user", "content": f"you said {IMAGE}"}
        await said(session, first, {"role": "assistant", "content": answer}, repeated)
        found = await session.trajectory()
    [segment] = found["segments"]
    assert (len(segment["turns"]), len(segment["images"])) == (2, len(images))
    assert found["stats"]["control_tokens"] == 2
    assert segment["messages"][-2]["content"] == repeated["content"]


async def test_images_count_towards_the_context(vision: VisionServer):
    tokenizer = make_vision_tokenizer()
    async with opened(vision, sampling=SAMPLING) as session:
        answer = (await session.chat(shows(ONE))).json()
        found = await session.trajectory()
        refused = await session.chat(shows(ONE, text="a" * 215))
    [segment] = found["segments"]
    assert answer["usage"]["prompt_tokens"] == segment["turns"][0]["start"]
    assert segment["token_ids"].count(tokenizer.convert_tokens_to_ids(IMAGE)) > 1
    assert refused.json()["error"]["code"] == "context_length_exceeded"
