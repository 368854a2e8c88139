"""What a recipe is: how a row of a dataset becomes messages."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .template import Template

Message = dict[str, Any]


@dataclass(frozen=True)
class Recipe:
    """`question` becomes the user's message, with {column} filled in from the row; `system` goes before it."""

    question: str
    system: str | None = None

    @property
    def template(self) -> Template:
        return Template.of(self.question)

    def messages(self, row: Mapping[str, Any]) -> list[Message]:
        """The prompt of one row. Raises ValueError for a column that is no text, see `Template.filled`."""
        return with_system(self.system, [{"role": "user", "content": self.template.filled(row)}])


def with_system(system: str | None, messages: list[Message]) -> list[Message]:
    """`system` before the messages, in place of a system message that is there already; None or "" changes nothing."""
    if not system:
        return messages
    rest = messages[1:] if messages and messages[0]["role"] == "system" else messages
    return [{"role": "system", "content": system}, *rest]
