"""Files of images, as rows and users' code name them, and as they are sent: base64."""

import base64
from io import BytesIO
from pathlib import Path
from typing import Any

LONGEST_PATH = 4096


def file_of(value: str, folder: str = "") -> Path | None:
    """Return the file that a text names, relative to `folder`; None where there is none."""
    if len(value) > LONGEST_PATH or "\0" in value:
        return None
    try:
        found = (Path(folder) / Path(value.removeprefix("file://")).expanduser()).resolve()
        return found if found.is_file() else None
    except (OSError, RuntimeError):  # a name that is too long, a loop of links, nobody's home
        return None


def may_be_base64(value: str) -> bool:
    """Return whether a text that is no file's name looks like the base64 of one."""
    return len(value) > 64 and len(value) % 4 == 0 and "." not in value


def base64_of(path: Path) -> str:
    """Raises OSError."""
    return base64.b64encode(path.read_bytes()).decode()


def png_of(image: Any) -> str:
    """Return the base64 of an image of Pillow, without loss. Raises what Pillow raises."""
    file = BytesIO()
    image.save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()
