"""Log formatters of every service: lines for people, or JSON for machines (GRPO_LOG_FORMAT=json), without secrets."""

import json
import logging
import os
import re
import time

from .api_token import ALSO_VARIABLE, TOKEN_VARIABLE

FORMAT_VARIABLE = "GRPO_LOG_FORMAT"
SECRET_VARIABLES = (
    TOKEN_VARIABLE, ALSO_VARIABLE, "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY",
)  # fmt: skip
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}")
_IN_URL = re.compile(r"(?i)([?&](?:token|key|api_key|access_token|password)=)[^&\s\"']+|(://[^/\s:@]*:)[^\s/]+(?=@)")
_HIDDEN = "***"


def formatter(service: str) -> logging.Formatter:
    """The formatter that GRPO_LOG_FORMAT selects; it hides secrets. Raises ValueError for an unknown format."""
    style = os.environ.get(FORMAT_VARIABLE) or "text"
    if style not in ("text", "json"):
        raise ValueError(f"{FORMAT_VARIABLE} {style} is unknown: text or json")
    return JsonLines(service) if style == "json" else TextLines(service)


class Redacting(logging.Formatter):
    """Hide secrets: the values of SECRET_VARIABLES, bearer tokens, credentials in URLs."""

    def __init__(self, service: str):
        super().__init__()
        self.service = service
        secrets = [os.environ.get(name, "").strip() for name in SECRET_VARIABLES]
        # Keep short values: hiding them would hide half of every line, and they protect nothing.
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
