"""The clients against a network that misbehaves: what is repeated, what is not, and as what an error arrives."""

import asyncio
import inspect
import json
from collections.abc import Callable

import httpx
import pytest
import uvicorn

from grpo_proto import (
    ConflictError,
    DataError,
    FatalError,
    InfrastructureError,
    RewardClient,
    RolloutClient,
    ServiceError,
    WeightsClient,
)  # fmt: skip
from grpo_proto.client import clients
from grpo_proto.client.clients import KEEP_CONNECTION_S

from .messages import EXAMPLES

URL = "http://server:8000"
BUSY = {"error": {"type": "busy", "message": "too much", "hint": "wait", "retryable": True}}


class Network:
    """Plays one answer per request, the last one for ever, and keeps the requests."""

    def __init__(self, *answers: httpx.Response | Exception | str):
        self.answers = list(answers)
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, str):
            return message(answer)
        return answer

    def client(self, kind: type, **options: object):
        return kind(URL, transport=httpx.MockTransport(self), **options)


def message(name: str, status: int = 200) -> httpx.Response:
    return httpx.Response(status, content=EXAMPLES[name].model_dump_json())


@pytest.fixture(autouse=True)
def slept(monkeypatch) -> list[float]:
    """No token in the environment, and no waiting: the seconds of every sleep are kept here."""
    monkeypatch.delenv("GRPO_API_TOKEN", raising=False)
    kept: list[float] = []

    async def sleep(seconds: float) -> None:
        kept.append(seconds)

    real_sleep = asyncio.sleep
    monkeypatch.setattr(asyncio, "sleep", lambda seconds, *rest: sleep(seconds) if seconds else real_sleep(0, *rest))
    return kept


SAFE: dict[str, tuple[type, Callable, str]] = {
    "reward info": (RewardClient, lambda c: c.info(retry_for_s=60), "RewardInfo"),
    "rewards": (RewardClient, lambda c: c.rewards(retry_for_s=60), "RewardList"),
    "score": (RewardClient, lambda c: c.score(EXAMPLES["ScoreRequest"], retry_for_s=60), "ScoreResponse"),
    "rollout info": (RolloutClient, lambda c: c.info(retry_for_s=60), "RolloutInfo"),
    "rollouts": (RolloutClient, lambda c: c.rollouts(EXAMPLES["RolloutRequest"], retry_for_s=60), "RolloutResponse"),
    "logprobs": (RolloutClient, lambda c: c.logprobs(EXAMPLES["LogprobsRequest"], retry_for_s=60), "LogprobsResponse"),
}
UNSAFE: dict[str, tuple[Callable, str, str]] = {
    "session": (lambda c: c.session(EXAMPLES["SessionRequest"]), "POST", "/v1/weights/session"),
    "renew": (lambda c: c.renew(EXAMPLES["RenewRequest"]), "POST", "/v1/weights/renew"),
    "close_session": (lambda c: c.close_session(EXAMPLES["CloseRequest"]), "DELETE", "/v1/weights/session"),
    "begin": (lambda c: c.begin(EXAMPLES["BeginRequest"]), "POST", "/v1/weights/begin"),
    "commit": (lambda c: c.commit(EXAMPLES["CommitRequest"]), "POST", "/v1/weights/commit"),
    "abort": (lambda c: c.abort(EXAMPLES["AbortRequest"]), "POST", "/v1/weights/abort"),
}
TROUBLE = [
    httpx.ConnectError("refused"),
    httpx.ReadTimeout("late"),
    httpx.RemoteProtocolError("cut off"),
    httpx.Response(503, json=BUSY),
    httpx.Response(429, json=BUSY),
    httpx.Response(502, text="<html>bad gateway</html>"),
]


@pytest.mark.parametrize("call", SAFE)
@pytest.mark.parametrize("trouble", TROUBLE, ids=repr)
async def test_safe_calls_are_repeated_after_infrastructure_errors(call, trouble):
    kind, invoke, answer = SAFE[call]
    network = Network(trouble, trouble, answer)
    async with network.client(kind) as client:
        assert await invoke(client) == EXAMPLES[answer]
    assert len(network.requests) == 3
    assert len({request.content for request in network.requests}) == 1


@pytest.mark.parametrize("call", UNSAFE)
@pytest.mark.parametrize("trouble", TROUBLE, ids=repr)
async def test_weights_calls_are_never_repeated(call, trouble):
    invoke, method, path = UNSAFE[call]
    network = Network(trouble, "WeightState")
    async with network.client(WeightsClient) as client:
        with pytest.raises(InfrastructureError):
            await invoke(client)
    assert [(request.method, request.url.path) for request in network.requests] == [(method, path)]


@pytest.mark.parametrize("call", UNSAFE)
async def test_weights_calls_answer_with_the_state(call):
    async with Network("WeightState").client(WeightsClient) as client:
        assert await UNSAFE[call][0](client) == EXAMPLES["WeightState"]
        assert await client.state() == EXAMPLES["WeightState"]


