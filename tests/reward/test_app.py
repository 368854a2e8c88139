"""The routes, over an executor in this process."""

import asyncio
import json
import re
from itertools import pairwise

import pytest
from tests.reward.app_server import JSON, error_of

from grpo_proto import (
    PROTOCOL_VERSION,
    RewardClient,
    RewardSpec,
    ScoreRequest,
    ScoreSample,
)  # fmt: skip
from grpo_reward.executors.base import Chunk
from grpo_reward.reading import Reader


class TestScore:
    async def test_the_example_of_the_protocol(self, server):
        response = await server.score(
            [{"name": "countdown", "weight": 1.0, "params": {}}, {"name": "format", "weight": 0.1}],
            [
                {
                    "id": "s-1",
                    "completion": "<think>…</think><answer>44 + 19 + 35</answer>",
                    "prompt": [{"role": "user", "content": "…"}],
                    "columns": {"nums": [44, 19, 35], "target": 98},
                    "completion_token_ids": None,
                    "truncated": False,
                }
            ],
            step=12,
            timeout_s=10.0,
            deadline_s=60.0,
        )
        body = response.json()
        assert body.pop("elapsed_s") > 0
        hashes = {name: reward.description.code_hash for name, reward in server.executor.rewards.items()}
        assert body.pop("code_hashes") == {name: hashes[name] for name in ("countdown", "format")}
        log = {"expression": "44 + 19 + 35"}
        countdown, form = {"score": 1.0, "status": "ok", "log": log}, {"score": 1.0, "status": "ok"}
        assert body == {"results": [{"id": "s-1", "total": 1.1, "rewards": {"countdown": countdown, "format": form}}]}

    async def test_the_projects_own_client_understands_it(self, server):
        async with RewardClient("http://localhost", transport=server.transport) as client:
            sample = ScoreSample(completion="<answer>7</answer>", columns={"nums": [7], "target": 7})
            answer = await client.score(ScoreRequest(rewards=[RewardSpec(name="countdown")], samples=[sample]))
            assert answer.results[0].total == 1.0
            assert (await client.info()).protocol_version == PROTOCOL_VERSION
            assert (await client.livez()).ok
            assert (await client.readyz()).ok
            assert {reward.name for reward in (await client.rewards()).rewards} == set(server.executor.rewards)

    async def test_one_result_for_every_sample_in_their_order(self, server):
        texts = ["", "none", "raise", "nan", "log"] * 40
        samples = [{"id": f"s-{number}", "completion": text} for number, text in enumerate(texts)]
        results = (await server.score([{"name": "misbehave"}, {"name": "min_length"}], samples)).json()["results"]
        assert [result["id"] for result in results] == [f"s-{number}" for number in range(200)]
        statuses = [result["rewards"]["misbehave"]["status"] for result in results]
        assert statuses == ["ok", "unscorable", "error", "error", "ok"] * 40
        assert all(result["rewards"]["min_length"]["status"] == "ok" for result in results)
        assert len(server.executor.chunks) > 2
        assert server.metric('grpo_reward_scores_total{reward="misbehave",status="error"}') == 80

    async def test_results_without_ids_are_numbered(self, server):
        results = (await server.score([{"name": "min_length"}], [{"completion": ""}] * 3)).json()["results"]
        assert [result["id"] for result in results] == ["0", "1", "2"]

    async def test_no_samples_no_results(self, server):
        assert (await server.score([{"name": "min_length"}], [])).json()["results"] == []

    async def test_null_is_not_0(self, server):
        samples = [{"completion": "none"}, {"completion": "log"}]
        rewards = [{"name": "misbehave", "weight": 2.0}]
        none, scored = (await server.score(rewards, samples)).json()["results"]
        assert none == {"id": "0", "total": None, "rewards": {"misbehave": {"score": None, "status": "unscorable"}}}
        assert scored["total"] == 1.0
        rewards.append({"name": "min_length", "weight": 0.5, "params": {"min_chars": 1}})
        none, scored = (await server.score(rewards, samples)).json()["results"]
        assert (none["total"], scored["total"]) == (0.5, 1.5)

    async def test_only_what_a_reward_reads_goes_to_the_worker(self, server):
        columns = {"gold": 7, "hint": "h", "essay": "x" * 1000}
        sample = {"completion": "c", "prompt": "p", "columns": columns, "completion_token_ids": [1, 2]}
        response = await server.score([{"name": "typed"}], [sample], step=5)
        assert server.executor.chunks[0].samples == [
            {"completion": "c", "prompt": "p", "columns": {"gold": 7, "hint": "h"}}
        ]
        log = response.json()["results"][0]["rewards"]["typed"]["log"]
        assert log == {"gold": 7, "hint": "h", "prompt": "p", "step": 5}

    async def test_a_batch_reward_sees_the_whole_request_at_once(self, server):
        samples = [{"completion": "", "columns": {"gold": number}} for number in range(100)]
        results = (await server.score([{"name": "batch_misbehave"}, {"name": "min_length"}], samples)).json()["results"]
        assert [result["rewards"]["batch_misbehave"]["score"] for result in results] == list(range(100))
        assert [len(chunk.samples) for chunk in server.executor.chunks if chunk.batch] == [100]

    async def test_the_deadline_cuts_off_what_is_left(self, server):
        await server.score([{"name": "min_length"}], [{"completion": ""}])
        server.executor.gate.clear()
        response = await server.score([{"name": "min_length"}], [{"completion": ""}] * 3, deadline_s=0.05)
        assert response.status_code == 200
        for result in response.json()["results"]:
            score = result["rewards"]["min_length"]
            assert (result["total"], score["score"], score["status"]) == (None, None, "timeout")
            assert "deadline of 0.05 s" in score["detail"]
        assert server.executor.cancelled >= 1
        assert server.metric("grpo_reward_deadlines_exceeded_total") == 1
        assert server.metric("grpo_reward_queue_depth") == 0

    async def test_a_client_that_goes_away_frees_the_workers(self, server):
        server.executor.gate.clear()
        task = asyncio.create_task(server.score([{"name": "min_length"}], [{"completion": ""}]))
        body = json.dumps({"rewards": [{"name": "min_length"}], "samples": [{"completion": ""}]}).encode()
        messages: asyncio.Queue[dict] = asyncio.Queue()
        messages.put_nowait({"type": "http.request", "body": body})
        scope = {
            "type": "http", "method": "POST", "path": "/v1/score", "headers": [(b"content-type", b"application/json")],
            "query_string": b"", "http_version": "1.1", "scheme": "http",
        }  # fmt: skip
        sent = []

        async def send(message: dict) -> None:
            sent.append(message)

        leaving = asyncio.create_task(server.app(scope, messages.get, send))
        await server.executor.busy(2)
        messages.put_nowait({"type": "http.disconnect"})
        await leaving
        assert server.executor.cancelled == 1
        assert sent[0]["status"] == 499
        server.executor.gate.set()
        assert (await task).status_code == 200

    async def test_a_repeated_request_has_the_same_answer(self, server):
        """A client whose answer was lost asks again: scoring has no effects, so nothing counts twice."""
        samples = [{"id": "a", "completion": "<answer>1+2</answer>", "columns": {"nums": [1, 2], "target": 3}}] * 3
        answers = [(await server.score([{"name": "countdown"}, {"name": "format"}], samples)).json() for _ in range(2)]
        assert answers[0]["results"] == answers[1]["results"]


