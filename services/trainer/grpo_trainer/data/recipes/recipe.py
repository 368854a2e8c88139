"""What a recipe is: how a row of a dataset becomes messages."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# {column} is filled in, {{column}} stands for {column}; every other brace, as in LaTeX, is only text.
_FIELD = re.compile(r"\{\{([A-Za-z_]\w*)\}\}|\{([A-Za-z_]\w*)\}")

Message = dict[str, Any]


@dataclass(frozen=True)
class Recipe:
    """`question` becomes the user's message, with {column} filled in from the row; `system` goes before it."""

    question: str
    system: str | None = None

    @property
    def columns(self) -> list[str]:
        """The columns it needs, in the order of the question."""
        return list(dict.fromkeys(field for _, field in _FIELD.findall(self.question) if field))

    def messages(self, row: Mapping[str, Any]) -> list[Message]:
        """The prompt of one row. Lists read as in Python: `[44, 19, 35]`."""
        question = _FIELD.sub(lambda field: f"{{{field[1]}}}" if field[1] else str(row[field[2]]), self.question)
        return with_system(self.system, [{"role": "user", "content": question}])


def with_system(system: str | None, messages: list[Message]) -> list[Message]:
    """`system` before the messages, in place of a system message that is there already; None or "" changes nothing."""
    if not system:
        return messages
    rest = messages[1:] if messages and messages[0]["role"] == "system" else messages
    return [{"role": "system", "content": system}, *rest]
