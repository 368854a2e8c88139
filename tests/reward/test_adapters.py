"""The routes for OpenRLHF, slime and NeMo-Gym: each is called as that peer's own client calls it."""

import asyncio
import base64
import json
import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from tests.reward.gated import GatedExecutor

from grpo_proto import RewardScore, RewardSpec, ScoreResponse, ScoreResult
from grpo_reward.adapters.base import scored
from grpo_reward.adapters.choice import Choice
from grpo_reward.adapters.label import LabelError, columns_of
from grpo_reward.adapters.peers import ADAPTERS
from grpo_reward.app import create_app
from grpo_reward.config import Settings
from grpo_reward.metrics import Metrics
from grpo_reward.refusal import Refusal
from grpo_reward.scoring import Scoring

TOKEN = "a secret"
RIGHT = "<think>2/4 + 1/4</think><answer>3/4</answer>"
MISBEHAVING = Path(__file__).parent / "plugins/misbehaving.py"


class Server:
    def __init__(self, token: str | None = None, **settings: Any):
        self.executor, self.metrics = GatedExecutor([MISBEHAVING]), Metrics()
        chosen = Settings(**settings).model_copy(update={"token": token})
        scoring = Scoring(self.executor, self.metrics)
        self.app = create_app(chosen, self.executor, self.metrics, scoring)
        self.transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        self.http = httpx.AsyncClient(base_url="http://reward", transport=self.transport)

    async def post(self, path: str, body: Any, **more: Any) -> httpx.Response:
        return await self.http.post(path, json=body, **more)


@pytest.fixture(autouse=True)
def _no_token(monkeypatch):
    monkeypatch.delenv("GRPO_API_TOKEN", raising=False)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    async with server.http:
        yield server


def refused(response: httpx.Response, status: int = 422) -> tuple[str, str, str]:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    return error["type"], error["message"], error["hint"] or ""


def openrlhf_query(prompt: str, response: str, label: Any) -> dict[str, Any]:
    """What its agent sends for each sample: lists of one; prompt and response decoded together."""
    return {"query": [f"{prompt}{response}<|im_end|>"], "prompts": [prompt], "labels": [label]}


class TestOpenRLHF:
    async def test_one_sample_as_its_agent_sends_and_reads_it(self, server):
        url = "/get_reward?rewards=accuracy+format:0.1"
        answers = [
            (await server.post(url, openrlhf_query("<|im_start|>user\nWhat?", text, "0.75"))).json()
            for text in (RIGHT, "<answer>1</answer>")
        ]
        assert answers[0] == {"rewards": [1.1], "scores": [1.0], "extra_logs": {"accuracy": [1.0], "format": [1.0]}}
        assert answers[1] == {"rewards": [0.0], "scores": [0.0], "extra_logs": {"accuracy": [0.0], "format": [0.0]}}
        for answer in answers:  # it makes a tensor of each value, and stacks those of a batch key by key
            assert torch.tensor([answer["rewards"]]).shape == torch.tensor([answer["scores"]]).shape == (1, 1)
            assert answer["extra_logs"].keys() == answers[0]["extra_logs"].keys()
            assert torch.tensor([answer["extra_logs"]["format"]]).dtype == torch.float32

    async def test_the_share_of_a_second_server_may_be_empty(self, server):
        response = await server.post("/get_reward?rewards=accuracy", {"query": [], "prompts": [], "labels": []})
        assert response.json() == {"rewards": [], "scores": [], "extra_logs": {"accuracy": []}}

    async def test_the_prompt_is_no_part_of_the_completion(self, server):
        prompt = "Answer like <answer>7</answer>."
        query = openrlhf_query(prompt, "<answer>3/4</answer>", "0.75")
        assert (await server.post("/get_reward?rewards=accuracy", query)).json()["rewards"] == [1.0]
        assert server.executor.chunks[-1].samples[0]["completion"] == "<answer>3/4</answer>"
        del query["prompts"]
        assert (await server.post("/get_reward?rewards=accuracy", query)).json()["rewards"] == [0.0]

    @pytest.mark.parametrize(
        ("text", "option", "completion"),
        [
            ("a<|im_end|>", "", "a"),
            ("a<|im_end|><|im_end|>", "", "a<|im_end|>"),
            ("a</s>", "", "a"),
            ("a STOP", "&end=%20STOP", "a"),
            ("a</s>", "&end=", "a</s>"),
        ],
    )
    async def test_one_end_token_is_taken_off(self, server, text, option, completion):
        await server.post(f"/get_reward?rewards=min_length{option}", {"query": [text]})
        assert server.executor.chunks[-1].samples[0]["completion"] == completion

    async def test_lists_of_different_lengths(self, server):
        body = {"query": ["a", "b"], "labels": ["1"]}
        kind, message, _ = refused(await server.post("/get_reward?rewards=accuracy", body))
        assert (kind, message) == ("invalid_value", "labels has 1 entries and query has 2")

    async def test_a_list_of_something_else_than_texts_stops_at_its_first_fault(self, server):
        """Each more is a microsecond in which nobody else gets an answer, and a body has millions of them."""
        for body in ({"query": [1] * 4000}, {"query": ["a"], "prompts": [1] * 100_000}):
            _, message, _ = refused(await server.post("/get_reward?rewards=accuracy", body))
            assert message.endswith("[0]: must be a string, not 1")

    async def test_an_empty_label_is_none(self, server):
        """What its dataset gives without --data.label_key."""
        kind, message, _ = refused(await server.post("/get_reward?rewards=accuracy", openrlhf_query("p", "r", "")))
        assert (kind, "needs the column solution" in message) == ("missing_column", True)


