"""Who may see the live page: it shows prompts and completions, which are the user's.

A server bound to loopback shows it to whoever asks for it there, by a loopback name: a web page that points its own
name at 127.0.0.1 must not read it. Everybody else needs the token, as `Authorization: Bearer`, or as the password of
`Basic`, so that a browser can ask a person for it. Without a token in GRPO_API_TOKEN nobody else sees it.
"""

import base64
import binascii
import hmac
import ipaddress
from dataclasses import dataclass

from grpo_proto import ErrorDetail

TOKEN_VARIABLE = "GRPO_API_TOKEN"  # noqa: S105 (the name, not a token)
CHALLENGE = {"WWW-Authenticate": 'Basic realm="grpo-services: any name, the token as password", charset="UTF-8"'}


@dataclass(frozen=True)
class Refused:
    """Why a request is not answered."""

    status: int
    detail: ErrorDetail
    headers: dict[str, str]


class LiveGuard:
    """`address` is the one the server is bound to."""

    def __init__(self, address: str, token: str | None):
        self._loopback = is_loopback(address)
        self._token = token.strip().encode() if token and token.strip() else None

    @property
    def shown_to_nobody(self) -> bool:
        """Off loopback without a token: every request is refused."""
        return not self._loopback and self._token is None

    def refusal(self, *, host: str | None, authorization: str | None) -> Refused | None:
        """What to answer instead of the page, from the two headers of a request; None: it may be seen."""
        if self._loopback and is_loopback(host_name(host)):
            return None
        if self._token is not None and token_is(self._token, authorization):
            return None
        if self._token is not None:
            detail = ErrorDetail(
                type="unauthorized",
                message="the live page shows prompts and completions; the token is missing or wrong",
                hint=f"in a browser, give any name and ${TOKEN_VARIABLE} as password; else send it as a bearer token",
            )
            return Refused(401, detail, CHALLENGE)
        where = f"under the name {host_name(host)}" if self._loopback else "to other machines"
        detail = ErrorDetail(
            type="no_token",
            message=f"the live page shows prompts and completions; without a token it is not shown {where}",
            hint=f"start the trainer with {TOKEN_VARIABLE} set, or open the page as http://127.0.0.1 on its machine",
        )
        return Refused(403, detail, {})


def is_loopback(name: str) -> bool:
    """Whether an address, or the name in a URL, can only mean this machine."""
    if name.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(name.partition("%")[0]).is_loopback
    except ValueError:
        return False


def host_name(host: str | None) -> str:
    """`Host` without its port: `[::1]:8002` → `::1`."""
    host = (host or "").strip()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def token_is(token: bytes, authorization: str | None) -> bool:
    """Compared in constant time, so that a token cannot be guessed byte by byte."""
    scheme, _, given = (authorization or "").partition(" ")
    found = given.strip().encode("utf-8", "replace")
    if scheme.lower() == "basic":
        try:
            found = base64.b64decode(found, validate=True).partition(b":")[2]
        except binascii.Error:
            return False
    elif scheme.lower() != "bearer":
        return False
    return hmac.compare_digest(found.strip(), token)
