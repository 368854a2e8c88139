"""Images of prompts are decoded as a viewer shows them, and files that could harm are refused."""

import base64
import struct
import zlib
from io import BytesIO

import pytest
from PIL import Image

from grpo_proto.images import ImageError, decode_image


def encoded(image: Image.Image, format: str = "PNG", **options: object) -> str:
    data = BytesIO()
    image.save(data, format, **options)
    return base64.b64encode(data.getvalue()).decode()


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_that_declares(width: int, height: int) -> str:
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    data = b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(100))) + chunk(b"IEND", b"")
    return base64.b64encode(data).decode()


def with_scans(number: int) -> str:
    """A progressive JPEG whose last scan comes `number` times more."""
    data = base64.b64decode(encoded(Image.new("L", (1024, 1024)), "JPEG", progressive=True))
    last = data[data.rindex(b"\xff\xda") : -2]
    return base64.b64encode(data[:-2] + number * last + data[-2:]).decode()


PLAIN = encoded(Image.new("RGB", (64, 48), (200, 10, 30)))


def test_a_turned_photograph_is_upright_and_is_not_turned_again():
    image = Image.new("RGB", (3, 2), "red")
    image.getexif()[0x0112] = 6
    turned = decode_image(encoded(image, "JPEG", exif=image.getexif()))
    assert (turned.size, turned.info, dict(turned.getexif())) == ((2, 3), {}, {})


def test_transparent_parts_are_white_whatever_lies_below():
    half = Image.new("RGBA", (2, 1), (255, 0, 0, 255))
    half.putpixel((1, 0), (0, 0, 0, 0))
    palette = Image.new("P", (2, 1))
    palette.putpalette([255, 0, 0, 0, 0, 0])
    palette.putpixel((1, 0), 1)
    for file in (encoded(half), encoded(half, "WEBP", lossless=True), encoded(palette, transparency=1)):
        assert decode_image(file).tobytes() == bytes([255, 0, 0, 255, 255, 255])


def test_gray_of_16_bits_is_scaled_and_not_clipped():
    image = Image.new("I;16", (2, 1), 0x4000)
    image.putpixel((1, 0), 0xFFFF)
    assert decode_image(encoded(image)).tobytes() == bytes([64] * 3 + [255] * 3)


def test_the_first_frame_of_an_animation_counts():
    first, second = Image.new("RGB", (8, 8), "black"), Image.new("RGB", (8, 8), "white")
    for format in ("WEBP", "PNG"):
        moving = encoded(first, format, save_all=True, append_images=[second])
        assert set(decode_image(moving).tobytes()) == {0}


def test_the_inks_of_a_photograph_for_print_become_colours():
    found = decode_image(encoded(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "JPEG"))
    red, green, blue = found.getpixel((4, 4))
    assert found.mode == "RGB"
    assert red > 250
    assert max(green, blue) < 5


@pytest.mark.parametrize(
    ("file", "problem"),
    [
        (png_that_declares(60_000, 60_000), "an image may have 67108864 pixels"),
        (png_that_declares(9_000, 9_000), "9000 × 9000 pixels; an image may have 67108864"),
        (encoded(Image.new("RGB", (8, 8)), "BMP"), "none of PNG, JPEG, WEBP; convert it"),
        (base64.b64encode(b"<svg xmlns='http://www.w3.org/2000/svg'/>").decode(), "none of PNG, JPEG, WEBP"),
        (base64.b64encode(b"a text").decode(), "none of PNG, JPEG, WEBP"),
        (f"data:image/png;base64,{PLAIN}", "not standard base64.*without data:"),
        (PLAIN.replace("+", "-").replace("/", "_").rstrip("=")[:-1] + "é", "not standard base64"),
        ("A" * (45 * 2**20), "larger than 33554432 bytes"),
        (with_scans(8192), r"has 8\d\d\d scans, too many for its size"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_before_it_is_decoded(file: str, problem: str):
    with pytest.raises(ImageError, match=problem):
        decode_image(file)


def test_a_file_that_is_cut_off_is_broken():
    noise = Image.effect_noise((64, 64), 99)
    for format in ("PNG", "JPEG", "WEBP"):
        data = base64.b64decode(encoded(noise.convert("RGB"), format))
        with pytest.raises(ImageError, match="broken"):
            decode_image(base64.b64encode(data[: len(data) // 2]).decode())
