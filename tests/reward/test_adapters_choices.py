"""What all routes of other trainers have in common: no score, the choice of rewards, labels, limits."""

import asyncio
import base64
import json

import httpx
import pytest
from tests.reward.app_server import TOKEN, Server, error_of
from tests.reward.peer_bodies import RIGHT, gym_row

from grpo_proto import RewardScore, RewardSpec, ScoreResponse, ScoreResult
from grpo_reward.adapters.base import scored
from grpo_reward.adapters.choice import Choice
from grpo_reward.adapters.label import LabelError, columns_of
from grpo_reward.adapters.peers import ADAPTERS
from grpo_reward.refusal import Refusal


class TestNoScore:
    """These protocols have no null: the request fails and says why, or the URL chooses a number."""

    BODIES = {  # noqa: RUF012
        "/get_reward": {"query": ["3", "none"], "labels": ["1", "2"]},
        "/rm": {"response": "none"},
        "/verify": gym_row("none"),
    }

    @pytest.mark.parametrize("path", BODIES)
    async def test_it_is_never_silently_0(self, server, path, caplog):
        kind, message, hint = error_of(await server.post(f"{path}?rewards=misbehave", self.BODIES[path]))
        assert kind == "no_score"
        assert "misbehave is unscorable" in message
        assert "?unscorable=NUMBER" in hint
        assert message in caplog.text  # the peers do not log the body of an error

    def test_what_a_reward_says_is_one_line_of_the_log(self, caplog):
        score = RewardScore(score=None, status="error", detail="ValueError: \x1b[31m\n2026-01-01 ERROR forged")
        result = ScoreResult(id="0", total=None, rewards={"r": score})
        choice = Choice([RewardSpec(name="r")], [], frozenset(), None, {}, {})
        with pytest.raises(Refusal):
            scored(ScoreResponse(results=[result], elapsed_s=0.0), choice)
        (message,) = [record.getMessage() for record in caplog.records]
        assert message.isprintable()

    async def test_the_sample_and_the_detail_are_named(self, server, monkeypatch):
        monkeypatch.setattr("grpo_proto.totals.PAUSES_S", (0.0,))
        body = {"query": ["<answer>1</answer>"] * 2, "labels": ["1", "?!"]}
        _, message, _ = error_of(await server.post("/get_reward?rewards=format,accuracy", body))
        detail = "(the column solution has no answer that can be parsed)"
        assert message == f"no score for samples[1]: accuracy is unscorable {detail}"
        body = {"query": ["raise"] * 5}
        _, message, _ = error_of(await server.post("/get_reward?rewards=misbehave&unscorable=0", body), 503)
        assert message.count("misbehave is error (") == 3
        assert message.endswith("(and 2 more)")

    async def test_a_number_of_the_users_own(self, server):
        url = "?rewards=misbehave:2,min_length&unscorable=-0.5"
        answer = (await server.post(f"/get_reward{url}", self.BODIES["/get_reward"])).json()
        assert answer["scores"][1] == -0.5
        assert answer["rewards"][1] == 2 * -0.5 + answer["extra_logs"]["min_length"][1]
        assert (await server.post("/rm?rewards=misbehave&unscorable=0", self.BODIES["/rm"])).json() == 0.0

    async def test_a_sum_that_is_not_finite(self, server):
        body = {"response": RIGHT, "label": "0.75"}
        _, message, hint = error_of(await server.post("/rm?rewards=format:1e308,accuracy:1e308", body))
        assert message == "no score for samples[0]: the weighted sum of its scores is not finite"
        assert hint == "choose smaller weights"


