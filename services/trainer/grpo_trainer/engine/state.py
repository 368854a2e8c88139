"""`engine.json` of a checkpoint: the layout of the run, and the progress of its engine."""

import json
from pathlib import Path
from typing import Any

from ..config.lora import LoraConfig
from ..errors import UsageError, storage_error_class

STATE_TAG = "state"
"""DeepSpeed's name for a checkpoint within its folder."""
BEFORE = {"optimizer": "adamw"}
"""What holds for a checkpoint of an older release, which does not say so."""
SETTINGS_OF_FROZEN = "model.train_vision_tower, model.freeze_parameters_regex and model.trainable_parameters_regex"
SYNC = "sync_ref_model"
"""In the layout of a checkpoint that holds a reference model: one that moves is not the run's first model."""


def layout(
    *,
    zero_stage: int,
    world_size: int,
    dtype: str,
    frozen: dict[str, Any] | None = None,
    lora: LoraConfig | None = None,
    base_digest: str | None = None,
    optimizer: str = "adamw",
    sync_ref_model: bool = False,
) -> dict[str, Any]:
    """Return what a checkpoint was laid out by: the settings that must be the same for it to fit, and the ranks.

    `frozen` are the settings of what is trained (`ModelConfig.trained_layout`): by them the optimizer's state lies.
    With an adapter the checkpoint holds the adapter alone, and `base_digest` names the model that belongs to it.
    """
    adapter = lora.model_dump(mode="json", exclude={"adapter"}) if lora else None
    settings = {
        "zero_stage": zero_stage, "world_size": world_size, "dtype": dtype, "frozen": frozen, "lora": adapter,
        "base_digest": base_digest, "optimizer": optimizer,
    }  # fmt: skip
    return settings | {SYNC: True} if sync_ref_model else settings


def write_engine_state(folder: Path, layout: dict[str, Any], counts: dict[str, float | None]) -> None:
    (folder / STATE_TAG / "engine.json").write_text(json.dumps(layout | counts))


def read_engine_state(folder: Path, layout: dict[str, Any]) -> dict[str, Any]:
    """Read the counts and the layout of the engine in `folder`, and check that the layout fits `layout`.

    The number of ranks may be another, but for `adamw_8bit`, whose blocks of numbers cannot be laid out anew. A run may
    begin to move its reference model, and may not go back to its first model. Raises UsageError for that, for another
    ZeRO stage, dtype, optimizer, adapter or model below it, and UnavailableError when the disk is unavailable.
    """
    try:
        saved: dict[str, Any] = json.loads((folder / STATE_TAG / "engine.json").read_text())
    except OSError as error:
        raise storage_error_class(error)(f"{folder} holds no engine state that can be read: {error}") from error
    except ValueError as error:
        raise UsageError(f"{folder} holds no engine state: {error}") from error
    saved = BEFORE | saved
    for name, value in (layout | {SYNC: layout.get(SYNC)}).items():
        begins_to_move = name == SYNC and SYNC not in saved
        if saved.get(name) != value and not begins_to_move and name != "world_size":
            setting = SETTINGS_OF_FROZEN if name == "frozen" else name
            raise UsageError(
                f"the checkpoint {folder} was written with {setting} {saved.get(name)}, and this run has {value}",
                hint="resume with the model and layout of the checkpoint, or choose another run_dir",
            )
    before, now = saved["world_size"], layout["world_size"]
    if before != now and "8bit" in layout["optimizer"]:
        raise UsageError(
            f"the checkpoint {folder} was written by {before} ranks, and this run has {now}: the state of adamw_8bit "
            "is in blocks, which cannot be laid out anew",
            hint="resume on as many ranks as before, or choose another run_dir; adamw takes another number of ranks",
        )
    return saved
