"""Put DeepSpeed around a model, without the messages of the libraries, which do not help the reader of a run's log."""

import contextlib
import io
import logging
import warnings
from typing import Any

import torch
from torch import nn
from transformers.utils import logging as transformers_logging

from .deepspeed_import import DeepSpeedEngine, deepspeed
from .deepspeed_import import logger as deepspeed_logger

# Compile no ops. On a machine without a GPU DeepSpeed would build an op at its first start, for inference only: up to
# two minutes, and it needs g++ and ninja. (This is DeepSpeed's own cache of the ops that can be built.)
deepspeed.ops.__compatible_ops__ = {}


def quieten_libraries() -> None:
    """Silence the libraries' messages and progress bars."""
    deepspeed_logger.setLevel(logging.WARNING)
    # DeepSpeed still uses the old names of torch's collectives; under ZeRO-3 already while the model loads.
    warnings.filterwarnings("ignore", r"`torch\.distributed\.\w+` is deprecated", FutureWarning)
    # Progress bars of loading and saving garble a log file, and are a second bar on a terminal.
    transformers_logging.disable_progress_bar()


def start_deepspeed(
    model: nn.Module, settings: dict[str, Any], optimizer: torch.optim.Optimizer | None
) -> DeepSpeedEngine:
    """Return the engine around `model`; without an optimizer, one that computes and trains nothing."""
    # DeepSpeed prints some of its memory reports to stdout.
    with contextlib.redirect_stdout(io.StringIO()):
        return deepspeed.initialize(model=model, optimizer=optimizer, config=settings)[0]
