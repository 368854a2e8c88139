"""How the tokenizer's chat template writes the assistant's answer, and with which token it ends the turn.

Some templates trim an answer, or leave its thoughts out.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import UsageError
from .recipes import Message
from .rendering import Prompt, Renderer, Tools
from .turn_end import end_of_turn

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

log = logging.getLogger(__name__)

PARTS = ("tool_calls", "reasoning_content", "reasoning", "thinking")
"""What an answer may have beside its text."""
Answer = str | Message
"""A text, or the assistant's message if it has one of the `PARTS`."""


class AnswerTurn:
    """Turns answers into the texts that are learned, each with its end.

    `end` is what the template writes after an answer, up to its first special token; empty without a template, and
    where it writes none.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", prompts: Sequence[Prompt], settings: Mapping[str, Any]):
        self._renderer = Renderer(tokenizer, settings)
        conversations = (prompt for prompt in prompts if not isinstance(prompt, str))
        first = next(conversations, None) if self._renderer.has_template else None
        self.end = "" if first is None else end_of_turn(self._renderer, first)
        if first is not None and not self.end:
            log.warning("the chat template writes no special token after an answer: eos_token is learned there")

    def written(self, prompt: Prompt, answer: Answer, tools: Tools, where: str) -> str:
        """Return the text that follows `prompt`. Raises UsageError for a message that the template does not write."""
        if isinstance(answer, str):
            return answer if isinstance(prompt, str) else answer + self.end
        parts = [part for part in PARTS if answer.get(part)]
        if isinstance(prompt, str) or not self.end:
            raise UsageError(
                f"{where}: the answer has {' and '.join(parts)}, which nothing but a chat template can write",
                hint="give the prompt as messages to a tokenizer with a chat template, or the answer as a text",
            )
        without = [{key: value for key, value in answer.items() if key != part} for part in parts]
        try:
            [before] = self._renderer.rendered([prompt], tools)
            answered = [[*prompt, message] for message in (answer, *without)]
            whole, *others = self._renderer.rendered(answered, tools, answered=True)
        except Exception as error:
            raise UsageError(f"{where}: the tokenizer's chat template refuses the answer: {error}") from error
        lost = [part for part, other in zip(parts, others, strict=True) if other == whole]
        text, end, _ = whole.removeprefix(before).rpartition(self.end)
        if lost or not whole.startswith(before) or not end:
            raise UsageError(
                f"{where}: the tokenizer's chat template does not write the {' and '.join(lost or parts)} of the "
                "answer, or not directly behind the prompt of a run",
                hint="give the answer as a text, as the policy shall write it",
            )
        return text + end
