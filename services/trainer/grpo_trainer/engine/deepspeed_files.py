"""Load DeepSpeed's files of a checkpoint, which are pickles, without running code that somebody may have put there."""

import pickle
import re
from pathlib import Path
from typing import Any

import torch
from deepspeed.runtime.fp16.loss_scaler import LossScaler
from deepspeed.runtime.zero.config import ZeroStageEnum
from deepspeed.utils.tensor_fragment import fragment_address

from ..errors import UsageError

CLASSES = [LossScaler, ZeroStageEnum, fragment_address]
"""What lies in DeepSpeed's files beside tensors, numbers, texts and containers."""


def load_file(path: str | Path, map_location: Any = "cpu", *, mmap: bool = False) -> dict[str, Any]:
    """Return what DeepSpeed saved in `path`. It stands in for the `load` of DeepSpeed's checkpoint engine.

    Raises UsageError for a file with anything but CLASSES and what torch itself takes, and OSError.
    """
    try:
        with torch.serialization.safe_globals(CLASSES):
            loaded: dict[str, Any] = torch.load(path, map_location=map_location, mmap=mmap, weights_only=True)
    except pickle.UnpicklingError as error:
        named = re.search(r"GLOBAL (\S+)", str(error))
        what = named[1] if named else "objects"
        raise UsageError(
            f"{path} holds {what}, which no checkpoint of this trainer does, and is not loaded",
            hint="resume from a checkpoint that this version of the trainer wrote",
        ) from error
    return loaded
