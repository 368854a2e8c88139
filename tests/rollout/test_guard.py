"""The guard in front of every route, with a plain ASGI application behind it."""

import asyncio
from collections.abc import Sequence

import httpx
import pytest
from fastapi import FastAPI

from grpo_proto.messages.errors import ErrorBody
from grpo_rollout import guard
from grpo_rollout.guard import Guard
from grpo_rollout.weight_state import Push, Weights

CURRENT = Weights(state="current", version=3, committed_session=1, session=1)
STALE = Weights(state="stale", reason="the push broke off")
LOADING = Weights(state="loading", push=Push(1, 1, 4, 1e9, served_before=True))
VLLM_ROUTES = ["/v1/completions", "/v1/chat/completions", "/invocations", "/inference/v1/generate", "/pooling", "/new"]


class Held:
    def __init__(self, weights: Weights):
        self.weights = weights


async def echo(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": scope["path"].encode()})


def client(weights: Weights | None, *, tokens: Sequence[str] = (), app=echo, max_waiting: int = 2) -> httpx.AsyncClient:
    held = Held(weights) if weights is not None else None
    guard = Guard(app, tokens=tokens, pushes=lambda: held, max_waiting=max_waiting)
    return httpx.AsyncClient(transport=httpx.ASGITransport(guard), base_url="http://localhost")


def error(response: httpx.Response) -> str:
    return ErrorBody.model_validate_json(response.content).error.type


async def test_under_a_root_path_the_routes_are_the_same():
    """As --root-path serves them: the stale server takes the push that mends it, and probes need no token."""
    async with client(STALE) as http:
        http._transport = httpx.ASGITransport(http._transport.app, root_path="/grpo/")
        for path in ("/grpo/v1/weights", "/grpo/v1/weights/begin", "/v1/weights/begin"):
            assert (await http.get(path)).status_code == 200, path
        assert error(await http.get("/grpo/v1/rollouts")) == "weights_stale"
        assert error(await http.get("/grpo/scale_elastic_ep")) == "not_found"
    async with client(CURRENT, tokens=["secret"]) as http:
        http._transport = httpx.ASGITransport(http._transport.app, root_path="/grpo")
        assert (await http.get("/grpo/livez")).status_code == 200
        assert (await http.get("/grpoflivez")).status_code == 401


class TestToken:
    async def test_every_route_but_the_probes_asks_for_it(self):
        async with client(CURRENT, tokens=["secret"]) as http:
            for path in [*VLLM_ROUTES, "/v1/rollouts", "/v1/weights", "/tokenize", "/docs", "/health"]:
                response = await http.get(path)
                assert (response.status_code, error(response)) == (401, "unauthorized"), path
                assert response.headers["www-authenticate"] == "Bearer"
            for path in ("/livez", "/readyz", "/info", "/metrics", "/livez/"):
                assert (await http.get(path)).status_code == 200, path

    @pytest.mark.parametrize("header", ["Bearer wrong", "Bearer ", "Bearer", "Basic secret", "secret", "Bearer sécret"])
    async def test_a_wrong_one_is_refused(self, header: str):
        async with client(CURRENT, tokens=["secret"]) as http:
            response = await http.get("/v1/weights", headers={"Authorization": header.encode()})
            assert (response.status_code, error(response)) == (401, "unauthorized")
            assert "secret" not in response.text

    @pytest.mark.parametrize("path", ["/v1/weights/session", "/livez", "/new"])
    async def test_without_one_other_names_than_loopback_ones_are_refused(self, path: str):
        """A web page that resolves its own name to 127.0.0.1 must not take the server over (DNS rebinding)."""
        async with client(CURRENT) as http:
            for name in ("evil.example:8000", "127.0.0.1.evil.example", "192.168.1.2:8000"):
                response = await http.get(path, headers={"Host": name})
                assert (response.status_code, error(response)) == (403, "foreign_name")
            for name in ("127.0.0.1:8000", "LOCALHOST", "[::1]:8000", "0.0.0.0:8000", "[::]:8000"):
                assert (await http.get(path, headers={"Host": name})).status_code == 200
        async with client(CURRENT, tokens=["secret"]) as http:
            headers = {"Host": "rollout.example", "Authorization": "Bearer secret"}
            assert (await http.get(path, headers=headers)).status_code == 200

    async def test_two_authorizations_are_none(self):
        async with client(CURRENT, tokens=["secret"]) as http:
            headers = [("Authorization", "Bearer secret"), ("Authorization", "Bearer wrong")]
            assert (await http.get("/v1/weights", headers=headers)).status_code == 401

    async def test_the_right_one_passes(self):
        async with client(CURRENT, tokens=["secret", "older"]) as http:
            for value in ("Bearer secret", "bearer secret", "Bearer older"):
                response = await http.get("/v1/completions", headers={"Authorization": value})
                assert response.status_code == 200

    async def test_without_a_token_nobody_is_asked(self):
        async with client(CURRENT) as http:
            assert (await http.get("/v1/completions")).status_code == 200


class TestBody:
    async def test_a_long_one_is_refused_also_without_a_length_and_on_routes_of_vllm(
        self, monkeypatch: pytest.MonkeyPatch
    ):
        """Whatever a framework makes of an error in the middle of the body: FastAPI a 400."""
        monkeypatch.setattr(guard, "MAX_BODY_BYTES", 1000)
        app = FastAPI()

        @app.post("/v1/completions")
        async def completions(body: list[int]) -> int:
            return len(body)

        async def chunks(count: int):
            yield b"["
            for _ in range(count):
                yield b"1," * 49
            yield b"1]"

        body = {"headers": {"Content-Type": "application/json"}}
        async with client(CURRENT, app=app) as http:
            for content in (b"1" * 1001, chunks(20)):
                answer = await http.post("/v1/completions", content=content, **body)
                assert (answer.status_code, error(answer)) == (413, "body_too_large")
            assert (await http.post("/v1/completions", content=chunks(10), **body)).json() == 491


class TestWeights:
    @pytest.mark.parametrize("path", [*VLLM_ROUTES, "/v1/rollouts"])
    async def test_stale_serves_nobody(self, path: str):
        async with client(STALE) as http:
            response = await http.post(path)
            assert (response.status_code, error(response)) == (503, "weights_stale")
            assert "the push broke off" in response.text

    @pytest.mark.parametrize(
        "path",
        ["/livez", "/info", "/metrics", "/v1/weights/begin", "/v1/weights/renew", "/v1/models", "/tokenize"],
    )
    async def test_stale_still_answers_what_samples_nothing(self, path: str):
        async with client(STALE) as http:
            assert (await http.get(path)).status_code == 200

    async def test_before_the_engine_is_up_there_is_nothing_to_ask(self):
        async with client(None) as http:
            response = await http.post("/v1/completions")
            assert (response.status_code, error(response)) == (503, "starting")

    async def test_while_loading_only_so_many_wait(self):
        release = asyncio.Event()

        async def slow(scope, receive, send):
            await release.wait()
            await echo(scope, receive, send)

        async with client(LOADING, app=slow, max_waiting=2) as http:
            waiting = [asyncio.create_task(http.post("/v1/rollouts")) for _ in range(2)]
            await asyncio.sleep(0.05)
            response = await http.post("/v1/completions")
            assert (response.status_code, error(response)) == (429, "too_many_waiting")
            assert float(response.headers["retry-after"]) > 0
            release.set()
            assert [answer.status_code for answer in await asyncio.gather(*waiting)] == [200, 200]
            assert (await http.post("/v1/completions")).status_code == 200

    async def test_a_websocket_is_guarded_too(self):
        sent = []
        guard = Guard(echo, tokens=["secret"], pushes=lambda: Held(CURRENT), max_waiting=1)

        async def send(message):
            sent.append(message)

        await guard({"type": "websocket", "path": "/v1/realtime", "headers": []}, None, send)
        assert sent == [{"type": "websocket.close", "code": 1008, "reason": "unauthorized"}]