class TestChoice:
    async def score(self, server: Server, query: str, response: str = RIGHT) -> httpx.Response:
        return await server.post(f"/rm?{query}", {"response": response, "label": "0.75"})

    async def test_params_are_json_or_text(self, server):
        assert (await self.score(server, "rewards=min_length&min_length.min_chars=9", "12345678")).json() == 0.0
        assert (await self.score(server, "rewards=format&format.require_think=false", "<answer>1</answer>")).json() == 1
        assert (await self.score(server, "rewards=format&format.prefix=%3Cthink%3E", RIGHT[7:])).json() == 1.0

    @pytest.mark.parametrize(
        ("query", "kind", "message", "hint"),
        [
            ("", "no_rewards", "nothing says which rewards", "--adapter-rewards"),
            ("rewards=", "no_rewards", "nothing says which rewards", "?rewards="),
            ("rewards=acuracy", "unknown_reward", "acuracy", "did you mean accuracy?"),
            ("rewards=format,format", "invalid_option", "each reward once", ""),
            ("rewards=format&rewards=accuracy", "invalid_option", "several times", "rewards=a,b"),
            ("rewards=format:much", "invalid_option", "the weight of format is 'much'", ""),
            ("rewards=format:nan", "invalid_option", "the weight of format is 'nan'", ""),
            ("rewards=format,", "invalid_option", "empty name", ""),
            ("rewards=format&unscorable=inf", "invalid_option", "unscorable is 'inf'", ""),
            ("rewards=format&unscoreable=0", "invalid_option", "no option unscoreable", "did you mean unscorable?"),
            ("rewards=format&fromat.prefix=a", "invalid_option", "a param of fromat", "did you mean format?"),
            ("rewards=format&format.prefx=a", "unknown_param", "prefx", "did you mean prefix?"),
            ("rewards=format&format.require_think=no_idea", "invalid_param", "require_think", "schema"),
            ("rewards=format&timeout_s=soon", "invalid_value", "timeout_s: ", ""),
            ("rewards=format&deadline_s=0", "invalid_value", "deadline_s: ", ""),
            ("rewards=format&deadline_s=601", "invalid_value", "this server takes 600 at most", "--max-timeout-s"),
            (f"rewards=format&format.prefix={'[' * 150}{']' * 150}", "invalid_option", "more than 100 nested", ""),
        ],
    )
    async def test_422_says_what_to_change(self, server, query, kind, message, hint):
        found, text, helpful = error_of(await self.score(server, query))
        assert found == kind
        assert message in text
        assert hint in helpful

    async def test_the_setting_counts_unless_the_query_names_rewards(self):
        server = Server(adapter_rewards="min_length&min_length.min_chars=9&unscorable=0")
        assert (await self.score(server, "", "12345678")).json() == 0.0
        assert (await self.score(server, "min_length.min_chars=3", "12345678")).json() == 1.0
        assert (await self.score(server, "rewards=accuracy")).json() == 1.0

    async def test_blanks_divide_rewards_too(self, server):
        """OpenRLHF takes every comma in its URL for the end of one server's."""
        for query in (
            "rewards=accuracy+format:0.1",
            "rewards=accuracy,%20format:0.1",
            "rewards=+accuracy%2Cformat:0.1+",
        ):
            assert (await self.score(server, query)).json() == 1.1

    async def test_limits(self, server):
        server.executor.gate.clear()
        _, message, _ = error_of(await self.score(server, "rewards=format&deadline_s=0.05"), 503)
        assert "deadline of 0.05 s" in message


