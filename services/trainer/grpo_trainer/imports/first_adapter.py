"""An adapter that a run starts from: its own configuration says rank, scale and targets, there as here."""

import json
from pathlib import Path

from ..config.lora import KEYS_OF_PEFT
from .run_file import RunFile, checked


def set_first_adapter(run: RunFile, folder: str, shown: str) -> None:
    """Start from the adapter in `folder`, and describe it as its configuration does, where that is here."""
    run.set("model.lora.adapter", folder, shown)
    try:
        saved = json.loads((Path(folder) / "adapter_config.json").read_text(encoding="utf-8"))
        found = {setting: saved[key] for key, setting in KEYS_OF_PEFT.items() if saved.get(key) not in (None, [])}
    except (OSError, ValueError, TypeError, KeyError):
        run.differs.append(f"{shown}: its files are not here, so model.lora may describe another one")
        return
    for setting, value in found.items():
        name = f"model.lora.{setting}"
        run.set(name, checked(name, value, f"{folder}/adapter_config.json"), f"of the adapter {folder}")