class TestRefusals:
    @pytest.mark.parametrize("body", [b"", b"{", b"nonsense", b"\x80\x04K\x01.", b'{"rewards": "\xff"}'])
    async def test_400_malformed_json(self, server, body):
        kind, _, _ = error_of(await server.http.post("/v1/score", content=body, headers=JSON), 400)
        assert kind == "malformed_json"

    async def test_400_half_a_character_is_named(self, server):
        body = rb'{"rewards": [{"name": "format"}], "samples": [{"completion": "\ud83d"}]}'
        kind, _, hint = error_of(await server.http.post("/v1/score", content=body, headers=JSON), 400)
        assert kind == "malformed_json"
        assert "half of a surrogate pair" in hint

    @pytest.mark.parametrize("opening", [b'{"a":', b"["])
    async def test_400_a_depth_bomb(self, server, opening):
        body = b'{"rewards":[{"name":"format","params":' + opening * 100_000
        kind, message, _ = error_of(await server.http.post("/v1/score", content=body, headers=JSON), 400)
        assert kind == "malformed_json"
        assert "recursion" in message

    async def test_deep_columns_that_are_still_json_are_scored(self, server):
        deep: list = []
        for _ in range(150):
            deep = [deep]
        response = await server.score([{"name": "min_length"}], [{"completion": "", "columns": {"deep": deep}}])
        assert response.status_code == 200

    async def test_404_and_405(self, server):
        kind, message, hint = error_of(await server.http.get("/v2/score"), 404)
        assert (kind, message, hint) == ("not_found", "there is no route /v2/score", "did you mean /v1/score?")
        response = await server.http.get("/v1/score")
        kind, _, hint = error_of(response, 405)
        assert (kind, hint) == ("method_not_allowed", "it takes POST")
        assert response.headers["allow"] == "POST"
        assert error_of(await server.http.get("/v1/score/"), 404)[0] == "not_found"
        assert error_of(await server.http.get("/redoc"), 404)[0] == "not_found"

    @pytest.mark.parametrize(
        "kind", [None, "text/plain", "application/octet-stream", "application/x-python-pickle", "multipart/form-data"]
    )
    async def test_415_another_content_type(self, server, kind):
        headers = {"Content-Type": kind} if kind else {}
        response = await server.http.post("/v1/score", content=b"{}", headers=headers)
        assert error_of(response, 415)[0] == "wrong_content_type"

    @pytest.mark.parametrize(("encoding", "status"), [("gzip", 415), ("br", 415), ("identity", 200), ("", 200)])
    async def test_415_a_body_that_is_compressed(self, server, encoding, status):
        body = json.dumps({"rewards": [{"name": "min_length"}], "samples": []})
        headers = JSON | {"Content-Encoding": encoding}
        response = await server.http.post("/v1/score", content=body, headers=headers)
        assert response.status_code == status
        if status == 415:
            assert error_of(response, 415)[:2] == ("wrong_content_encoding", f"the body is encoded as {encoding}")

    async def test_a_charset_is_fine(self, server):
        body = json.dumps({"rewards": [{"name": "min_length"}], "samples": []})
        headers = {"Content-Type": "Application/JSON; charset=utf-8"}
        assert (await server.http.post("/v1/score", content=body, headers=headers)).status_code == 200

    @pytest.mark.parametrize(
        ("change", "kind", "message"),
        [
            ({"timeout_s": -1}, "invalid_value", "timeout_s: "),
            ({"timeout_s": "soon"}, "invalid_value", "timeout_s: "),
            ({"deadline_s": 1e9}, "invalid_value", "deadline_s: "),
            ({"step": -1}, "invalid_value", "step: "),
            ({"rewards": []}, "invalid_value", "rewards: "),
            (
                {"rewards": [{"name": "min_length"}, {"name": "min_length"}]},
                "invalid_value",
                "rewards: .*min_length came several",
            ),
            ({"samples": None}, "invalid_value", "samples: "),
            ({"samples": [{"completion": 7}]}, "invalid_value", r"samples\[0\]\.completion: must be a string"),
            ({"samples": [{}]}, "invalid_value", r"samples\[0\]\.completion: Field required"),
            ({"samples": [{"completion": "", "prompt": [{"role": "user"}]}]}, "invalid_value", r"samples\[0\]\.prompt"),
            ({"dedline_s": 3}, "unknown_field", "dedline_s is unknown"),
            ({"samples": [{"completion": "", "colums": {}}]}, "unknown_field", r"samples\[0\]\.colums is unknown"),
        ],
    )
    async def test_422_names_the_field(self, server, change, kind, message):
        body = {"rewards": [{"name": "min_length"}], "samples": [{"completion": ""}], **change}
        found, text, hint = error_of(await server.http.post("/v1/score", json=body), 422)
        assert found == kind
        assert re.match(message, text)
        if kind == "unknown_field":
            assert hint in ("did you mean deadline_s?", "did you mean columns?")

    async def test_422_several_problems_are_told_at_once(self, server):
        response = await server.score([{"name": "min_length"}], [{"completion": 1}, {"completion": 2}], timeout_s=0)
        _, message, _ = error_of(response, 422)
        assert "samples[0].completion" in message
        assert "samples[1].completion" in message
        assert "timeout_s" in message

    @pytest.mark.parametrize(
        ("reward", "sample", "kind", "message", "hint"),
        [
            ({"name": "countdwn"}, {}, "unknown_reward", "countdwn", "did you mean countdown?"),
            ({"name": "xyzzy"}, {}, "unknown_reward", "xyzzy", "known: accuracy, "),
            (
                {"name": "min_length", "params": {"min_char": 1}},
                {},
                "unknown_param",
                "min_char",
                "did you mean min_chars?",
            ),
            (
                {"name": "min_length", "params": {"min_chars": "x"}},
                {},
                "invalid_param",
                "min_length: min_chars: ",
                "schema",
            ),
            (
                {"name": "min_length", "params": {"min_chars": -1}},
                {},
                "invalid_param",
                "min_length: min_chars: ",
                "schema",
            ),
            ({"name": "regex"}, {}, "missing_param", "pattern", ""),
            ({"name": "accuracy"}, {"columns": {"solutoin": "1"}}, "missing_column", "solution", "mean solutoin?"),
            ({"name": "accuracy"}, {}, "missing_column", "samples[0] (s-1)", "send columns"),
            (
                {"name": "soft_overlong", "params": {"max_len": 9, "cache_len": 3}},
                {},
                "missing_field",
                "completion_token_ids",
                "",
            ),
        ],
    )
    async def test_422_names_what_is_unknown_or_missing(self, server, reward, sample, kind, message, hint):
        response = await server.score([reward], [{"id": "s-1", "completion": "", **sample}])
        found, text, helpful = error_of(response, 422)
        assert found == kind
        assert message in text
        assert hint in helpful

    async def test_422_for_a_column_that_only_a_later_sample_lacks(self, server):
        samples = [{"completion": "", "columns": {"solution": "1"}}, {"completion": ""}]
        assert "samples[1]" in error_of(await server.score([{"name": "accuracy"}], samples), 422)[1]

    async def test_500_keeps_the_shape_and_the_secrets(self, server, monkeypatch, caplog):
        async def fail(chunk: Chunk) -> None:
            raise LookupError("/secret/path")

        monkeypatch.setattr(server.executor, "score", fail)
        response = await server.score([{"name": "min_length"}], [{"completion": ""}])
        kind, message, _ = error_of(response, 500)
        assert kind == "internal"
        assert "/secret/path" not in message
        assert "/secret/path" in caplog.text

    async def test_503_without_workers(self, server):
        server.executor.problem = "no worker process is running"
        assert error_of(await server.score([{"name": "min_length"}], []), 503)[0] == "not_ready"
        assert (await server.http.get("/readyz")).status_code == 503
        assert (await server.http.get("/livez")).status_code == 200
        server.executor.failed = "the fork server is gone"
        assert (await server.http.get("/livez")).json() == {"ok": False, "detail": "the fork server is gone"}


