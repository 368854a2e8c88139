"""The routes for OpenRLHF, slime and NeMo-Gym: each is called as that peer's own client calls it."""

import json
import math
from typing import Any

import pytest
import torch
from tests.reward.app_server import Server, error_of
from tests.reward.peer_bodies import RIGHT, gym_row


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
            *((f"a{end}", "", "a") for end in ("<|end|>", "<|return|>", "<turn|>", "<|user|>")),
            ("a STOP", "&end=%20STOP", "a"),
            ("a</s>", "&end=", "a</s>"),
        ],
    )
    async def test_one_end_token_is_taken_off(self, server, text, option, completion):
        await server.post(f"/get_reward?rewards=min_length{option}", {"query": [text]})
        assert server.executor.chunks[-1].samples[0]["completion"] == completion

    @pytest.mark.parametrize("begin", ["<s>", "<s> ", " ", "<|begin_of_text|>", "<｜begin▁of▁sentence｜>", "<bos>\n"])
    async def test_what_begins_a_sequence_need_not_stand_in_both(self, server, begin):
        prompt, text = "Answer like <answer>7</answer>.", "<answer>3/4</answer>"
        for query, asked in ((f"{begin}{prompt}{text}", prompt), (f"{prompt}{text}", f"{begin}{prompt}")):
            await server.post("/get_reward?rewards=min_length", {"query": [query], "prompts": [asked]})
            assert server.executor.chunks[-1].samples[0]["completion"] == text

    async def test_a_query_without_its_prompt_stays_whole_and_is_told_once(self, server, caplog, monkeypatch):
        monkeypatch.setattr("grpo_reward.adapters.openrlhf._WARNED", [])
        for _ in range(2):
            await server.post("/get_reward?rewards=min_length", {"query": ["What else"], "prompts": ["Who\n"]})
        assert server.executor.chunks[-1].samples[0]["completion"] == "What else"
        (message,) = [record.getMessage() for record in caplog.records if record.name == "grpo_reward.adapters"]
        assert message.endswith("The query begins with 'What else', the prompt with 'Who\\n'")

    async def test_lists_of_different_lengths(self, server):
        body = {"query": ["a", "b"], "labels": ["1"]}
        kind, message, _ = error_of(await server.post("/get_reward?rewards=accuracy", body))
        assert (kind, message) == ("invalid_value", "labels has 1 entries and query has 2")

    async def test_a_list_of_something_else_than_texts_stops_at_its_first_fault(self, server):
        """Each more is a microsecond in which nobody else gets an answer, and a body has millions of them."""
        for body in ({"query": [1] * 4000}, {"query": ["a"], "prompts": [1] * 100_000}):
            _, message, _ = error_of(await server.post("/get_reward?rewards=accuracy", body))
            assert message.endswith("[0]: must be a string, not 1")

    async def test_an_empty_label_is_none(self, server):
        """What its dataset gives without --data.label_key."""
        kind, message, _ = error_of(await server.post("/get_reward?rewards=accuracy", openrlhf_query("p", "r", "")))
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
        kind, message, _ = error_of(await server.post("/rm?rewards=accuracy&components=1", payload))
        assert (kind, message) == ("invalid_option", "components is '1', not true or false")

    async def test_a_param_that_is_no_unicode_is_text(self, server):
        path = '/rm?rewards=format&format.prefix="\\ud800"'
        answer = await server.post(path, {"prompt": "p", "response": "r", "label": "1"})
        assert (answer.status_code, answer.json()) == (200, 0.0)

    @pytest.mark.parametrize("reward", ["exact_match", "countdown"])
    async def test_a_label_that_would_be_an_object_is_no_text(self, server, reward):
        payload = {"prompt": "p", "response": "r", "label": '{"nums": [1], "target": 1, "solution": "\\ud800"}'}
        kind, message, _ = error_of(await server.post(f"/rm?rewards={reward}", payload))
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
        kind, message, _ = error_of(await server.post("/rm?rewards=countdown", {"response": response, "label": 98}))
        assert kind == "ambiguous_label"
        assert "nums, target are needed" in message

    async def test_messages_of_several_parts_become_text(self, server):
        parts = [{"type": "text", "text": "What is "}, {"type": "image"}, {"type": "text", "text": "this?"}]
        prompt = [{"role": "system", "content": "s"}, {"role": "user", "content": parts}]
        body = {"prompt": prompt, "response": "", "label": {"gold": 1}}
        await server.post("/rm?rewards=typed", body)
        sent = [(message["role"], message["content"]) for message in server.executor.chunks[-1].samples[0]["prompt"]]
        assert sent == [("system", "s"), ("user", "What is this?")]


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
        kind, message, _ = error_of(await gym.post("/verify", gym_row("<answer>8</answer>", gold="8")))
        assert (kind, "needs the column solution" in message) == ("missing_column", True)

    async def test_prompt_and_several_turns(self, gym):
        row = gym_row("one", gold=1)
        row["responses_create_params"]["instructions"] = "Be short."
        turns = [
            row["response"]["output"][1],
            {"type": "function_call", "name": "f", "arguments": '{"x": 1}', "call_id": "c"},
        ]
        last = turns[0] | {"content": [{"type": "output_text", "text": "two", "annotations": []}]}
        row["response"]["output"] = [*turns, last]
        await gym.post("/verify?rewards=typed", row)
        sample = gym.executor.chunks[-1].samples[0]
        call = '<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>'
        assert sample["completion"] == f"one\n{call}\ntwo"
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
        kind, message, _ = error_of(await gym.post("/verify", row))
        assert (kind, message[:26]) == ("invalid_value", "response.output is no list")

    async def test_a_body_without_a_response(self, gym):
        row = gym_row("", expected_answer="1")
        del row["response"]
        assert error_of(await gym.post("/verify", row))[:2] == ("invalid_value", "response: Field required")
