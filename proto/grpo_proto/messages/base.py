"""What every message has in common."""

from pydantic import BaseModel, ConfigDict, FailFast

PROTOCOL_VERSION = 1
"""Grows when a message changes so that an older peer would misread it. `GET /info` of every service reports it."""


class StopAtFirstFault(FailFast):
    """Check a list only up to its first wrong entry, which is told: a body may hold millions of them.

    `FailFast` itself cannot stand in a union: its members must be hashable.
    """

    __hash__ = object.__hash__


class Request(BaseModel):
    """A message to a server. Unknown fields are refused: a misspelt option must not be ignored silently."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def left_open(self) -> set[str]:
        """Names of the fields that are not sent: the server chooses their values."""
        return set()


class Response(BaseModel):
    """A message from a server. Unknown fields are tolerated: a newer server may say more to an older client."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class Message(Request):
    """A chat message as prompts and datasets have it."""

    role: str
    content: str
