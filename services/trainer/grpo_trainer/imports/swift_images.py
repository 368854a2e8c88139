"""What ms-swift's commands say of images: how large they are, and which parts of a model that sees them are trained."""

from collections.abc import Mapping

from .options import Options
from .run_file import RunFile

MAX_PIXELS = "MAX_PIXELS"
FROZEN = {"freeze_vit": True, "freeze_aligner": True, "freeze_llm": False}
"""What is frozen there by default, and here always."""


def set_swift_images(options: Options, run: RunFile, variables: Mapping[str, str]) -> None:
    """Take `--max_pixels` and the variable of that name; report what is frozen otherwise there."""
    pixels = options.whole("max_pixels")
    if pixels is not None:
        run.set("data.max_image_pixels", pixels, options.shown("max_pixels"))
    elif variables.get(MAX_PIXELS, "").isdecimal():
        run.set("data.max_image_pixels", int(variables[MAX_PIXELS]), f"{MAX_PIXELS}={variables[MAX_PIXELS]}")
    for name, frozen in FROZEN.items():
        said = options.truth(name)
        if said is None:
            continue
        if said is frozen:
            run.not_needed.append(f"{options.shown(name)}: so it is here")
        else:
            run.differs.append(
                f"{options.shown(name)}: the decoder is trained; the vision tower and what joins both stay as they are"
            )