class TestSlime:
    async def test_one_sample_is_a_number(self, server):
        """Its client takes the JSON as it is for `sample.reward`."""
        for response, reward in ((RIGHT, 1.1), ("no", 0.0)):
            payload = {"prompt": "What?", "response": response, "label": "0.75"}
            answer = (await server.post("/rm?rewards=accuracy,format:0.1", payload)).json()
            assert answer == reward
            assert torch.tensor([answer]).dtype == torch.float32

    async def test_an_object_for_reward_key(self, server):
        payload = {"prompt": [{"role": "user", "content": "What?"}], "response": RIGHT, "label": "0.75"}
        answer = (await server.post("/rm?rewards=accuracy,format:0.1&components=true", payload)).json()
        assert answer == {"reward": 1.1, "accuracy": 1.0, "format": 1.0}
        kind, message, _ = refused(await server.post("/rm?rewards=accuracy&components=1", payload))
        assert (kind, message) == ("invalid_option", "components is '1', not true or false")

    async def test_a_param_that_is_no_unicode_is_text(self, server):
        path = '/rm?rewards=format&format.prefix="\\ud800"'
        answer = await server.post(path, {"prompt": "p", "response": "r", "label": "1"})
        assert (answer.status_code, answer.json()) == (200, 0.0)

    @pytest.mark.parametrize("reward", ["exact_match", "countdown"])
    async def test_a_label_that_would_be_an_object_is_no_text(self, server, reward):
        payload = {"prompt": "p", "response": "r", "label": '{"nums": [1], "target": 1, "solution": "\\ud800"}'}
        kind, message, _ = refused(await server.post(f"/rm?rewards={reward}", payload))
        assert kind == "unreadable_label"
        assert message == (
            "the label of samples[0]: it looks like a JSON object and cannot be read: "
            "unexpected end of hex escape at line 1 column 47"
        )

    async def test_a_label_of_several_columns(self, server):
        response = "<answer>44 + 19 + 35</answer>"
        columns = {"nums": [44, 19, 35], "target": 98}
        for label in (columns, json.dumps(columns)):
            body = {"prompt": "p", "response": response, "label": label}
            assert (await server.post("/rm?rewards=countdown", body)).json() == 1.0
        kind, message, _ = refused(await server.post("/rm?rewards=countdown", {"response": response, "label": 98}))
        assert kind == "ambiguous_label"
        assert "nums, target are needed" in message

    async def test_messages_of_several_parts_become_text(self, server):
        parts = [{"type": "text", "text": "What is "}, {"type": "image"}, {"type": "text", "text": "this?"}]
        prompt = [{"role": "system", "content": "s"}, {"role": "user", "content": parts}]
        body = {"prompt": prompt, "response": "", "label": {"gold": 1}}
        await server.post("/rm?rewards=typed", body)
        sent = [(message["role"], message["content"]) for message in server.executor.chunks[-1].samples[0]["prompt"]]
        assert sent == [("system", "s"), ("user", "What is this?")]


