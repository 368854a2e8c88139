"""Prompts that show images: base64 → pixels → what vLLM's processor of the model makes of them, ready for the engine.

Two threads decode, and vLLM's own thread processes: the event loop stays free. A prompt is prepared when there is room:
pictures take a hundred times the memory of their files, and a request may hold thousands.

Waits for: those threads, and while the engine holds `MAX_BYTES_IN_ENGINE` for the end of earlier prompts.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any

from vllm.inputs import MultiModalInput, TokensPrompt
from vllm.multimodal.cache.base import MultiModalCache

from grpo_proto.images import ImageError, decode_image
from grpo_proto.messages.rollout import MAX_IMAGES
from grpo_proto.server.refusal import Refusal

from .engine import Engine

PREPARED_AT_ONCE = 2
"""Prompts whose pictures are decoded and not yet with the engine: vLLM processes one while another is decoded."""
MAX_BYTES_IN_ENGINE = 4 * 2**30
"""Processed pictures of unfinished sequences; at most `PREPARED_AT_ONCE` prompts come on top. vLLM sends them with each
sequence of a group, and the engine process holds them until that ends: in bfloat16, a picture of a megapixel for a
group of 8 takes 100 MB."""
MAX_PIXELS = 2**27
"""Of the images of one prompt, together: 400 MB when decoded."""
SHOWN_CHARS = 300


class Images:
    """Makes prompts with images ready; one instance per server."""

    def __init__(self, engine: Engine):
        self.engine = engine
        processor = engine.client.renderer.mm_processor
        limits = processor.info.allowed_mm_limits if processor is not None else {}
        self.most_in_context: int = limits.get("image", 0)
        """Of a session: `--limit-mm-per-prompt` alone bounds what its messages show."""
        self.max_images = min(MAX_IMAGES, self.most_in_context)
        self.placeholder = getattr(engine.client.model_config.hf_config, "image_token_id", None)
        self._threads = ThreadPoolExecutor(PREPARED_AT_ONCE, thread_name_prefix="grpo-images")
        self._preparing = asyncio.Semaphore(PREPARED_AT_ONCE)
        self._bytes_in_engine = 0
        self._freed = asyncio.Event()

    def check(self, named: str, token_ids: list[int], *, num_images: int) -> None:
        """Raises Refusal (422) for more images than the model takes, and for a placeholder without any image."""
        if num_images > self.max_images:
            raise Refusal.invalid(
                "too_many_images",
                f"{named} has {num_images} images; this server takes {self.max_images} a prompt",
                "send fewer, or start the server with another --limit-mm-per-prompt"
                if self.max_images
                else "serve a model with vision, without --language-model-only",
            )
        if not num_images:
            self.check_text(named, token_ids)

    def check_text(self, named: str, token_ids: list[int]) -> None:
        """Raises Refusal (422) for image placeholders in a prompt that comes without images.

        The model would read the token's own embedding, which is trained for nothing.
        """
        if self.max_images and self.placeholder in token_ids:
            raise _unfilled(named, token_ids.count(self.placeholder), 0)

    @asynccontextmanager
    async def prepared(
        self, named: str, token_ids: list[int], images: Sequence[str], *, num_sequences: int
    ) -> AsyncIterator[MultiModalInput]:
        """Yield a prompt for `Engine.generate`, with expanded placeholders. Its memory counts until the exit.

        Raises Refusal (422) for images that cannot be used and for placeholders that differ from them in number.
        """
        async with AsyncExitStack() as held:
            async with self._preparing:
                pictures = await self._decoded(named, images)
                await self._room()
                ready = await self._processed(named, token_ids, pictures)
                held.enter_context(self._counted(num_sequences * size_of(ready)))
            yield ready

    async def processed(self, named: str, token_ids: list[int], images: Sequence[str]) -> MultiModalInput:
        """Return what vLLM's processor makes of ids and images. Raises Refusal (422) as `prepared` does."""
        async with self._preparing:
            return await self._processed(named, token_ids, await self._decoded(named, images))

    @asynccontextmanager
    async def in_engine(self, ready: MultiModalInput) -> AsyncIterator[None]:
        """Count the memory of a prompt while the engine has it, once there is room."""
        await self._room()
        with self._counted(size_of(ready)):
            yield

    async def _room(self) -> None:
        while self._bytes_in_engine >= MAX_BYTES_IN_ENGINE:
            self._freed.clear()
            await self._freed.wait()

    @contextmanager
    def _counted(self, num_bytes: int) -> Iterator[None]:
        self._bytes_in_engine += num_bytes
        try:
            yield
        finally:
            self._bytes_in_engine -= num_bytes
            self._freed.set()

    async def _decoded(self, named: str, images: Sequence[str]) -> list[Any]:
        pictures: list[Any] = []
        for number, image in enumerate(images):
            try:
                pictures.append(await asyncio.get_running_loop().run_in_executor(self._threads, decode_image, image))
            except ImageError as error:
                raise Refusal.invalid("unusable_image", f"image {number} of {named}: {error}") from error
            if (num_pixels := sum(picture.width * picture.height for picture in pictures)) > MAX_PIXELS:
                raise Refusal.invalid(
                    "images_too_large",
                    f"images 0 to {number} of {named} have {num_pixels} pixels; they may have {MAX_PIXELS} together",
                    "send smaller ones",
                )
        return pictures

    async def _processed(self, named: str, token_ids: list[int], pictures: list[Any]) -> MultiModalInput:
        prompt = TokensPrompt(prompt_token_ids=token_ids, multi_modal_data={"image": pictures})
        try:
            ready: MultiModalInput = await self.engine.client.renderer.process_for_engine_async(prompt, time.time())
        # Catch everything: a processor is a program of the model's authors.
        except Exception as error:
            self.engine.check_alive()
            sizes = ", ".join(f"{picture.width} × {picture.height}" for picture in pictures)
            raise Refusal.invalid(
                "images_refused",
                f"the model's processor refused the images of {named} ({sizes} pixels): "
                f"{str(error.__cause__ or error)[:SHOWN_CHARS]}",
                "token_ids hold the model's image placeholder once for each image, not expanded; if so, send images of "
                "another size",
            ) from error
        num_placeholders = count_placeholders(token_ids, ready)
        if num_placeholders > len(pictures):
            raise _unfilled(named, num_placeholders, len(pictures))
        return ready


