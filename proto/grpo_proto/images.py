"""Decode the images of a prompt: base64 → pixels. Needs Pillow.

The rollout server and the trainer decode with these functions, so that both models see the same pixels: turned as the
file's EXIF orientation says, in RGB, transparent parts over white (as vLLM's own routes show them to a model; plain
conversion would uncover whatever colour lies below), gray of 16 bits scaled to 8 (Pillow's conversion would clip it to
white). Of an animation the first frame counts.
"""

import base64
from contextlib import suppress
from io import BytesIO
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from PIL.Image import Image

FORMATS = ("PNG", "JPEG", "WEBP")
MAX_IMAGE_BYTES = 32 * 2**20
"""Of one encoded file."""
MAX_IMAGE_PIXELS = 2**26
"""Of one image: 67 million. A file of few bytes may declare more than any memory holds."""
MAX_SCANNED_PIXELS = 2**33
"""Scans × pixels of a JPEG file: half a minute. A progressive one has about ten scans; each is a pass over all pixels,
and may be a hundred bytes. Marks that look like a scan come by chance, one in 64 KiB of a video behind a photograph."""
SCAN = b"\xff\xda"
WHITE = (255, 255, 255)


class ImageError(ValueError):
    """The image cannot be used; the message says why and what to send."""


def size_of(encoded: str) -> tuple[int, int]:
    """Return width and height as the file declares them, without decoding it. Raises ImageError."""
    return _open(encoded).size


def pixels_of(encoded: str) -> int:
    """Return width × height, as `size_of`. Raises ImageError."""
    width, height = size_of(encoded)
    return width * height


def pixels_of_file(path: "Path") -> int:
    """The same of a file that is not encoded. Raises ImageError, for one that cannot be read, too."""
    with _identified(path) as image:
        if path.stat().st_size > MAX_IMAGE_BYTES:
            raise ImageError(f"the file is larger than {MAX_IMAGE_BYTES} bytes; send a smaller one")
        return image.width * image.height


def decode_image(encoded: str) -> "Image":
    """Return the picture in mode RGB, without metadata, so that nobody turns it a second time. Raises ImageError."""
    from PIL import ImageOps

    image = _open(encoded)
    try:
        image.load()
    # Catch everything: of a broken file Pillow's decoders raise what they run into.
    except Exception as error:
        raise ImageError(f"the {image.format} file is broken: {_said(error)}") from error
    # Of broken metadata, too: the picture then stays as it is stored.
    with suppress(Exception):
        image = ImageOps.exif_transpose(image)
    image = _in_rgb(image)
    image.info = {}
    return image


def _open(encoded: str) -> "Image":
    """Read the header. Raises ImageError for what is no file of the formats, or is too large."""
    if len(encoded) * 3 // 4 > MAX_IMAGE_BYTES:
        raise ImageError(f"the file is larger than {MAX_IMAGE_BYTES} bytes; send a smaller one")
    try:
        data = base64.b64decode(encoded, validate=True)
    except ValueError as error:
        raise ImageError(f"it is not standard base64 ({error}): send the file's alone, without data:…") from error
    image = _identified(BytesIO(data))
    if image.format in ("JPEG", "MPO") and data.count(SCAN) * image.width * image.height > MAX_SCANNED_PIXELS:
        raise ImageError(f"the JPEG file has {data.count(SCAN)} scans, too many for its size; save it as baseline")
    return image


def _identified(file: "BytesIO | Path") -> "Image":
    """Read the header of a file, without its pixels. Raises ImageError as `_open` does."""
    from PIL import Image, UnidentifiedImageError

    try:
        image = Image.open(file, formats=FORMATS)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _too_large(str(error)) from error
    except UnidentifiedImageError as error:
        raise ImageError(f"the file is none of {', '.join(FORMATS)}; convert it to one of them") from error
    # Catch everything, as above.
    except Exception as error:
        raise ImageError(f"the file is broken: {_said(error)}") from error
    if image.width * image.height > MAX_IMAGE_PIXELS:
        raise _too_large(f"it has {image.width} × {image.height} pixels")
    return image


def _in_rgb(image: "Image") -> "Image":
    from PIL import Image

    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode.startswith("I"):
        return image.point(lambda value: value * (1 / 256)).convert("L").convert("RGB")
    if not image.has_transparency_data:
        return image.convert("RGB")
    picture = image.convert("RGBA")
    ground = Image.new("RGB", image.size, WHITE)
    ground.paste(picture, mask=picture.getchannel("A"))
    return ground


def _too_large(found: str) -> ImageError:
    return ImageError(f"{found}; an image may have {MAX_IMAGE_PIXELS} pixels: send a smaller one")


def _said(error: Exception) -> str:
    return str(error)[:200] or type(error).__name__
