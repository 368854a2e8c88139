"""The images that messages show: expand their placeholders in what is new, and stand beside the ids of a whole prompt.

A template renders the new messages of a turn alone, with one placeholder for an image. Alone they go through vLLM's
processor of the model, too, which says how many tokens each image takes: the ids of earlier turns are never expanded
again. Each turn needs all images of its prompt once more, so that what was processed is kept, and made again when it
has had to leave.

Waits for: the processor, and room in the engine, see `images.py`.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from vllm.inputs import MultiModalInput
from vllm.multimodal.inputs import MultiModalKwargsItems

from grpo_proto.server.refusal import Refusal

from ..images import Images, size_of
from .access import NO_RETRY
from .forest import Shown

MAX_BYTES_KEPT = 4 * 2**30
"""Of processed pictures between turns. In bfloat16 a picture of a megapixel takes 12 MB."""
NAMED = "the new messages"
TEMPLATE_HINT = "the chat template has to write a placeholder for each image of these messages; if so, send other sizes"


@dataclass(frozen=True)
class Rendering:
    """New messages as a template has rendered them, placeholders not expanded, and the names of their images."""

    token_ids: tuple[int, ...]
    names: tuple[str, ...]


class Pictures:
    """Expands and keeps the images of sessions; one instance per server."""

    def __init__(self, images: Images):
        self.images = images
        self._kept: OrderedDict[Rendering, asyncio.Task[MultiModalInput]] = OrderedDict()
        self._sizes: dict[Rendering, int] = {}

    @property
    def takes_any(self) -> bool:
        return self.images.most_in_context > 0

    def check_count(self, count: int) -> None:
        """Raises Refusal (400) `too_many_images` for more in a prompt than the model takes."""
        if count > (most := self.images.most_in_context):
            message = f"the messages show {count} images; this server takes {most} in a prompt"
            more = "start the server with another --limit-mm-per-prompt" if most else "serve a model with vision"
            raise Refusal(400, "too_many_images", message, hint=more, headers=dict(NO_RETRY))

    async def expanded(
        self, token_ids: list[int], names: Sequence[str], encoded: Mapping[str, str]
    ) -> tuple[list[int], list[Shown]]:
        """Return rendered ids with expanded placeholders, and where the images stand in them.

        Args:
            names: the images that the messages show, in order; `encoded`: name → base64.

        Raises Refusal (400) `invalid_messages` for one that cannot be used, and for placeholders that differ from the
        images in number.
        """
        try:
            if not names:
                self.images.check_text(NAMED, token_ids)
                return token_ids, []
            rendering = Rendering(tuple(token_ids), tuple(names))
            ready = await self._processed(rendering, encoded)
        except Refusal as refusal:
            if refusal.status != 422:
                raise
            hint = TEMPLATE_HINT if refusal.detail.type == "images_refused" else refusal.detail.hint
            raise Refusal(400, "invalid_messages", refusal.detail.message, hint=hint) from refusal
        places = ready["mm_placeholders"]["image"]
        shown = [Shown(name, places[number].offset, rendering, number) for number, name in enumerate(names)]
        return list(ready["prompt_token_ids"]), shown

    @asynccontextmanager
    async def beside(
        self, token_ids: list[int], shown: Sequence[Shown], encoded: Mapping[str, str]
    ) -> AsyncIterator[list[int] | MultiModalInput]:
        """Yield what the engine samples from: ids, and beside them the images that they have places of."""
        if not shown:
            yield token_ids
            return
        found = {one.rendering: await self._processed(one.rendering, encoded) for one in shown}
        items, hashes, places = [], [], []
        for one in shown:
            ready = found[one.rendering]
            items.append(ready["mm_kwargs"]["image"][one.number])
            hashes.append(ready["mm_hashes"]["image"][one.number])
            places.append(replace(ready["mm_placeholders"]["image"][one.number], offset=one.start))
        whole: Any = {
            **found[shown[0].rendering],
            "prompt_token_ids": token_ids,
            "mm_kwargs": MultiModalKwargsItems({"image": items}),
            "mm_hashes": {"image": hashes},
            "mm_placeholders": {"image": places},
        }
        async with self.images.in_engine(whole):
            yield whole

    async def _processed(self, rendering: Rendering, encoded: Mapping[str, str]) -> MultiModalInput:
        """Return what the processor makes of a rendering, which several sessions may ask for at once."""
        task = self._kept.get(rendering)
        if task is None:
            images = [encoded[name] for name in rendering.names]
            work = self.images.processed(NAMED, list(rendering.token_ids), images)
            task = self._kept[rendering] = asyncio.ensure_future(work)
            task.add_done_callback(lambda done: self._note(rendering, done))
        self._kept.move_to_end(rendering)
        return await asyncio.shield(task)

    def _note(self, rendering: Rendering, done: "asyncio.Task[MultiModalInput]") -> None:
        """Count what has been processed, and let go of what was needed longest ago."""
        if done.cancelled() or done.exception() is not None:
            self._kept.pop(rendering, None)
            return
        self._sizes[rendering] = size_of(done.result())
        for oldest in list(self._kept):
            if sum(self._sizes.values()) <= MAX_BYTES_KEPT:
                break
            if oldest in self._sizes and oldest != rendering:
                del self._sizes[oldest], self._kept[oldest]