def size_of(ready: MultiModalInput) -> int:
    """Return the bytes of a prompt's processed pictures."""
    return sum(map(MultiModalCache.get_item_size, ready["mm_kwargs"]["image"]))


def count_placeholders(token_ids: list[int], ready: MultiModalInput) -> int:
    """Return how many image placeholders `token_ids` hold; vLLM expands the first ones, and leaves what is too many.

    vLLM does not say which tokens are a placeholder in this model. They are what was replaced: compare with `ready`.
    """
    expanded, rest, end = ready["prompt_token_ids"], [], 0
    places = sorted(ready["mm_placeholders"]["image"], key=lambda place: place.offset)
    for place in places:
        rest += expanded[end : place.offset]
        end = place.offset + place.length
    rest += expanded[end:]
    width, remainder = divmod(len(token_ids) - len(rest), len(places))
    if remainder or width < 1:  # the images were put before the text, without placeholders
        return len(places)
    start = places[0].offset
    placeholder = token_ids[start : start + width]
    starts = range(len(rest) - width + 1) if placeholder[0] in rest else range(0)
    return len(places) + sum(rest[start : start + width] == placeholder for start in starts)


def _unfilled(named: str, num_placeholders: int, num_images: int) -> Refusal:
    return Refusal.invalid(
        "image_placeholders",
        f"token_ids of {named} hold {num_placeholders} image placeholders and there are {num_images} images",
        "send the placeholder once for each image, as the chat template writes it; the server expands it"
        if num_images
        else "send the images, too, and text without placeholders",
    )
