"""Read the text of a turn as a message, by the parsers that the server was started with.

The same message goes to the program and into the record, so that the program's next request finds it.
"""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

from .chat_form import ChatMessage, chat_message

CALL_ID_CHARACTERS = 9
"""The length that Mistral's templates demand; all others take it too."""


class AnswerReader:
    """Reads answers; one instance per server.

    Args:
        parser: vLLM's composed parser class; None reads every text as content.
        calls: whether --enable-auto-tool-choice was given.
    """

    def __init__(self, parser: Any, tokenizer: Any, model_config: Any, *, calls: bool):
        self.parser, self.tokenizer, self.model_config = parser, tokenizer, model_config
        self.calls = calls and parser is not None and parser.tool_parser_cls is not None

    def read(
        self,
        text: str,
        token_ids: Sequence[int],
        *,
        prompt: Sequence[int],
        tools: list[dict[str, Any]] | None,
        kwargs: Mapping[str, Any],
        ended: bool,
        named: bytes,
    ) -> tuple[ChatMessage, list[dict[str, Any]]]:
        """Return the message, and its calls as the program gets them, with the arguments as the policy wrote them.

        `ended` False: the turn was cut, and what looks like a call may be half of one: it is content. `named`: a digest
        that is another for each turn, of which the ids of calls are made; random ones would change the next prompt.
        """
        if self.parser is None:
            return {"role": "assistant", "content": text}, []
        tools = tools if ended and self.calls else None
        asked = ChatCompletionRequest(messages=[{"role": "user", "content": ""}], tools=tools or None)
        parser = self._new_parser(asked.tools, prompt, kwargs)
        found = None
        if tools:
            thought, content, found = parser.parse(
                text, asked, enable_auto_tools=True, model_output_token_ids=token_ids
            )
        elif parser.reasoning_parser is not None:
            # Without `parse`: some parsers take calls out of the text that nobody has tools for.
            thought, content = parser.reasoning_parser.extract_reasoning(text, asked)
        else:
            thought, content = None, text
        sent: dict[str, Any] = {"role": "assistant", "content": content or ""}
        if thought:
            sent["reasoning"] = thought
        calls = [
            {
                "id": _call_id(named, number),
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for number, call in enumerate(found or [])
        ]
        if calls:
            sent["tool_calls"] = calls
        return chat_message(sent, 0), calls

    def thought_tokens(self, token_ids: Sequence[int], *, prompt: Sequence[int], kwargs: Mapping[str, Any]) -> int:
        """Count the tokens of the thought in an answer."""
        if self.parser is None:
            return 0
        return int(self._new_parser(None, prompt, kwargs).count_reasoning_tokens(token_ids))

    def _new_parser(self, tools: Any, prompt: Sequence[int], kwargs: Mapping[str, Any]) -> Any:
        """Return a parser for one answer: it keeps what it has read."""
        parser = self.parser(self.tokenizer, tools, chat_template_kwargs=dict(kwargs), model_config=self.model_config)
        parser.set_prompt_token_ids(prompt)
        return parser


def _call_id(named: bytes, number: int) -> str:
    digest = hashlib.blake2b(named + number.to_bytes(4), digest_size=10).digest()
    return base64.b32encode(digest).decode()[:CALL_ID_CHARACTERS]