def gym_row(text: str, **task: Any) -> dict[str, Any]:
    """What its agent posts: the row of the dataset as it dumps it, with the response of the model server."""
    message = {
        "id": "msg_1",
        "content": [{"annotations": [], "text": text, "type": "output_text", "logprobs": None}],
        "role": "assistant",
        "status": "completed",
        "type": "message",
        "prompt_token_ids": [1, 2],
        "generation_token_ids": [3],
        "generation_log_probs": [-0.5],
    }
    return {
        "responses_create_params": {
            "background": None,
            "input": [{"content": [{"type": "input_text", "text": "What?"}], "role": "user", "type": "message"}],
            "instructions": None,
            "temperature": 1.0,
        },
        "response": {
            "id": "resp_1", "created_at": 1.5, "error": None, "incomplete_details": None, "model": "m", "usage": None,
            "object": "response", "output": [{"id": "r", "type": "reasoning", "summary": []}, message],
            "status": "completed",
        },
        "agent_ref": {"name": "simple_agent"},
        **task,
    }  # fmt: skip


class TestNeMoGym:
    @pytest.fixture
    def gym(self) -> Server:
        return Server(adapter_rewards="accuracy,format:0.1&format.require_think=false")

    async def test_what_is_sent_back_is_json_for_everybody(self, gym):
        row = gym_row("<answer>3/4</answer>", expected_answer="0.75") | {"difficulty": math.nan, "seen": [-math.inf]}
        headers = {"Content-Type": "application/json"}
        response = await gym.http.post("/verify", content=json.dumps(row), headers=headers)
        assert response.status_code == 200

        def no_constant(name: str) -> None:
            raise AssertionError(f"{name} is no JSON")

        found = json.loads(response.text, parse_constant=no_constant)
        assert (found["difficulty"], found["seen"], found["reward"]) == (None, [None], 1.1)

    async def test_seed_then_verify_as_its_agent_does(self, gym):
        row = gym_row("<answer>3/4</answer>", expected_answer="0.75", question="What?")
        seeded = await gym.post("/seed_session", {key: row[key] for key in row if key != "response"})
        assert (seeded.status_code, seeded.json()) == (200, {})
        verified = (await gym.post("/verify", row)).json()
        assert verified == row | {"reward": 1.1, "reward_components": {"accuracy": 1.0, "format": 1.0}}

    async def test_the_fields_of_the_task_are_columns(self, gym):
        row = gym_row("<answer>3/4</answer>", solution="0.75", expected_answer="7")
        assert (await gym.post("/verify", row)).json()["reward_components"]["accuracy"] == 1.0
        row = gym_row("<answer>8</answer>", nums=[3, 5], expected_answer="8")
        response = await gym.post("/verify?rewards=countdown", row | {"nums": [8]})
        assert response.json()["reward"] == 1.0
        response = await gym.post("/verify?rewards=accuracy&label=gold", gym_row("<answer>8</answer>", gold="8"))
        assert response.json()["reward"] == 1.0
        kind, message, _ = refused(await gym.post("/verify", gym_row("<answer>8</answer>", gold="8")))
        assert (kind, "needs the column solution" in message) == ("missing_column", True)

    async def test_prompt_and_several_turns(self, gym):
        row = gym_row("one", gold=1)
        row["responses_create_params"]["instructions"] = "Be short."
        turns = [
            row["response"]["output"][1],
            {"type": "function_call", "name": "f", "arguments": "{}", "call_id": "c"},
        ]
        last = turns[0] | {"content": [{"type": "output_text", "text": "two", "annotations": []}]}
        row["response"]["output"] = [*turns, last]
        await gym.post("/verify?rewards=typed", row)
        sample = gym.executor.chunks[-1].samples[0]
        assert sample["completion"] == "one\ntwo"
        assert [(message["role"], message["content"]) for message in sample["prompt"]] == [
            ("system", "Be short."),
            ("user", "What?"),
        ]

    async def test_an_answer_without_text_is_an_empty_completion(self, gym):
        row = gym_row("", expected_answer="1")
        row["response"]["output"] = []
        assert (await gym.post("/verify", row)).json()["reward"] == 0.0

    @pytest.mark.parametrize("response", [{}, {"output": None}, {"output": "<answer>1</answer>"}])
    async def test_a_response_without_output_is_no_empty_completion(self, gym, response):
        row = gym_row("", expected_answer="1") | {"response": response}
        kind, message, _ = refused(await gym.post("/verify", row))
        assert (kind, message[:26]) == ("invalid_value", "response.output is no list")

    async def test_a_body_without_a_response(self, gym):
        row = gym_row("", expected_answer="1")
        del row["response"]
        assert refused(await gym.post("/verify", row))[:2] == ("invalid_value", "response: Field required")


