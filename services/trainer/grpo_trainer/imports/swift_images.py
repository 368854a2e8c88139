"""What ms-swift's commands say of images: how large they are, and which parts of a model that sees them are trained."""

from collections.abc import Mapping

from .options import Options, given
from .run_file import RunFile

MAX_PIXELS = "MAX_PIXELS"
SETTING = "model.train_vision_tower"
TOWER, ALIGNER, DECODER = "freeze_vit", "freeze_aligner", "freeze_llm"
FROZEN = {TOWER: True, ALIGNER: True, DECODER: False}
"""What is frozen by default, there as here."""
OTHERWISE = {
    TOWER: "an adapter is on the decoder alone; the vision tower and what joins both stay as they are",
    ALIGNER: "what joins tower and decoder stays as it is; to train it, set model.train_vision_tower, and freeze the "
    "tower in model.freeze_parameters_regex, as 'visual\\.blocks' or 'vision_model'",
    DECODER: "the decoder is trained; parts of it can be frozen in model.freeze_parameters_regex",
}


def set_swift_images(options: Options, run: RunFile, variables: Mapping[str, str]) -> None:
    """Take `--max_pixels` and the variable of that name, and which parts are trained."""
    pixels = options.whole("max_pixels")
    if pixels is not None:
        run.set("data.max_image_pixels", pixels, options.shown("max_pixels"))
    elif variables.get(MAX_PIXELS, "").isdecimal():
        run.set("data.max_image_pixels", int(variables[MAX_PIXELS]), f"{MAX_PIXELS}={variables[MAX_PIXELS]}")
    said = {name: options.truth(name) for name in FROZEN}
    trained = [name for name, frozen in FROZEN.items() if said[name] is (not frozen)]
    for name, frozen in FROZEN.items():
        if said[name] is frozen:
            run.not_needed.append(f"{options.shown(name)}: so it is here")
    if TOWER in trained and "model.lora.r" not in run.entries:
        seeing = [name for name in trained if name != DECODER]
        run.set(SETTING, True, "; ".join(given(options, *seeing)))
        if ALIGNER not in trained:
            shown = options.shown(ALIGNER) if said[ALIGNER] else "ms-swift's default of freeze_aligner is true"
            run.differs.append(
                f"{shown}: what joins tower and decoder is trained with the tower; to freeze it, name it in "
                "model.freeze_parameters_regex, as 'visual\\.merger' or 'connector'"
            )
        trained = [name for name in trained if name == DECODER]
    for name in trained:
        run.differs.append(f"{options.shown(name)}: {OTHERWISE[name]}")