@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda adapter: adapter.path)
class TestAsForScore:
    """What stands in front of /v1/score stands in front of every adapter."""

    async def test_body(self, adapter):
        server = Server(max_body_mib=1, adapter_rewards=adapter.example_rewards)
        json_type = {"Content-Type": "application/json"}
        for content, headers, status in (
            (b"{", json_type, 400),
            (b"[]", json_type, 422),
            (b"{}", json_type, 422),
            (b"{}", {"Content-Type": "text/plain"}, 415),
            (b" " * (2**20 + 1), json_type, 413),
        ):
            response = await server.http.post(adapter.path, content=content, headers=headers)
            assert error_of(response, status)[0]
        assert (await server.http.get(adapter.path)).status_code == 405

    async def test_429_and_metrics(self, adapter):
        server = Server(max_pending_requests=1, adapter_rewards=adapter.example_rewards)
        server.executor.gate.clear()
        running = asyncio.create_task(server.post(adapter.path, adapter.example))
        await server.executor.busy(1)
        response = await server.post(adapter.path, adapter.example)
        assert error_of(response, 429)[0] == "busy"
        assert response.headers["retry-after"]
        server.executor.gate.set()
        assert (await running).status_code == 200
        lines = server.metrics.text().decode().splitlines()
        assert f'grpo_reward_requests_total{{route="{adapter.path}",status="200"}} 1.0' in lines
        assert f'grpo_reward_requests_total{{route="{adapter.path}",status="429"}} 1.0' in lines
        assert "grpo_reward_request_seconds_count 1.0" in lines

    async def test_a_client_that_goes_away_frees_the_workers(self, adapter):
        server = Server(adapter_rewards=adapter.example_rewards)
        server.executor.gate.clear()
        messages: asyncio.Queue[dict] = asyncio.Queue()
        messages.put_nowait({"type": "http.request", "body": json.dumps(adapter.example).encode()})
        scope = {
            "type": "http", "method": "POST", "path": adapter.path, "query_string": b"", "http_version": "1.1",
            "headers": [(b"content-type", b"application/json")], "scheme": "http",
        }  # fmt: skip
        sent = []

        async def send(message: dict) -> None:
            sent.append(message)

        leaving = asyncio.create_task(server.app(scope, messages.get, send))
        await server.executor.busy(1)
        messages.put_nowait({"type": "http.disconnect"})
        await leaving
        assert sent[0]["status"] == 499
        assert server.executor.cancelled == len(server.executor.chunks) >= 1

    async def test_token(self, adapter):
        server = Server(TOKEN, adapter_rewards=adapter.example_rewards)
        assert (await server.post(adapter.path, adapter.example)).status_code == 401
        headers = {"Authorization": f"Bearer {TOKEN}"}
        assert (await server.post(adapter.path, adapter.example, headers=headers)).status_code == 200
        # These clients send no headers of their own; their libraries make this one of http://any:TOKEN@host.
        for user, status in ((f"any:{TOKEN}", 200), (f":{TOKEN}", 200), (f"{TOKEN}:", 401), (f"any:{TOKEN}x", 401)):
            headers = {"Authorization": "Basic " + base64.b64encode(user.encode()).decode()}
            assert (await server.post(adapter.path, adapter.example, headers=headers)).status_code == status
        headers = {"Authorization": "Basic %%%"}
        assert (await server.post(adapter.path, adapter.example, headers=headers)).status_code == 401


async def test_seed_session_is_guarded_and_limited():
    server = Server(TOKEN)
    assert (await server.post("/seed_session", {})).status_code == 401
    headers = {"Authorization": f"Bearer {TOKEN}"}
    assert (await server.post("/seed_session", {}, headers=headers)).json() == {}
    assert (await server.http.post("/seed_session", content=b"x", headers=headers)).status_code == 415


@pytest.mark.parametrize(
    ("body", "status", "kind"),
    [(b"", 400, "malformed_json"), (b"{", 400, "malformed_json"), (b"[]", 422, "invalid_value")],
)
async def test_seed_session_takes_an_object_as_the_other_routes_do(body, status, kind):
    answer = await Server().http.post("/seed_session", content=body, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["type"]) == (status, kind)