@pytest.mark.parametrize(
    ("status", "kind"), [(400, DataError), (401, FatalError), (404, FatalError), (409, ConflictError), (422, DataError)]
)
async def test_what_a_repeat_cannot_mend_is_not_repeated(status, kind):
    network = Network(httpx.Response(status, json={"error": {"type": "wrong", "message": "no"}}))
    async with network.client(RewardClient) as client:
        with pytest.raises(kind) as caught:
            await client.score(EXAMPLES["ScoreRequest"], retry_for_s=60)
    assert len(network.requests) == 1
    assert caught.value.status == status
    assert caught.value.url == f"{URL}/v1/score"


async def test_the_last_error_is_raised_when_time_is_up(slept):
    network = Network(httpx.Response(503, json=BUSY))
    async with network.client(RewardClient) as client:
        with pytest.raises(InfrastructureError, match="busy: too much"):
            await client.info(retry_for_s=0)
    assert len(network.requests) == 1
    assert not slept


async def test_waits_longer_between_repeats_but_not_for_ever(slept):
    network = Network(*[httpx.ConnectError("refused")] * 12, "RewardInfo")
    async with network.client(RewardClient) as client:
        await client.info(retry_for_s=60)
    assert len(slept) == 12
    assert slept[0] < 2
    assert slept[-1] > 5
    assert max(slept) <= 10


@pytest.mark.parametrize(("told_after_s", "told"), [(5.0, 0), (0.0, 1)])
async def test_a_server_that_is_away_for_long_is_told_of_once_in_a_while(monkeypatch, caplog, told_after_s, told):
    monkeypatch.setattr(clients, "WAITING_TOLD_S", told_after_s)
    network = Network(*[httpx.ConnectError("refused")] * 12, "RewardInfo")
    async with network.client(RewardClient) as client:
        await client.info(retry_for_s=60)
    assert len(caplog.messages) == told
    for message_ in caplog.messages:
        assert message_.startswith(f"{URL}/info: unreachable: refused (is the server running there?)")
        assert message_.endswith("retrying for 60 s more (0 s until now)")


async def test_an_error_says_where_what_and_what_to_do():
    network = Network(httpx.Response(429, json=BUSY, headers={"Retry-After": "2"}))
    async with network.client(RewardClient) as client:
        with pytest.raises(ServiceError) as caught:
            await client.info()
    error = caught.value
    assert str(error) == f"{URL}/info: 429 busy: too much (wait)"
    assert error.retry_after_s == 2.0
    assert error.detail.retryable


@pytest.mark.parametrize("body", ["", "not JSON", "[]", '{"detail": "Not Found"}'])
async def test_errors_in_another_shape_are_errors_all_the_same(body):
    async with Network(httpx.Response(404, text=body)).client(RewardClient) as client:
        with pytest.raises(FatalError, match="404 unexpected_answer"):
            await client.info()


