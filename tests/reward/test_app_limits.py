"""What the routes refuse and cut: bodies, places, tokens, time; over an executor in this process."""

import asyncio
import gc
import itertools
import weakref
from collections.abc import AsyncIterator

import httpx
import pytest
from tests.reward.app_server import JSON, TOKEN, Server, error_of

from grpo_proto import FatalError, RewardClient, RewardSpec, ScoreRequest, ScoreSample
from grpo_reward import guard, scoring
from grpo_reward.guard import PATIENCE_S, SLOW_BYTES_PER_S, Admission, ClientGone, Place


async def large_body(pulled: list[int]) -> AsyncIterator[bytes]:
    """64 MiB; `pulled` gets one entry for each that was asked for."""
    for _ in range(64):
        pulled.append(1)
        yield b" " * 2**20


class TestLimits:
    async def test_413_by_its_length_without_reading_it(self):
        server = Server(max_body_mib=1)
        pulled: list[int] = []
        length = {"Content-Length": str(64 * 2**20)}
        response = await server.http.post("/v1/score", content=large_body(pulled), headers=JSON | length)
        kind, message, hint = error_of(response, 413)
        assert kind == "body_too_large"
        assert str(64 * 2**20) in message
        assert "--max-body-mib" in hint
        assert not pulled

    async def test_413_as_soon_as_it_is_known(self):
        server = Server(max_body_mib=1)
        pulled: list[int] = []
        response = await server.http.post("/v1/score", content=large_body(pulled), headers=JSON)
        assert error_of(response, 413)[0] == "body_too_large"
        assert len(pulled) == 2

    async def test_413_too_many_samples(self):
        server = Server(max_samples=2)
        kind, message, hint = error_of(await server.score([{"name": "min_length"}], [{"completion": ""}] * 3), 413)
        assert kind == "too_many_samples"
        assert "3 samples; the limit is 2" in message
        assert "--max-samples" in hint

    async def test_422_a_longer_time_limit_than_the_operator_allows(self, server):
        for field in ("timeout_s", "deadline_s"):
            answer = await server.score([{"name": "min_length"}], [{"completion": ""}], **{field: 601})
            _, message, hint = error_of(answer, 422)
            assert message == f"{field} is 601; this server takes 600 at most"
            assert "--max-timeout-s" in hint

    @pytest.mark.parametrize(
        ("path", "body"),
        [
            ("/v1/score", {"rewards": [{"name": "min_length"}], "samples": [{"completion": "x"}]}),
            ("/rm?rewards=min_length&min_length.min_chars=2", {"response": "x"}),
            ("/get_reward?rewards=min_length&min_length.min_chars=2", {"query": ["x"]}),
            (
                "/verify?rewards=min_length&min_length.min_chars=2",
                {"responses_create_params": {}, "response": {"output": []}},
            ),
        ],
    )
    async def test_a_time_limit_that_nobody_named_is_no_longer_than_the_operator_allows(self, path, body):
        server = Server(max_timeout_s=0.2)
        server.executor.gate.clear()
        answer = await server.http.post(path, json=body)
        assert "not scored within the request's deadline of 0.2 s" in answer.text
        assert [chunk.timeout_s for chunk in server.executor.chunks] == [0.2]
        for name in ("timeout_s", "deadline_s"):
            in_body = path == "/v1/score"
            url = path if in_body else f"{path}&{name}=60"
            answer = await server.http.post(url, json=body | {name: 60} if in_body else body)
            assert error_of(answer, 422)[1] == f"{name} is 60; this server takes 0.2 at most"

    async def test_a_hint_has_an_end(self, server):
        anagrams = map("".join, itertools.islice(itertools.permutations("solution"), 30_000))
        columns = {name: 1 for name in anagrams if name != "solution"}
        sample = {"completion": "", "columns": columns}
        _, message, hint = error_of(await server.score([{"name": "accuracy"}], [sample]), 422)
        assert "needs the column solution" in message
        assert len(hint) < 1000
        odd = {"completion": "", "columns": {f"{number}" * 10: 1 for number in range(10_000)}}
        _, _, hint = error_of(await server.score([{"name": "accuracy"}], [odd]), 422)
        assert hint.startswith("known: ")
        assert len(hint) < 5000

    async def test_408_a_body_that_dawdles(self):
        server = Server(body_timeout_s=0.05)

        async def body() -> AsyncIterator[bytes]:
            yield b"{"
            await asyncio.sleep(60)

        assert error_of(await server.http.post("/v1/score", content=body(), headers=JSON), 408)[0] == "slow_body"

    async def test_bodies_that_dawdle_do_not_take_the_places_of_others(self):
        server = Server(max_pending_requests=2)
        sample, never = [{"completion": ""}], asyncio.Event()

        async def body() -> AsyncIterator[bytes]:
            yield b"{"
            await never.wait()

        def dawdle() -> asyncio.Task[httpx.Response]:
            return asyncio.create_task(server.http.post("/v1/score", content=body(), headers=JSON))

        slow = [dawdle() for _ in range(8)]
        for _ in range(20):
            await asyncio.sleep(0)
        assert (await server.score([{"name": "min_length"}], sample)).status_code == 200
        assert error_of(await slow.pop(0), 408)[1] == "the body came too slowly for a server that is full"
        assert not any(other.done() for other in slow), "only as many go as are in the way"
        server.executor.gate.clear()
        running = [asyncio.create_task(server.score([{"name": "min_length"}], sample)) for _ in range(2)]
        await server.executor.busy(3)
        assert error_of(await server.score([{"name": "min_length"}], sample), 429)[1].startswith("2 requests are being")
        never.set()
        for answer in await asyncio.gather(*slow):
            assert error_of(answer, 429)[0] == "busy"  # whole, though no request: there is no place for it now
        server.executor.gate.set()
        assert [answer.status_code for answer in await asyncio.gather(*running)] == [200, 200]

    async def test_bodies_that_have_begun_leave_files_for_others(self, monkeypatch):
        monkeypatch.setattr(guard, "most_files", lambda: 8 * 3)
        server, never = Server(), asyncio.Event()

        async def body() -> AsyncIterator[bytes]:
            yield b"{"
            await never.wait()

        begun = [asyncio.create_task(server.http.post("/v1/score", content=body(), headers=JSON)) for _ in range(5)]
        for _ in range(40):
            await asyncio.sleep(0)
        assert [task.done() for task in begun] == [True, True, False, False, False]
        assert error_of(await begun[0], 408)[0] == "slow_body"
        never.set()
        await asyncio.gather(*begun)

    async def test_bodies_that_stall_do_not_keep_their_bytes_from_others(self, monkeypatch):
        server = Server(max_body_mib=1)
        never, samples = asyncio.Event(), [{"completion": "x" * 100_000}]

        async def body() -> AsyncIterator[bytes]:
            yield b" " * (2**20 - 1)
            await never.wait()

        slow = [asyncio.create_task(server.http.post("/v1/score", content=body(), headers=JSON)) for _ in range(4)]
        for _ in range(40):
            await asyncio.sleep(0)
        small = await server.score([{"name": "min_length"}], [{"completion": "x" * 50_000}])
        assert small.status_code == 200, "small ones pass in any case"
        kind, message, _ = error_of(await server.score([{"name": "min_length"}], samples), 429)
        assert (kind, message[:16]) == ("busy", "bodies on their ")
        monkeypatch.setattr(Place, "is_slow", lambda place, now_s: True)
        assert (await server.score([{"name": "min_length"}], samples)).status_code == 200
        assert [task.done() for task in slow] == [True, False, False, False]
        assert error_of(await slow[0], 408)[0] == "slow_body"
        never.set()
        assert [answer.status_code for answer in await asyncio.gather(*slow[1:])] == [400] * 3, "blanks are no JSON"

    async def test_what_came_at_once_does_not_excuse_a_stall(self):
        place = Place(Admission(max_requests=1, max_body_bytes=2**25, body_timeout_s=30.0))
        coming: asyncio.Queue[dict] = asyncio.Queue()
        reading = asyncio.create_task(place.read_json({"content-type": "application/json"}.get, coming.get))
        for num_bytes, stall_s in ((2**24, 0.1), (SLOW_BYTES_PER_S // 10, 0.2)):
            held_bytes = place.held_bytes
            coming.put_nowait({"type": "http.request", "body": b" " * num_bytes, "more_body": True})
            while place.held_bytes == held_bytes:  # noqa: ASYNC110
                await asyncio.sleep(0)
            now_s = asyncio.get_running_loop().time()
            assert not place.is_slow(now_s)
            assert place.is_slow(now_s + PATIENCE_S + stall_s)
        coming.put_nowait({"type": "http.disconnect"})
        with pytest.raises(ClientGone):
            await reading

    async def test_429_when_all_places_are_taken(self):
        server = Server(max_pending_requests=2)
        server.executor.gate.clear()
        sample = [{"completion": ""}]
        running = [asyncio.create_task(server.score([{"name": "min_length"}], sample)) for _ in range(2)]
        await server.executor.busy(2)
        response = await server.score([{"name": "min_length"}], sample)
        assert error_of(response, 429)[0] == "busy"
        assert float(response.headers["retry-after"]) > 0
        assert (await server.http.get("/livez")).status_code == 200
        server.executor.gate.set()
        assert [answer.status_code for answer in await asyncio.gather(*running)] == [200, 200]
        assert (await server.score([{"name": "min_length"}], sample)).status_code == 200

    async def test_429_when_the_bodies_together_are_too_large(self):
        server = Server(max_body_mib=2, max_pending_requests=64)
        server.executor.gate.clear()
        sample = [{"completion": "x" * 1_400_000}]
        running = [asyncio.create_task(server.score([{"name": "min_length"}], sample)) for _ in range(5)]
        await server.executor.busy(5)
        response = await server.score([{"name": "min_length"}], sample)
        assert error_of(response, 429)[0] == "busy"
        assert (await server.score([{"name": "nothing"}], [])).status_code == 422  # what is small still fits
        medium = [{"completion": "x" * 100_000}]
        running += [asyncio.create_task(server.score([{"name": "min_length"}], medium)) for _ in range(20)]
        await server.executor.busy(25)
        assert error_of(await server.score([{"name": "min_length"}], medium * 2), 429)[0] == "busy"
        server.executor.gate.set()
        assert {answer.status_code for answer in await asyncio.gather(*running)} == {200}
        assert (await server.score([{"name": "min_length"}], sample)).status_code == 200


class TestToken:
    async def test_guards_all_but_the_open_routes(self):
        server = Server(TOKEN)
        for route in ("/livez", "/readyz", "/info", "/metrics"):
            assert (await server.http.get(route)).status_code == 200
        for route in ("/v1/rewards", "/openapi.json", "/nowhere", "/livez/"):
            response = await server.http.get(route)
            assert error_of(response, 401)[0] == "unauthorized"
            assert response.headers["www-authenticate"] == "Bearer"
        assert (await server.score([{"name": "min_length"}], [])).status_code == 401

    async def test_without_one_only_loopback_names_are_answered(self):
        """A web page that resolves its own name to 127.0.0.1 must not have programs run by `code` (DNS rebinding)."""
        server = Server()
        for name, status in {"evil.example": 403, "127.0.0.1.evil.example": 403, "127.0.0.1:8001": 200}.items():
            assert (await server.http.get("/v1/rewards", headers={"Host": name})).status_code == status
        assert (await Server(TOKEN).http.get("/livez", headers={"Host": "rewards.example"})).status_code == 200

    @pytest.mark.parametrize("scheme", ["Bearer", "bearer"])
    async def test_lets_in_who_has_it(self, scheme):
        server = Server("of the next one", TOKEN)
        response = await server.http.get("/v1/rewards", headers={"Authorization": f"{scheme} {TOKEN}"})
        assert response.status_code == 200

    @pytest.mark.parametrize(
        "value",
        ["", "Bearer", "Bearer ", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", TOKEN, f"Basic {TOKEN}", "Bearer é"],
    )
    async def test_keeps_out_who_has_not(self, value):
        server = Server(TOKEN)
        headers = [(b"authorization", value.encode("latin-1"))]
        assert (await server.http.get("/v1/rewards", headers=headers)).status_code == 401

    async def test_two_authorizations_are_none(self):
        server = Server(TOKEN)
        headers = [("Authorization", "Bearer wrong"), ("Authorization", f"Bearer {TOKEN}")]
        assert (await server.http.get("/v1/rewards", headers=headers)).status_code == 401

    async def test_is_checked_before_the_body_is_read(self):
        server = Server(TOKEN)

        async def body() -> AsyncIterator[bytes]:
            pytest.fail("the body was read")
            yield b""

        assert (await server.http.post("/v1/score", content=body(), headers=JSON)).status_code == 401

    async def test_the_projects_own_client_takes_it_from_the_environment(self, monkeypatch):
        server = Server(TOKEN)
        monkeypatch.setenv("GRPO_API_TOKEN", TOKEN)
        async with RewardClient("http://localhost", transport=server.transport) as client:
            assert (await client.rewards()).rewards
        async with RewardClient("http://localhost", token="wrong", transport=server.transport) as client:
            with pytest.raises(FatalError, match="unauthorized"):
                await client.rewards()

    async def test_is_never_shown(self, caplog):
        server = Server(TOKEN)
        assert TOKEN not in caplog.text + repr(server.settings)
        for route in ("/info", "/metrics", "/v1/rewards"):
            assert TOKEN not in (await server.http.get(route)).text


class TestDrain:
    async def test_running_requests_have_the_grace_period_and_new_ones_go_elsewhere(self, server):
        server.executor.gate.clear()
        sample = [{"completion": ""}]
        quick = asyncio.create_task(server.score([{"name": "min_length"}], sample))
        slow = asyncio.create_task(server.score([{"name": "format"}], sample))
        await server.executor.busy(2)
        server.scoring.drain(30)
        assert (await server.http.get("/readyz")).status_code == 503
        assert (await server.http.get("/livez")).status_code == 200
        assert error_of(await server.score([{"name": "min_length"}], sample), 503)[0] == "shutting_down"
        server.executor.gate.set()
        assert (await quick).status_code == 200
        assert (await slow).status_code == 200

    async def test_what_is_not_done_by_then_is_refused_and_not_scored_0(self, server):
        server.executor.gate.clear()
        running = asyncio.create_task(server.score([{"name": "min_length"}], [{"completion": ""}]))
        await server.executor.busy(1)
        server.scoring.drain(0.01)
        async with asyncio.timeout(30):
            assert error_of(await running, 503)[0] == "shutting_down"


class TestLargeRequests:
    SCORES = [{"name": "min_length"}], [{"completion": ""}] * scoring.LARGE_ANSWER_SCORES

    async def test_429_when_all_large_ones_together_have_too_many_scores(self, server, monkeypatch):
        monkeypatch.setattr(scoring, "MAX_LARGE_SCORES", 2 * scoring.LARGE_ANSWER_SCORES)
        server.executor.gate.clear()
        work = [asyncio.create_task(server.score(*self.SCORES)) for _ in range(2)]
        await server.executor.busy(4)  # two lanes each
        refused = await server.score(*self.SCORES)
        assert error_of(refused, 429)[0] == "busy"
        assert refused.headers["Retry-After"] == "1"
        small = asyncio.create_task(server.score([{"name": "min_length"}], [{"completion": ""}]))
        await server.executor.busy(5)
        server.executor.gate.set()
        assert [(await answer).status_code for answer in (*work, small)] == [200] * 3
        assert (await server.score(*self.SCORES)).status_code == 200

    async def test_one_that_was_given_up_leaves_nothing_behind(self, server):
        """Without the garbage collector, which would stop the server for as long as it looks."""
        gc.collect()
        gc.disable()
        try:
            server.executor.gate.clear()
            request = ScoreRequest(rewards=[RewardSpec(name="min_length")], samples=[ScoreSample(completion="")] * 9)
            work = asyncio.create_task(server.scoring.score(request))
            await server.executor.busy(2)
            chunks = [weakref.ref(chunk) for chunk in server.executor.chunks]
            server.executor.chunks.clear()
            work.cancel()
            with pytest.raises(asyncio.CancelledError):
                await work
            del work
            await asyncio.sleep(0.01)
            assert [chunk() for chunk in chunks] == [None, None]
        finally:
            gc.enable()