class TestNoScore:
    """These protocols have no null: the request fails and says why, or the URL chooses a number."""

    BODIES = {  # noqa: RUF012
        "/get_reward": {"query": ["3", "none"], "labels": ["1", "2"]},
        "/rm": {"response": "none"},
        "/verify": gym_row("none"),
    }

    @pytest.mark.parametrize("path", BODIES)
    async def test_it_is_never_silently_0(self, server, path, caplog):
        kind, message, hint = refused(await server.post(f"{path}?rewards=misbehave", self.BODIES[path]))
        assert kind == "no_score"
        assert "misbehave is unscorable" in message
        assert "?unscorable=NUMBER" in hint
        assert message in caplog.text  # the peers do not log the body of an error

    def test_what_a_reward_says_is_one_line_of_the_log(self, caplog):
        score = RewardScore(score=None, status="error", detail="ValueError: \x1b[31m\n2026-01-01 ERROR forged")
        result = ScoreResult(id="0", total=None, rewards={"r": score})
        choice = Choice([RewardSpec(name="r")], [], None, {}, {})
        with pytest.raises(Refusal):
            scored(ScoreResponse(results=[result], elapsed_s=0.0), choice)
        (message,) = [record.getMessage() for record in caplog.records]
        assert message.isprintable()

    async def test_the_sample_and_the_detail_are_named(self, server):
        body = {"query": ["<answer>1</answer>"] * 2, "labels": ["1", "?!"]}
        _, message, _ = refused(await server.post("/get_reward?rewards=format,accuracy", body))
        detail = "(the column solution has no answer that can be parsed)"
        assert message == f"no score for samples[1]: accuracy is unscorable {detail}"
        body = {"query": ["raise"] * 5}
        _, message, _ = refused(await server.post("/get_reward?rewards=misbehave", body))
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
        _, message, _ = refused(await server.post("/rm?rewards=format:1e308,accuracy:1e308", body))
        assert message == "no score for samples[0]: the weighted sum of its scores is not finite"


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
        found, text, helpful = refused(await self.score(server, query))
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
        _, message, _ = refused(await self.score(server, "rewards=format&deadline_s=0.05"))
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
            assert refused(response, status)[0]
        assert (await server.http.get(adapter.path)).status_code == 405

    async def test_429_and_metrics(self, adapter):
        server = Server(max_pending_requests=1, adapter_rewards=adapter.example_rewards)
        server.executor.gate.clear()
        running = asyncio.create_task(server.post(adapter.path, adapter.example))
        await server.executor.busy(1)
        response = await server.post(adapter.path, adapter.example)
        assert refused(response, 429)[0] == "busy"
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
        assert (server.executor.cancelled, sent[0]["status"]) == (1, 499)

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


@pytest.mark.parametrize("deep", ["text", "label", "field"])
async def test_columns_that_no_worker_could_read_are_refused(server, deep):
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
