"""The log of the trainer: one handler, text or JSON lines, third-party loggers at WARNING, no secrets.

GRPO_LOG_FORMAT=json writes JSON lines, GRPO_LOG_LEVEL sets the level of the trainer's own lines.
"""

import logging
import os
import sys
from typing import TextIO

from tqdm import tqdm

from grpo_proto.fewer_repeats import FewerRepeats
from grpo_proto.log_lines import formatter

from ..errors import UsageError

NOISY = (
    "DeepSpeed", "accelerate", "asyncio", "datasets", "filelock", "fsspec", "h11", "httpcore", "httpx",
    "huggingface_hub", "matplotlib", "tensorboard", "torch", "transformers", "trl", "urllib3", "uvicorn", "wandb",
)  # fmt: skip
"""Third-party loggers: warnings and errors only."""

ALIKE = ("grpo_trainer.engine", "grpo_trainer.lora")
"""Loggers of what every rank does with the same model and the same results."""
MAX_TEXTS = 1000


def configure_logging(*, rank: int = 0, stream: TextIO | None = None) -> None:
    """Configure the root logger once for the process; calling it again replaces the earlier handler.

    Other ranks than 0 log their number, `trainer[1]`, and only warnings, and none of what all ranks do alike: rank 0
    reports the same work. GRPO_LOG_LEVEL has them log all of that level. A warning with an equal text within seconds is
    counted. Raises UsageError for an unknown GRPO_LOG_LEVEL or GRPO_LOG_FORMAT.
    """
    service = f"trainer[{rank}]" if rank else "trainer"
    asked_for = os.environ.get("GRPO_LOG_LEVEL")
    level = (asked_for or ("WARNING" if rank else "INFO")).upper()
    if level not in logging.getLevelNamesMapping():
        raise UsageError(f"GRPO_LOG_LEVEL {level} is not a level", hint="DEBUG, INFO, WARNING or ERROR")
    handler = BesideTheBar(stream or sys.stderr)
    handler.addFilter(FewerEqualTexts())
    try:
        handler.setFormatter(formatter(service))
    except ValueError as error:
        raise UsageError(str(error)) from None
    root = logging.getLogger()
    for old in [old for old in root.handlers if isinstance(old, BesideTheBar)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level)
    for name in ALIKE:
        logging.getLogger(name).setLevel("ERROR" if rank and not asked_for else "NOTSET")
    for name in NOISY:
        logging.getLogger(name).setLevel(logging.WARNING)
    # Route Python's warnings through the log, for its format and to keep the bar intact.
    logging.captureWarnings(True)


class FewerEqualTexts(FewerRepeats):
    """Eight requests that lose their server at once are one line; the live page counts them all."""

    def shared(self, record: logging.LogRecord) -> str:
        return record.getMessage()

    def passes(self, record: logging.LogRecord) -> bool:
        if len(self._seen) > MAX_TEXTS:
            self._seen.clear()
        return super().passes(record)


class BesideTheBar(logging.StreamHandler[TextIO]):
    """Write to the stream, above a progress bar if there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        with tqdm.external_write_mode(file=self.stream):
            super().emit(record)
