"""The token of the servers: where it stands, and whether a request carries it.

While one token takes the place of another, servers take both: clients and servers are not started anew in one moment.
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
    """What the variables say is not what whoever set them believes."""


def server_tokens() -> tuple[str, ...]:
    """The tokens a server takes, of the environment, that of its own requests first; none when it asks for none.

    Raises TokenError for a variable that is set to nothing, and for a second token without a first. A secret that was
    made from a file ends in a line break, which no header can carry.
    """
    token, also = os.environ.get(TOKEN_VARIABLE), os.environ.get(ALSO_VARIABLE)
    if token is not None and not token.strip():
        raise TokenError(f"{TOKEN_VARIABLE} is empty: set it to a secret, or unset it to serve loopback without one")
    if also is not None and not also.strip():
        raise TokenError(f"{ALSO_VARIABLE} is empty: set it to the second token that is taken, or unset it")
    if also is not None and token is None:
        raise TokenError(f"{ALSO_VARIABLE} is set and {TOKEN_VARIABLE} is not: with one token only, that is its place")
    return tuple(value.strip() for value in (token, also) if value is not None)


def has_token(tokens: Sequence[str], authorization: bytes) -> bool:
    """Whether the value of an `Authorization` header carries one of `tokens`; in constant time, so that nobody can
    guess one byte by byte.

    `Bearer TOKEN`, or `Basic` with the token as password under any name: HTTP libraries make that of what stands before
    the @ of a URL, http://any:TOKEN@host:8001, and a browser of what a person types.
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
    """401, unless exactly one `Authorization` of the `headers` of an ASGI request carries one of `tokens`.

    Of several a proxy in front may have read another one. `challenge` says what is asked for: `Basic` makes a browser
    ask its user.
    """
    given = [value for name, value in headers if name == b"authorization"]
    if len(given) == 1 and has_token(tokens, given[0]):
        return None
    return Refusal(401, "unauthorized", message, hint=hint, headers={"WWW-Authenticate": challenge})