def test_the_label_rule():
    assert columns_of({"a": 1}, ["b"]) == {"a": 1}
    assert columns_of(' {"a": 1}', []) == {"a": 1}
    assert columns_of("{not json", ["b"]) == {"b": "{not json"}
    for text in ("{", "{1, 2}", "{x: x > 0}", '{"a"} or {"b"}', '{"a": 1} and more', "{{a}}", "{" * 5000):
        assert columns_of(text, ["b"]) == {"b": text}
    for text, reason in (
        ('{"a": "\\udc00"}', "lone leading surrogate"),
        (f'{{"a": {"1" * 5000}}}', "number out of range"),
        (f' {{"a": {"[" * 99_999}{"]" * 99_999}}} ', "recursion limit exceeded"),
        ('{"a": "1\n2"}', "control character"),
    ):
        with pytest.raises(LabelError, match=f"it looks like a JSON object and cannot be read: {reason}"):
            columns_of(text, ["b"])
    assert columns_of([1, 2], ["b"]) == {"b": [1, 2]}
    assert columns_of(0, ["b"]) == {"b": 0}
    assert columns_of("x", []) == {}
    assert columns_of(None, ["a", "b"]) == columns_of("", ["a"]) == {}
    with pytest.raises(LabelError, match="more than 1048576 characters"):
        columns_of(f'{{"a": "{"x" * 2**20}"}}', ["a"])
    with pytest.raises(LabelError, match=r'the columns a, b are needed: .*\{"a": …, "b": …\}'):
        columns_of("x", ["a", "b"])


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/rm", {"response": "<answer>1</answer>", "label": 1}),
        ("/rm", {"response": "<answer>1</answer>", "label": {"solution": 1.5}}),
        ("/get_reward", {"query": ["<answer>1</answer>"], "labels": [1]}),
    ],
)
async def test_a_number_in_place_of_a_text_is_refused_at_once(server: Server, path: str, body: dict[str, object]):
    kind, message, hint = error_of(await server.post(f"{path}?rewards=accuracy", body))
    assert kind == "invalid_label"
    assert message == "the label of samples[0] fills the column solution with a number, and it is text"
    assert hint.startswith('send it as text: "1')


@pytest.mark.parametrize(("label", "kind"), [(["3", "4"], "a list"), ({"solution": {"x": 1}}, "an object")])
async def test_so_is_anything_else_than_text(server: Server, label: object, kind: str):
    body = {"response": "<answer>1</answer>", "label": label}
    _, message, hint = error_of(await server.post("/rm?rewards=accuracy", body))
    assert message == f"the label of samples[0] fills the column solution with {kind}, and it is text"
    assert hint.startswith('send it as text: "')


async def test_a_boolean_is_the_text_that_it_was(server: Server):
    for label in (True, {"solution": True}):
        body = {"response": "<answer>true</answer>", "label": label}
        assert (await server.post("/rm?rewards=accuracy", body)).json() == 1.0


async def test_a_column_that_no_repeat_mends_is_asked_once_and_not_to_be_tried_again(server: Server):
    response = await server.post("/rm?rewards=tool_call", {"response": "r", "label": {"tool_calls": 5}})
    kind, message, hint = error_of(response)
    assert (response.status_code, kind, hint) == (422, "no_score", "send the column as the reward takes it")
    assert "tool_call is error (column tool_calls" in message
    assert len(server.executor.chunks) == 1


@pytest.mark.parametrize("deep", ["text", "label", "field"])
async def test_columns_that_no_worker_could_read_are_error_of(server, deep):
    """What is deeper than a worker can read would be an error of all that came to it together."""
    gold = json.loads("[" * 150 + "]" * 150)
    label = {"solution": gold}
    match deep:
        case "text":
            path, body = "/get_reward", {"query": ["3", "3"], "labels": ["3", json.dumps(label)]}
        case "label":
            path, body = "/get_reward", {"query": ["3", "3"], "labels": ["3", label]}
        case "field":
            path, body = "/verify", {"responses_create_params": {}, "response": {"output": []}, "solution": gold}
    response = await server.post(f"{path}?rewards=exact_match", body)
    assert response.status_code == 422
    which = 0 if deep == "field" else 1
    message = f"the columns of samples[{which}] have more than 100 nested levels"
    assert response.json()["error"]["message"] == message


async def test_labels_that_are_json_may_hold_together_what_a_body_may(server):
    label = '{"a":[' + ",".join(["[]"] * 200_000) + "]}"
    body = {"query": ["3"] * 5, "labels": [label] * 5}
    response = await server.post("/get_reward?rewards=format", body)
    assert response.status_code == 413
    assert response.json()["error"]["type"] == "too_many_values"
    assert (await server.post("/get_reward?rewards=format", {"query": ["3"], "labels": [label]})).status_code == 200