async def test_an_unreadable_retry_after_is_ignored():
    headers = {"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}
    async with Network(httpx.Response(429, json=BUSY, headers=headers)).client(RewardClient) as client:
        with pytest.raises(InfrastructureError) as caught:
            await client.info()
    assert caught.value.retry_after_s is None


@pytest.mark.parametrize(
    "body",
    ["", "null", "[]", "{}", "<html></html>", '{"results": "none", "elapsed_s": 1}', '{"results": [{"id": "s-1"'],
)
async def test_an_answer_that_is_none_is_fatal_and_not_repeated(body):
    network = Network(httpx.Response(200, text=body))
    async with network.client(RewardClient) as client:
        with pytest.raises(FatalError, match=r"malformed_answer.*ScoreResponse"):
            await client.score(EXAMPLES["ScoreRequest"], retry_for_s=60)
    assert len(network.requests) == 1


@pytest.mark.parametrize("ids", [[], ["s-2"], ["s-1", "s-1"]])
async def test_scores_that_do_not_match_the_samples_are_refused_as_a_whole(ids):
    result = EXAMPLES["ScoreResult"].model_dump(mode="json")
    body = {"results": [{**result, "id": name} for name in ids], "elapsed_s": 0.1}
    async with Network(httpx.Response(200, json=body)).client(RewardClient) as client:
        with pytest.raises(FatalError, match="mismatched_results"):
            await client.score(EXAMPLES["ScoreRequest"])


async def test_logprobs_that_do_not_match_the_tokens_are_refused_as_a_whole():
    body = {"sequences": [{"logprobs": [-0.1], "version": 0}], "server_id": "server-1"}
    async with Network(httpx.Response(200, json=body)).client(RolloutClient) as client:
        with pytest.raises(FatalError, match="mismatched_results"):
            await client.logprobs(EXAMPLES["LogprobsRequest"])


async def test_scores_without_a_reward_that_was_asked_for_are_refused_as_a_whole():
    result = EXAMPLES["ScoreResult"].model_dump(mode="json")
    request = EXAMPLES["ScoreRequest"]
    missing = request.rewards[0].name
    body = {"results": [{**result, "rewards": {"other": {"score": 1.0, "status": "ok"}}}], "elapsed_s": 0.1}
    async with Network(httpx.Response(200, json=body)).client(RewardClient) as client:
        with pytest.raises(FatalError, match=f"mismatched_results.*{missing}"):
            await client.score(request)


async def test_a_redirect_is_not_followed():
    network = Network(httpx.Response(307, headers={"Location": "http://169.254.169.254/"}))
    async with network.client(RewardClient) as client:
        with pytest.raises(ServiceError):
            await client.info()
    assert [request.url.host for request in network.requests] == ["server"]


async def test_requests_carry_the_token_and_the_message():
    network = Network("ScoreResponse")
    async with network.client(RewardClient, token="secret") as client:
        await client.score(EXAMPLES["ScoreRequest"])
    (request,) = network.requests
    assert request.headers["authorization"] == "Bearer secret"
    assert request.headers["content-type"] == "application/json"
    assert json.loads(request.content) == EXAMPLES["ScoreRequest"].model_dump(mode="json")


async def test_without_a_token_there_is_no_header():
    network = Network("RewardInfo")
    async with network.client(RewardClient) as client:
        await client.info()
    assert "authorization" not in network.requests[0].headers


async def test_proxies_of_the_environment_are_not_for_our_servers(monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://192.0.2.1:9")

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = EXAMPLES["Health"].model_dump_json().encode()
        writer.write(b"HTTP/1.1 503 No\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with RewardClient(f"http://127.0.0.1:{port}") as client:
            assert await client.readyz() == EXAMPLES["Health"]


@pytest.mark.parametrize(
    ("call", "limit_s"),
    [
        (lambda n: (n.client(RewardClient), lambda c: c.info()), 5.0),
        (lambda n: (n.client(RewardClient, probe_timeout_s=2.0), lambda c: c.livez()), 2.0),
        (lambda n: (n.client(RewardClient), lambda c: c.score(EXAMPLES["ScoreRequest"])), 70.0),
        (lambda n: (n.client(RolloutClient), lambda c: c.rollouts(EXAMPLES["RolloutRequest"])), 610.0),
        (lambda n: (n.client(WeightsClient), lambda c: c.begin(EXAMPLES["BeginRequest"])), 40.0),
        (lambda n: (n.client(WeightsClient), lambda c: c.commit(EXAMPLES["CommitRequest"])), 70.0),
    ],
)
async def test_every_call_has_a_deadline_longer_than_the_servers_own(call, limit_s):
    network = Network(httpx.ReadTimeout("late"))
    client, invoke = call(network)
    async with client:
        with pytest.raises(InfrastructureError, match=f"no_answer: no answer within {limit_s:g} s"):
            await invoke(client)
    limits = network.requests[0].extensions["timeout"]
    assert limits["read"] == limit_s
    assert limits["connect"] <= 5.0


@pytest.mark.parametrize(("status", "body", "ok"), [(200, '{"ok": true}', True), (503, '{"ok": false}', False),
                                                    (503, "starting", False), (200, "", True)])  # fmt: skip
async def test_health_is_an_answer_also_when_it_is_bad(status, body, ok):
    async with Network(httpx.Response(status, text=body)).client(RolloutClient) as client:
        assert (await client.livez()).ok is ok
        assert (await client.readyz()).ok is ok


async def test_no_answer_about_health_is_an_error():
    async with Network(httpx.ConnectError("refused")).client(RolloutClient) as client:
        with pytest.raises(InfrastructureError, match="unreachable: refused"):
            await client.livez()
    async with Network(httpx.Response(401, json=BUSY)).client(RolloutClient) as client:
        with pytest.raises(FatalError):
            await client.livez()


def test_a_client_gives_an_idle_connection_up_well_before_its_server():
    servers_s = inspect.signature(uvicorn.Config).parameters["timeout_keep_alive"].default
    assert servers_s >= KEEP_CONNECTION_S + 1.0


async def test_the_time_for_further_tries_begins_with_the_first_failure():
    """A request that is lost after ten minutes is sent again as one that is lost at once."""
    lost = 0

    async def answer(request: httpx.Request) -> httpx.Response:
        nonlocal lost
        await asyncio.sleep(0.5 if not lost else 0.0)
        lost += 1
        return httpx.Response(200, text=EXAMPLES["RewardInfo"].model_dump_json()) if lost > 1 else TROUBLE[3]

    async with RewardClient(URL, transport=httpx.MockTransport(answer)) as client:
        assert await client.info(retry_for_s=0.4) == EXAMPLES["RewardInfo"]
