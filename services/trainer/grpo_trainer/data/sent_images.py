"""Reads the images of prompts from where their rows say that they are, and makes those smaller that are too large."""

import math
from dataclasses import dataclass
from pathlib import Path

from grpo_proto.images import ImageError, decode_image, pixels_of

from ..errors import RunError
from .image_files import base64_of, png_of
from .images import FILE
from .prompt_row import PromptRow


@dataclass(frozen=True)
class ImagesOfPrompts:
    """How the images of a prompt are sent to a policy whose token for each place of an image is `token_id`, None for
    one that sees none. `max_pixels`: of an image; a larger one is made smaller, one pixel wide at least; None for
    any."""

    token_id: int | None = None
    max_pixels: int | None = None

    def encoded(self, row: PromptRow) -> list[str]:
        """The base64 of each image's file. Raises RunError for one that cannot be read any more."""
        found = []
        for number, source in enumerate(row.images, start=1):
            try:
                found.append(self.fitted(_read(source)))
            except ImageError as error:
                named = source.removeprefix(FILE) if source.startswith(FILE) else "in base64"
                raise RunError(
                    f"image {number} of row {row.index + 1} ({named}) cannot be used: {error}",
                    hint="mend it, or leave the row out of the dataset",
                ) from error
        return found

    def fitted(self, encoded: str) -> str:
        """The image with at most `max_pixels`, in lossless form, so that server and trainer still see the same. Raises
        ImageError."""
        from PIL import Image

        if self.max_pixels is None or pixels_of(encoded) <= self.max_pixels:
            return encoded
        image = decode_image(encoded)
        scale = math.sqrt(self.max_pixels / (image.width * image.height))
        size = max(int(image.width * scale), 1), max(int(image.height * scale), 1)
        return png_of(image.resize(size, Image.Resampling.BICUBIC))


SEES_NONE = ImagesOfPrompts()


def _read(source: str) -> str:
    """The base64 of an image's file."""
    if not source.startswith(FILE):
        return source
    path = Path(source.removeprefix(FILE))
    try:
        return base64_of(path)
    except OSError as error:
        raise RunError(
            f"the image {path} of a row cannot be read any more: {error.strerror or error}",
            hint="put it back, then go on with --resume",
        ) from error
