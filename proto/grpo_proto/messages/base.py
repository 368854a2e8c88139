"""The base classes of all messages, the protocol's version, and the chat message that prompts consist of."""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, FailFast, Field, ValidationError, model_validator

PROTOCOL_VERSION = 2
"""Grows when a message changes so that an older peer would misread it. `GET /info` of every service reports it."""


class StopAtFirstFault(FailFast):
    """Check a list only up to its first wrong entry and report that entry: a body may hold millions of them.

    `FailFast` itself cannot be part of a union: the members of a union must be hashable.
    """

    __hash__ = object.__hash__


class Request(BaseModel):
    """A message to a server. Unknown fields are refused: a misspelt option must not be ignored silently."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def left_open(self) -> set[str]:
        """Names of the fields that a client does not send, so that the server chooses their values."""
        return set()


class Response(BaseModel):
    """A message from a server. Unknown fields are ignored: a newer server may send more to an older client."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class ContentPart(Request):
    """One part of a chat message's content: a text, or a part of another `type` with the fields of that type.

    The fields of other types (`image_url`, `input_audio`, …) are carried as they are; the reader decides about them.
    """

    model_config = ConfigDict(extra="allow")

    type: str
    text: str | None = Field(
        default=None, exclude_if=lambda value: value is None, description="The text of a `text` part."
    )

    @model_validator(mode="after")
    def _text_alone(self) -> Self:
        if self.type == "text" and (self.text is None or self.model_extra):
            unknown = f", not {', '.join(sorted(self.model_extra))[:200]}" if self.model_extra else ""
            raise ValueError(f"a text part has the fields type and text{unknown}")
        return self


class FunctionCall(Request):
    """The function that a tool call names, and its arguments."""

    name: str
    arguments: str = Field(description="JSON as the model wrote it, which may be malformed.")


class ToolCall(Request):
    """A call of a tool by the assistant; the message with the tool's result repeats `id` as `tool_call_id`."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class Message(Request):
    """A chat message, as OpenAI's chat completions have it.

    Null fields other than `content` are not sent, so that an older server takes a message of a role and a text.
    """

    role: str
    content: str | Annotated[list[ContentPart], StopAtFirstFault()] | None = Field(
        default=None, description="Text, parts or null; required in a message without `tool_calls`."
    )
    tool_calls: Annotated[list[ToolCall], StopAtFirstFault()] | None = Field(
        default=None, exclude_if=lambda value: value is None, description="Calls that the assistant makes."
    )
    tool_call_id: str | None = Field(
        default=None, exclude_if=lambda value: value is None, description="The call that a tool's message answers."
    )
    name: str | None = Field(
        default=None, exclude_if=lambda value: value is None, description="Tells participants of one role apart."
    )

    reasoning_content: str | None = Field(
        default=None, exclude_if=lambda value: value is None, description="The assistant's thought before `content`."
    )

    @property
    def text(self) -> str:
        """`content` as text: the texts of its parts joined without a separator; "" for null."""
        if isinstance(self.content, list):
            return "".join(part.text or "" for part in self.content)
        return self.content or ""

    @model_validator(mode="after")
    def _content_or_calls(self) -> Self:
        if self.content is None and not self.tool_calls and "content" not in self.model_fields_set:
            # Reported at the field, as for a field that every message must have.
            raise ValidationError.from_exception_data(
                "Message", [{"type": "missing", "loc": ("content",), "input": {"role": self.role}}]
            )
        return self
