"""The log of the trainer: one handler, lines that people or machines can read, third parties quietened, no secrets.

GRPO_LOG_FORMAT=json writes JSON lines, GRPO_LOG_LEVEL sets the level of our own lines.
"""

import json
import logging
import os
import re
import sys
import time
from collections.abc import Iterable
from typing import TextIO

from tqdm import tqdm

from ..errors import UsageError

NOISY = (
    "DeepSpeed", "accelerate", "asyncio", "datasets", "filelock", "fsspec", "h11", "httpcore", "httpx",
    "huggingface_hub", "matplotlib", "tensorboard", "torch", "transformers", "trl", "urllib3", "uvicorn", "wandb",
)  # fmt: skip
"""Loggers of others: warnings and errors only."""

SECRET_VARIABLES = ("GRPO_API_TOKEN", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY")
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}")
_IN_URL = re.compile(r"(?i)([?&](?:token|key|api_key|access_token|password)=)[^&\s\"']+|(://[^/\s:@]*:)[^@\s/]+(?=@)")
_HIDDEN = "***"


def configure_logging(*, rank: int = 0, stream: TextIO | None = None) -> None:
    """Configure the root logger once for the process; calling it again replaces the earlier handler.

    Ranks other than 0 say where they are, `trainer[1]`, and only warn: they do what rank 0 reports. Raises UsageError
    for an unknown GRPO_LOG_LEVEL or GRPO_LOG_FORMAT.
    """
    service = f"trainer[{rank}]" if rank else "trainer"
    level = (os.environ.get("GRPO_LOG_LEVEL") or ("WARNING" if rank else "INFO")).upper()
    if level not in logging.getLevelNamesMapping():
        raise UsageError(f"GRPO_LOG_LEVEL {level} is no level", hint="DEBUG, INFO, WARNING or ERROR")
    style = os.environ.get("GRPO_LOG_FORMAT", "text")
    if style not in ("text", "json"):
        raise UsageError(f"GRPO_LOG_FORMAT {style} is unknown", hint="text or json")

    handler = BesideTheBar(stream or sys.stderr)
    secrets = [os.environ.get(name, "") for name in SECRET_VARIABLES]
    handler.setFormatter(JsonLines(service, secrets) if style == "json" else TextLines(service, secrets))
    root = logging.getLogger()
    for old in [old for old in root.handlers if isinstance(old, BesideTheBar)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level)
    for name in NOISY:
        logging.getLogger(name).setLevel(logging.WARNING)
    # Warnings of Python come through the log as well, with its format and without breaking the bar.
    logging.captureWarnings(True)


class BesideTheBar(logging.StreamHandler[TextIO]):
    """Writes to the stream, above a progress bar if there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        with tqdm.external_write_mode(file=self.stream):
            super().emit(record)


class Redacting(logging.Formatter):
    """Hides secrets: the values of variables that hold one, bearer tokens, and credentials in URLs."""

    def __init__(self, service: str, secrets: Iterable[str] = ()):
        super().__init__()
        self.service = service
        # Short values would hide half of every line; nobody protects anything with them.
        self._secrets = sorted((secret for secret in secrets if len(secret) >= 6), key=len, reverse=True)

    def redact(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, _HIDDEN)
        text = _BEARER.sub(rf"\1 {_HIDDEN}", text)
        return _IN_URL.sub(lambda match: f"{match[1] or match[2]}{_HIDDEN}", text)

    def message_of(self, record: logging.LogRecord) -> str:
        """The message with its stack trace, if any, without secrets."""
        text = record.getMessage()
        if record.exc_info:
            text = f"{text}\n{self.formatException(record.exc_info)}"
        return self.redact(text)


class TextLines(Redacting):
    """`2026-01-31 12:00:00 INFO trainer: message`"""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
        return f"{moment} {record.levelname} {self.service}: {self.message_of(record)}"


class JsonLines(Redacting):
    """One JSON object per line: time (UTC, milliseconds), level, service, logger, message."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "service": self.service,
            "logger": record.name,
            "message": self.message_of(record),
        }
        return json.dumps(line, ensure_ascii=False)
