"""Who may call which route of a session: the program with `api_key`, the trainer with `control_key`.

The server's token opens both. The policy's own tools run beside the program: what they can read must not open the
reward.
"""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from grpo_proto.api_token import has_token
from grpo_proto.server.refusal import Refusal

NO_RETRY = {"x-should-retry": "false"}
"""Read by the SDKs of OpenAI and Anthropic, which otherwise retry some statuses."""


def _new_key(kind: str) -> str:
    return f"{kind}-{secrets.token_urlsafe(32)}"


@dataclass(frozen=True, slots=True)
class Keys:
    """The two keys of one session."""

    api_key: str = field(default_factory=lambda: _new_key("api"))
    control_key: str = field(default_factory=lambda: _new_key("control"))

    def check(self, headers: Mapping[str, str], tokens: Sequence[str], *, control: bool) -> None:
        """Raises Refusal: 401 no key or an unknown one, 403 the session's other key. `tokens` open every route."""
        authorization = headers.get("authorization", "").encode()
        if tokens and has_token(tokens, authorization):
            return
        right, other = (self.control_key, self.api_key) if control else (self.api_key, self.control_key)
        given = [authorization] if authorization else []
        if not control:
            given += [f"Bearer {headers[name]}".encode() for name in ("x-api-key", "api-key") if name in headers]
        if any(has_token([right], key) for key in given):
            return
        wanted = "control_key" if control else "api_key"
        if any(has_token([other], key) for key in given):
            raise Refusal(403, "wrong_key", f"this route takes the session's {wanted}", headers=dict(NO_RETRY))
        raise Refusal(
            401,
            "unauthorized",
            "the key is missing or not of this session",
            hint=f"send Authorization: Bearer {wanted}, from the answer that opened the session",
            headers={"WWW-Authenticate": "Bearer"} | NO_RETRY,
        )
