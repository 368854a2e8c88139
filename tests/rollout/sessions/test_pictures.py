"""What is processed of a session's images, and how long it is kept."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tests.rollout.sessions.marks import IN_PROCESS

pytestmark = IN_PROCESS
IMAGE, WIDTH = 9, 3


class Processor:
    """Stands in for `Images`: an image takes three tokens, and its pixels as many bytes as its base64 has letters."""

    most_in_context = 4

    def __init__(self) -> None:
        self.processed_images: list[str] = []

    async def processed(self, named: str, token_ids: list[int], images: list[str]) -> Any:
        import torch
        from vllm.multimodal.inputs import PlaceholderRange

        await asyncio.sleep(0)
        self.processed_images += images
        ids, places = [], []
        for token_id in token_ids:
            places += [PlaceholderRange(len(ids), WIDTH)] if token_id == IMAGE else []
            ids += [IMAGE] * WIDTH if token_id == IMAGE else [token_id]
        pixels = [torch.full((len(image),), number, dtype=torch.uint8) for number, image in enumerate(images)]
        return {
            "prompt_token_ids": ids, "mm_kwargs": {"image": pixels}, "mm_hashes": {"image": list(images)},
            "mm_placeholders": {"image": places},
        }  # fmt: skip

    def in_engine(self, ready: Any) -> Any:
        return _Nothing()


class _Nothing:
    async def __aenter__(self) -> None: ...

    async def __aexit__(self, *_: object) -> None: ...


async def test_sessions_with_one_image_process_it_once_and_again_when_it_had_to_leave(monkeypatch: pytest.MonkeyPatch):
    from grpo_rollout.sessions import pictures

    processor: Any = Processor()
    kept, encoded = pictures.Pictures(processor), {"a": "a" * 10, "b": "b" * 10}

    async def turn(name: str) -> list[Any]:
        _, shown = await kept.expanded([1, IMAGE, 2], [name], encoded)
        return shown

    shown, *_ = await asyncio.gather(*(turn("a") for _ in range(8)))
    assert processor.processed_images == ["a" * 10]
    monkeypatch.setattr(pictures, "MAX_BYTES_KEPT", 15)
    await turn("b")
    async with kept.beside([1, *[IMAGE] * WIDTH, 2], shown, encoded):
        assert processor.processed_images == ["a" * 10, "b" * 10, "a" * 10]
    await turn("a")
    assert len(processor.processed_images) == 3


async def test_images_of_several_renderings_stand_where_their_segment_has_them():
    from dataclasses import replace

    from grpo_rollout.sessions.pictures import Pictures

    processor: Any = Processor()
    pictures, encoded = Pictures(processor), {"a": "aa", "b": "bbb", "c": "c"}
    ids, first = await pictures.expanded([1, IMAGE, IMAGE], ["a", "b"], encoded)
    more, second = await pictures.expanded([2, IMAGE], ["c"], encoded)
    whole = [*ids, 5, 6, *more]
    shown = [*first, *(replace(one, start=one.start + len(ids) + 2) for one in second)]
    async with pictures.beside(whole, shown, encoded) as ready:
        assert isinstance(ready, dict)
        assert ready["mm_hashes"] == {"image": ["aa", "bbb", "c"]}
        assert [len(item) for item in ready["mm_kwargs"]["image"]] == [2, 3, 1]
        offsets = [place.offset for place in ready["mm_placeholders"]["image"]]
    assert all(whole[offset : offset + WIDTH] == [IMAGE] * WIDTH for offset in offsets)
    assert offsets == [1, 4, 10]
    async with pictures.beside([1, 2], [], encoded) as ready:
        assert ready == [1, 2]


async def test_an_image_that_failed_is_tried_again():
    from grpo_proto.server.refusal import Refusal
    from grpo_rollout.sessions.pictures import Pictures

    processor: Any = Processor()
    works = processor.processed

    async def refuses(*_: Any) -> Any:
        raise Refusal.invalid("images_refused", "too thin", "send other sizes")

    pictures = Pictures(processor)
    processor.processed = refuses
    with pytest.raises(Refusal, match="too thin") as refused:
        await pictures.expanded([IMAGE], ["a"], {"a": "a"})
    assert (refused.value.status, refused.value.detail.type) == (400, "invalid_messages")
    processor.processed = works
    await pictures.expanded([IMAGE], ["a"], {"a": "a"})
    with pytest.raises(Refusal, match="the messages show 5 images; this server takes 4"):
        pictures.check_count(5)


async def test_a_session_keeps_no_image_of_a_prompt_that_begins_no_turn():
    from grpo_proto.messages.sessions import OpenSession
    from grpo_rollout.sessions.pictures import Pictures
    from grpo_rollout.sessions.prompts import Prompts
    from grpo_rollout.sessions.session import Session
    from grpo_rollout.sessions.turns import Turns
    from grpo_rollout.sessions.wanted import Wanted

    processor: Any = Processor()
    nothing: Any = None
    template: Any = SimpleNamespace(prompt=lambda *_: [1, IMAGE, 2])
    prompts = Prompts(template, Pictures(processor), text=nothing, thread=None, default_kwargs={}, vocab_size=100)
    turns = Turns(nothing, prompts, reader=nothing, text=nothing, serves=lambda _: True)
    session = Session("s", OpenSession(sampling={"max_tokens": 5}), 100)
    shows = {"role": "user", "content": [{"type": "image", "image": "a"}]}
    assert await turns.measure(session, Wanted([shows], images={"a": "a" * 10})) == 2 + WIDTH
    assert not session.images
