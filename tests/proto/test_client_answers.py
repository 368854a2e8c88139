"""The clients against servers that answer anything: none fills the memory or takes for ever."""

import asyncio
import gzip
import zlib
from collections.abc import Callable
from contextlib import asynccontextmanager

import brotli
import httpx
import pytest

from grpo_proto import FatalError, InfrastructureError, RewardClient, RolloutClient, ServiceError
from grpo_proto.client import clients
from grpo_proto.client.answer import Answer

from .messages import EXAMPLES

LIMIT_BYTES = 100_000
INFO = EXAMPLES["RewardInfo"].model_dump_json().encode()
PIECE = b" " * 65_536


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.delenv("GRPO_API_TOKEN", raising=False)
    monkeypatch.setattr(clients, "MAX_ANSWER_BYTES", LIMIT_BYTES)
    monkeypatch.setattr(clients, "MAX_INFO_BYTES", LIMIT_BYTES)
    monkeypatch.setattr(clients, "BYTES_PER_TOKEN", 10)


class Playing:
    """What the server was asked, and how much of its answer was taken."""

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[bytes] = []
        self.sent_bytes = 0


@asynccontextmanager
async def serving(head: str, body: bytes = b"", *, for_ever: bytes = b"", pause_s: float = 0.0):
    """A server that answers every request with `head` and `body`, then `for_ever` until the client goes."""
    playing = Playing()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            playing.requests.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(f"HTTP/1.1 {head}\r\n\r\n".encode() + body)
            while for_ever:
                await asyncio.sleep(pause_s)
                writer.write(for_ever)
                await writer.drain()
                playing.sent_bytes += len(for_ever)
            await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        playing.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield playing


CALLS: dict[str, tuple[type, Callable]] = {
    "info": (RewardClient, lambda c: c.info(retry_for_s=60)),
    "score": (RewardClient, lambda c: c.score(EXAMPLES["ScoreRequest"], retry_for_s=60)),
    "rollouts": (RolloutClient, lambda c: c.rollouts(EXAMPLES["RolloutRequest"], retry_for_s=60)),
    "livez": (RewardClient, lambda c: c.livez()),
}


@pytest.mark.parametrize("call", CALLS)
async def test_an_answer_without_end_is_refused_at_the_limit_and_not_repeated(call):
    kind, invoke = CALLS[call]
    async with serving("200 OK\r\nContent-Type: application/json", for_ever=PIECE) as playing:
        async with kind(playing.url) as client:
            with pytest.raises(FatalError, match=r"larger than \d[\d,]* bytes") as caught:
                await invoke(client)
    assert caught.value.detail.type == "answer_too_large"
    assert caught.value.url.startswith(playing.url)
    assert len(playing.requests) == 1


async def test_an_answer_that_says_it_is_too_large_is_not_read():
    async with serving(f"200 OK\r\nContent-Length: {LIMIT_BYTES + 1}") as playing:
        async with RewardClient(playing.url) as client:
            with pytest.raises(FatalError, match="answer_too_large: the answer is larger than 100,000 bytes"):
                await client.info()


async def test_an_answer_of_just_the_limit_is_read():
    body = INFO + b" " * (LIMIT_BYTES - len(INFO))
    async with serving(f"200 OK\r\nContent-Length: {len(body)}", body) as playing:
        async with RewardClient(playing.url) as client:
            assert await client.info() == EXAMPLES["RewardInfo"]


async def test_what_a_rollout_may_answer_grows_with_what_was_asked_for():
    request = EXAMPLES["RolloutRequest"]
    body = EXAMPLES["RolloutResponse"].model_dump_json().encode()
    body += b" " * (LIMIT_BYTES + 1_000 - len(body))
    async with serving(f"200 OK\r\nContent-Length: {len(body)}", body) as playing:
        async with RolloutClient(playing.url) as client:
            few = request.model_copy(update={"sampling": request.sampling.model_copy(update={"max_tokens": 1}), "n": 1})
            many = request.model_copy(update={"sampling": request.sampling.model_copy(update={"max_tokens": 1_000})})
            assert await client.rollouts(many) == EXAMPLES["RolloutResponse"]
            with pytest.raises(FatalError, match="answer_too_large"):
                await client.rollouts(few)


@pytest.mark.parametrize("status", ["200 OK", "500 Oops"])
async def test_an_answer_that_drips_ends_with_the_deadline(status, monkeypatch):
    limits_s: list[float] = []
    real = asyncio.timeout
    monkeypatch.setattr(asyncio, "timeout", lambda limit_s: limits_s.append(limit_s) or real(limit_s))
    async with serving(f"{status}\r\nContent-Type: application/json", for_ever=b" ", pause_s=0.02) as playing:
        # Connecting has this limit, too: not so short that a process which collects its garbage meanwhile is late.
        async with RewardClient(playing.url, probe_timeout_s=1.0) as client:
            with pytest.raises(InfrastructureError, match=r"no_answer: no answer within 1 s"):
                await client.info()
    assert limits_s == [1.0]


async def test_headers_without_end_end_with_the_deadline():
    async with serving("100 Continue", for_ever=b"HTTP/1.1 100 Continue\r\n\r\n", pause_s=0.01) as playing:
        async with RewardClient(playing.url, probe_timeout_s=0.3) as client:
            with pytest.raises(InfrastructureError, match="no_answer"):
                await client.info()


