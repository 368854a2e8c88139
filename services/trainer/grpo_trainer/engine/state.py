"""`engine.json` of a checkpoint: the layout of the run, and the progress of its engine."""

import json
from pathlib import Path
from typing import Any

from ..config.lora import LoraConfig
from ..errors import UsageError, storage_error_class

STATE_TAG = "state"
"""DeepSpeed's name for a checkpoint within its folder."""


def layout(
    *,
    zero_stage: int,
    world_size: int,
    dtype: str,
    lora: LoraConfig | None = None,
    base_digest: str | None = None,
) -> dict[str, Any]:
    """Return the settings that must be the same for a checkpoint to fit.

    With an adapter the checkpoint holds the adapter alone, and `base_digest` names the model that belongs to it.
    """
    adapter = lora.model_dump(mode="json", exclude={"adapter"}) if lora else None
    return {
        "zero_stage": zero_stage, "world_size": world_size, "dtype": dtype, "lora": adapter, "base_digest": base_digest,
    }  # fmt: skip


def write_engine_state(folder: Path, layout: dict[str, Any], counts: dict[str, int]) -> None:
    (folder / STATE_TAG / "engine.json").write_text(json.dumps(layout | counts))


def read_engine_state(folder: Path, layout: dict[str, Any]) -> dict[str, Any]:
    """Read the counts and the layout of the engine in `folder`, and check that the layout is `layout`.

    Raises UsageError for another ZeRO stage, world size, dtype, adapter or model below it, and UnavailableError when
    the disk is unavailable.
    """
    try:
        saved: dict[str, Any] = json.loads((folder / STATE_TAG / "engine.json").read_text())
    except OSError as error:
        raise storage_error_class(error)(f"{folder} holds no engine state that can be read: {error}") from error
    except ValueError as error:
        raise UsageError(f"{folder} holds no engine state: {error}") from error
    for name, value in layout.items():
        if saved.get(name) != value:
            raise UsageError(
                f"the checkpoint {folder} was written with {name} {saved.get(name)}, and this run has {value}",
                hint="resume with the model and layout of the checkpoint, or choose another run_dir",
            )
    return saved
