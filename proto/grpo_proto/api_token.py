"""The servers' token: read it from the environment, and check whether a request carries it.

A server accepts two tokens, so that a token can be replaced while clients and servers restart one after the other.
"""

import base64
import binascii
import hmac
import os
from collections.abc import Iterable, Sequence

from .server.refusal import Refusal

TOKEN_VARIABLE = "GRPO_API_TOKEN"  # noqa: S105 (the name, not a token)
ALSO_VARIABLE = "GRPO_API_TOKEN_ALSO"


class TokenError(Exception):
    """The variables hold no usable token, though at least one of them is set."""


def server_tokens() -> tuple[str, ...]:
    """The tokens that a server accepts, from the environment; the first is for its own requests.

    Empty when the server needs no token. Strips white space: a secret made from a file ends in a line break, which a
    header cannot carry. Raises TokenError for an empty variable, and for a second token without a first.
    """
    token, also = os.environ.get(TOKEN_VARIABLE), os.environ.get(ALSO_VARIABLE)
    if token is not None and not token.strip():
        raise TokenError(f"{TOKEN_VARIABLE} is empty: set it to a secret, or unset it to serve loopback without one")
    if also is not None and not also.strip():
        raise TokenError(f"{ALSO_VARIABLE} is empty: set it to the second token that the server accepts, or unset it")
    if also is not None and token is None:
        raise TokenError(f"{ALSO_VARIABLE} is set and {TOKEN_VARIABLE} is not: set a single token in {TOKEN_VARIABLE}")
    tokens = {
        name: value.strip() for name, value in ((TOKEN_VARIABLE, token), (ALSO_VARIABLE, also)) if value is not None
    }
    for name, value in tokens.items():
        if not is_sendable(value):
            raise TokenError(f"{name} holds a character that no header carries: use printable ASCII")
    return tuple(tokens.values())


def is_sendable(token: str) -> bool:
    """Whether a header can carry the token."""
    return all(" " <= character <= "~" for character in token)


def has_token(tokens: Sequence[str], authorization: bytes) -> bool:
    """Whether the value of an `Authorization` header carries one of `tokens`.

    Compares in constant time: otherwise the time of an answer would reveal a token byte by byte.

    Accepts `Bearer TOKEN`, and `Basic` with the token as the password of any user: HTTP libraries send the latter for
    http://any:TOKEN@host:8001, browsers for what a person types.
    """
    scheme, _, given = authorization.partition(b" ")
    given = given.strip()
    if scheme.lower() == b"basic":
        try:
            given = base64.b64decode(given, validate=True).partition(b":")[2].strip()
        except binascii.Error:
            return False
    elif scheme.lower() != b"bearer":
        return False
    return any(hmac.compare_digest(given, token.encode()) for token in tokens)


def token_refusal(
    tokens: Sequence[str],
    headers: Iterable[tuple[bytes, bytes]],
    *,
    challenge: str = "Bearer",
    message: str = "the token is missing or wrong",
    hint: str = f"send Authorization: Bearer ${TOKEN_VARIABLE}",
) -> Refusal | None:
    """A 401, unless the `headers` of an ASGI request have exactly one `Authorization`, which carries one of `tokens`.

    Two `Authorization` headers are refused: a proxy in front may have checked the other one. `challenge` names the
    scheme for the client: on `Basic` a browser asks its user.
    """
    given = [value for name, value in headers if name == b"authorization"]
    if len(given) == 1 and has_token(tokens, given[0]):
        return None
    return Refusal(401, "unauthorized", message, hint=hint, headers={"WWW-Authenticate": challenge})