ENCODED = {
    "gzip": gzip.compress(b" " * 2**24),
    "deflate": zlib.compress(b" " * 2**24),
    "br": brotli.compress(b" " * 2**24),
}


@pytest.mark.parametrize("encoding", ENCODED)
async def test_a_compressed_answer_is_not_asked_for_and_not_unpacked(encoding):
    body = ENCODED[encoding]
    assert len(body) < LIMIT_BYTES
    async with serving(f"200 OK\r\nContent-Encoding: {encoding}\r\nContent-Length: {len(body)}", body) as playing:
        async with RewardClient(playing.url) as client:
            with pytest.raises(FatalError, match=f"answer_compressed: .*{encoding}"):
                await client.info(retry_for_s=60)
    assert b"accept-encoding: identity\r\n" in playing.requests[0].lower()
    assert len(playing.requests) == 1


async def test_an_error_without_end_keeps_its_status():
    async with serving("404 Not Found\r\nContent-Type: text/plain", b"nothing here ", for_ever=PIECE) as playing:
        async with RewardClient(playing.url) as client:
            with pytest.raises(
                FatalError, match=r"404 unexpected_answer: Not Found; it is text/plain and begins with .nothing here"
            ) as caught:
                await client.info()
    assert caught.value.status == 404
    assert len(str(caught.value)) < 1_000


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_redirect_says_where_to(status):
    head = f"{status} Elsewhere\r\nLocation: https://elsewhere.example/info\r\nContent-Length: 0"
    async with serving(head) as playing, RewardClient(playing.url) as client:
        with pytest.raises(FatalError, match=f"{status} redirected: .*https://elsewhere.example/info.*not followed"):
            await client.score(EXAMPLES["ScoreRequest"], retry_for_s=60)


PAGE = b"<!DOCTYPE html><html><body>" + b"Welcome to this router. " * 3_000 + b"</body></html>"
NO_ANSWERS = {
    "a page": ("200 OK\r\nContent-Type: text/html", PAGE, "text/html.*begins with '<!DOCTYPE html>"),
    "nothing": ("204 No Content", b"", "204 malformed_answer.*it is empty"),
    "an empty body": ("200 OK\r\nContent-Length: 0", b"", "it is empty"),
    "half": ("200 OK", INFO[: len(INFO) // 2], "EOF while parsing"),
    "not UTF-8": ("200 OK", b'{"version": "\xff"}', "begins with"),
    "NaN": ("200 OK", INFO.replace(b'"protocol_version":2', b'"protocol_version":NaN'), "protocol_version"),
    "deep": ("200 OK", b'{"rewards":' + b"[" * 90_000, "recursion limit"),
    "another service": ("200 OK", b'{"service": "shop", "items": [1, 2]}', "service"),
}


@pytest.mark.parametrize("answer", NO_ANSWERS)
async def test_what_is_no_answer_is_told_in_one_line(answer):
    head, body, told = NO_ANSWERS[answer]
    async with serving(f"{head}\r\nConnection: close", body) as playing, RewardClient(playing.url) as client:
        with pytest.raises(FatalError, match=f"(?s)malformed_answer.*{told}|{told}") as caught:
            await client.info(retry_for_s=60)
    assert caught.value.detail.type == "malformed_answer"
    assert f"{playing.url}/info" in str(caught.value)
    assert len(str(caught.value)) < 800
    assert "\n" not in str(caught.value)
    assert len(playing.requests) == 1


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"-Infinity", b"1e999"])
@pytest.mark.parametrize("place", [b'"score":1.0', b'"metrics":{"seconds":1.0}'])
async def test_a_number_that_is_none_is_no_score(number, place):
    body = EXAMPLES["ScoreResponse"].model_dump(mode="json")
    score = {"score": 1.0, "status": "ok", "metrics": {"seconds": 1.0}, "log": {"seconds": 1.0}}
    body["results"] = [{"id": "s-1", "total": 1.0, "rewards": {"r": score}}]
    text = EXAMPLES["ScoreResponse"].model_validate(body).model_dump_json().encode()
    assert place in text
    text = text.replace(place, place.replace(b"1.0", number))
    async with serving(f"200 OK\r\nContent-Length: {len(text)}", text) as playing, RewardClient(playing.url) as client:
        with pytest.raises(ServiceError, match="malformed_answer"):
            await client.score(EXAMPLES["ScoreRequest"])


@pytest.mark.parametrize("number", ["NaN", "null", "-Infinity"])
async def test_a_logprob_that_is_no_number_is_the_servers_fault_and_names_the_sample(number):
    completion = (
        '{"token_ids": [5, 6], "logprobs": [-0.1, %s], "text": "a", "finish_reason": "stop", "versions": [[1, 2]]}'
    )
    group = f'{{"prompt_token_ids": [1], "completions": [{completion % "-0.2"}, {completion % number}]}}'
    text = f'{{"groups": [{group}], "session": null, "server_id": "s"}}'.encode()
    async with serving(f"200 OK\r\nContent-Length: {len(text)}", text) as playing, RolloutClient(playing.url) as client:
        with pytest.raises(InfrastructureError, match=r"groups.0.completions.1.logprobs.1 of the answer is no finite"):
            await client.rollouts(EXAMPLES["RolloutRequest"])


@pytest.mark.parametrize("value", ["nan", "inf", "-1", "1e400", "soon", ""])
def test_a_time_to_wait_that_is_none_is_ignored(value):
    assert Answer(429, httpx.Headers({"Retry-After": value}), b"").retry_after_s is None