async def test_metrics_count_requests_and_scores(server):
    await server.score([{"name": "misbehave"}], [{"completion": ""}, {"completion": "none"}])
    await server.http.get("/nowhere")
    text = (await server.http.get("/metrics")).text
    for line in (
        'grpo_reward_requests_total{route="/v1/score",status="200"} 1.0',
        'grpo_reward_requests_total{route="other",status="404"} 1.0',
        'grpo_reward_scores_total{reward="misbehave",status="ok"} 1.0',
        'grpo_reward_scores_total{reward="misbehave",status="unscorable"} 1.0',
        "grpo_reward_queue_depth 0.0",
        "grpo_reward_workers 2.0",
        "grpo_reward_request_seconds_count 1.0",
    ):
        assert line in text.splitlines()
    assert 'grpo_reward_score_seconds_total{reward="misbehave"}' in text


async def test_rewards_describe_themselves(server):
    rewards = {reward["name"]: reward for reward in (await server.http.get("/v1/rewards")).json()["rewards"]}
    assert rewards["countdown"]["columns"] == ["nums", "target"]
    assert "exactly once" in rewards["countdown"]["documentation"]
    assert rewards["regex"]["params_schema"]["required"] == ["pattern"]
    params = rewards["length"]["params_schema"]
    assert params["properties"]["unit"] == {
        "default": "tokens", "enum": ["tokens", "characters"], "title": "Unit", "type": "string",
    }  # fmt: skip
    info = (await server.http.get("/info")).json()
    assert info["service"] == "reward"
    assert info["rewards"] == {name: reward["code_hash"] for name, reward in rewards.items()}


async def test_of_a_key_that_stands_twice_the_last_counts(server):
    body = (
        b'{"rewards": [{"name": "min_length"}], "samples": [], "samples": [{"completion": "a", "id": "0", "id": "1"}]}'
    )
    answer = await server.http.post("/v1/score", content=body, headers=JSON)
    assert [result["id"] for result in answer.json()["results"]] == ["1"]


@pytest.mark.parametrize("num_chars", [2**20, 2**16])
async def test_between_large_bodies_the_loop_has_time_for_others(server, monkeypatch, num_chars):
    """Each takes a while to parse; a probe has to wait for one of them at most."""
    body = {"rewards": [{"name": "min_length"}], "samples": [{"completion": "x" * num_chars}]}
    turns, turns_at_parse = 0, []

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    def read(self, content, real=Reader.read):
        turns_at_parse.append(turns)
        return real(self, content)

    monkeypatch.setattr(Reader, "read", read)
    counting = asyncio.create_task(count_turns())
    answers = await asyncio.gather(*(server.http.post("/v1/score", json=body) for _ in range(4)))
    counting.cancel()
    assert [answer.status_code for answer in answers] == [200] * 4
    assert min(later - earlier for earlier, later in pairwise(turns_at_parse)) >= 1
