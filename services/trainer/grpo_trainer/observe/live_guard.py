"""Access to the live page, which shows prompts and completions.

Bound to loopback, the server shows it without a token under a loopback name only: a web page that resolves its own name
to 127.0.0.1 must not read it (DNS rebinding). All other requests need the token, as `Authorization: Bearer`, or as the
password of `Basic`, for which a browser prompts.
"""

from collections.abc import Iterable, Sequence

from grpo_proto.api_token import TOKEN_VARIABLE, token_refusal
from grpo_proto.loopback import is_loopback
from grpo_proto.server.loopback_names import host_name
from grpo_proto.server.refusal import Refusal

CHALLENGE = 'Basic realm="grpo-services: any name, the token as password", charset="UTF-8"'


class LiveGuard:
    """`address` is the address that the server is bound to."""

    def __init__(self, address: str, tokens: Sequence[str]):
        self._loopback = is_loopback(address)
        self._tokens = tokens

    def refusal(self, *, host: str | None, headers: Iterable[tuple[bytes, bytes]]) -> Refusal | None:
        """Return the refusal of a request, from its `Host` and headers; None when it may see the page."""
        if self._loopback and is_loopback(host_name(host)):
            return None
        if self._tokens:
            return token_refusal(
                self._tokens,
                headers,
                challenge=CHALLENGE,
                message="the live page shows prompts and completions; the token is missing or wrong",
                hint=f"in a browser, give any name and ${TOKEN_VARIABLE} as password; else send it as a bearer token",
            )
        return Refusal(
            403,
            "no_token",
            "the live page shows prompts and completions; without a token it is not served under the name "
            f"{host_name(host)}",
            hint=f"start the trainer with {TOKEN_VARIABLE} set, or open the page as http://127.0.0.1 on its machine",
        )
