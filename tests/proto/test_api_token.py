"""The token of the servers, what counts as this machine, and a refusal on the wire."""

import base64
import subprocess
import sys

import pytest

from grpo_proto import ErrorBody, RewardClient
from grpo_proto.api_token import TokenError, has_token, server_tokens, token_refusal
from grpo_proto.loopback import is_loopback
from grpo_proto.server.refusal import Refusal

TOKEN = b"correct-horse-battery"
TOKENS = ["the-old-one", "correct-horse-battery"]


def basic(pair: bytes) -> bytes:
    return b"Basic " + base64.b64encode(pair)


@pytest.mark.parametrize(
    "header", [b"Bearer " + TOKEN, b"bearer  " + TOKEN + b" ", basic(b"any:" + TOKEN), basic(b":" + TOKEN + b"\n")]
)
def test_the_token_is_found(header: bytes):
    assert has_token(TOKENS, header)


@pytest.mark.parametrize(
    "header",
    [
        b"", b"Bearer", b"Bearer ", TOKEN, b"Digest " + TOKEN, b"Bearer " + TOKEN + b"x", b"Bearer " + TOKEN[:-1],
        b"Bearer \xff\xfe", b"Basic ???", basic(TOKEN), basic(TOKEN + b":"), basic(b"x:\xff"),
    ],
)  # fmt: skip
def test_anything_else_is_not_it(header: bytes):
    assert not has_token(TOKENS, header)
    assert not has_token([], header)


def test_one_authorization_with_a_token_lets_in():
    host, right, wrong = (b"host", b"server"), (b"authorization", b"Bearer " + TOKEN), (b"authorization", b"Bearer x")
    assert token_refusal(TOKENS, [host, right]) is None
    for headers in ([], [host], [wrong], [right, right], [wrong, right], [right, wrong]):
        refusal = token_refusal(TOKENS, headers, challenge="Basic")
        assert refusal is not None
        assert (refusal.status, refusal.detail.type) == (401, "unauthorized")
        assert refusal.headers == {"WWW-Authenticate": "Basic"}
    assert token_refusal([], [right]) is not None


def test_a_token_from_a_file_loses_its_line_break(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GRPO_API_TOKEN", "secret\n")
    monkeypatch.setenv("GRPO_API_TOKEN_ALSO", " older\n")
    assert server_tokens() == ("secret", "older")
    monkeypatch.delenv("GRPO_API_TOKEN_ALSO")
    assert server_tokens() == ("secret",)
    monkeypatch.delenv("GRPO_API_TOKEN")
    assert server_tokens() == ()


@pytest.mark.parametrize("empty", ["", "  \n"])
@pytest.mark.parametrize("name", ["GRPO_API_TOKEN", "GRPO_API_TOKEN_ALSO"])
def test_an_empty_token_is_none_that_somebody_believes_in(monkeypatch: pytest.MonkeyPatch, name: str, empty: str):
    monkeypatch.setenv("GRPO_API_TOKEN", "secret")
    monkeypatch.setenv(name, empty)
    with pytest.raises(TokenError, match=f"{name} is empty"):
        server_tokens()


@pytest.mark.parametrize("token", ["line1\nline2", "s\u00e9cret", "tab\tin it"])
def test_a_token_that_no_header_carries_is_refused_unshown(monkeypatch: pytest.MonkeyPatch, token: str):
    monkeypatch.setenv("GRPO_API_TOKEN", token)
    for refused in (server_tokens, lambda: RewardClient("http://127.0.0.1:1")):
        with pytest.raises((TokenError, ValueError), match="use printable ASCII") as told:
            refused()
        assert token[:4] not in str(told.value)


def test_a_second_token_does_not_stand_alone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("GRPO_API_TOKEN", raising=False)
    monkeypatch.setenv("GRPO_API_TOKEN_ALSO", "secret")
    with pytest.raises(TokenError, match="GRPO_API_TOKEN is not"):
        server_tokens()


@pytest.mark.parametrize("name", ["127.0.0.1", "127.8.0.1", "::1", "::1%lo", "localhost", "LOCALHOST."])
def test_loopback(name: str):
    assert is_loopback(name)


@pytest.mark.parametrize(
    "name",
    [None, "", "0.0.0.0", "::", "10.0.0.1", "example.org", "localhost.example.org", "127.0.0.1.example.org"],  # noqa: S104
)
def test_what_others_may_reach(name: str | None):
    assert not is_loopback(name)


def test_a_refusal_is_the_error_body_of_all_services():
    refusal = Refusal.busy(429, "busy", "64 requests wait", 1.2, hint="wait")
    error = ErrorBody.model_validate_json(refusal.json()).error
    assert (error.type, error.message, error.hint, error.retryable) == ("busy", "64 requests wait", "wait", True)
    assert (refusal.status, refusal.headers, str(refusal)) == (429, {"Retry-After": "1"}, "64 requests wait")
    assert Refusal.conflict("fenced", "another session", "join").status == 409
    assert not Refusal.invalid("value", "n is 0").detail.retryable


def test_they_bring_no_web_framework_with_them():
    """A reward server starts in a second, and a client has no server."""
    program = (
        "import sys, grpo_proto, grpo_proto.api_token, grpo_proto.loopback\n"
        "import grpo_proto.server.refusal, grpo_proto.client.clients\n"
        "print([name for name in ('fastapi', 'starlette', 'uvicorn', 'httptools', 'torch') if name in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "[]\n"
