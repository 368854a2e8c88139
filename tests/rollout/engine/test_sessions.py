"""Sessions over a real engine, with a ChatML template: turns by messages and token ids, chat completions, weights."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from string import ascii_lowercase
from typing import Any

import httpx
import pytest

from grpo_proto.messages.weights import AbortRequest
from tests.rollout.conftest import Server
from tests.rollout.pushing import manifest_of
from tests.rollout.sessions.opened import Opened, opened
from tests.tiny_model import make_tokenizer
from tests.waiting import PATIENCE_S

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900), pytest.mark.xdist_group("engine")]

TOKENIZER = make_tokenizer()
HELLO = {"role": "user", "content": "Hello"}
AGAIN = {"role": "user", "content": "Again"}
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}


def rendered(*messages: dict[str, str]) -> list[int]:
    ids: list[int] = TOKENIZER.apply_chat_template(list(messages), add_generation_prompt=True, return_dict=False)
    return ids


def following(content: str) -> list[int]:
    """The ids behind a turn that was cut, by hand."""
    text = f"<|im_end|>\n<|im_start|>user\n{content}<|im_end|>\n<|im_start|>assistant\n"
    ids: list[int] = TOKENIZER.encode(text, add_special_tokens=False)
    return ids


async def test_turns_by_messages_go_on_from_the_sampled_ids(fresh: Server):
    async with opened(fresh) as session:
        first = await session.generate(messages=[HELLO])
        second = await session.generate(parent=first["turn"], messages=[AGAIN])
        (segment,) = (await session.trajectory())["segments"]
    by_hand = rendered(HELLO) + first["token_ids"] + following("Again") + second["token_ids"]
    assert segment["token_ids"] == by_hand
    assert segment["logprobs"] == first["logprobs"] + second["logprobs"]
    assert [turn["text"] for turn in segment["turns"]] == [first["text"], second["text"]]


async def test_a_prompt_of_token_ids_goes_on_from_the_turn_it_begins_with(fresh: Server):
    async with opened(fresh) as session:
        first = await session.generate(token_ids=[5, 6, 7])
        prompt = [5, 6, 7, *first["token_ids"], 8, 9]
        second = await session.generate(token_ids=prompt)
        third = await session.generate(token_ids=[5, 6, 8])
        segments = (await session.trajectory())["segments"]
    assert (first["segment"], second["segment"], third["segment"]) == (0, 0, 1)
    assert segments[0]["token_ids"] == prompt + second["token_ids"]
    assert (segments[1]["fork_reason"], segments[1]["parent"]) == ("other_prompt", None)


async def test_the_same_seed_gives_the_same_episode(fresh: Server):
    answers = []
    for _ in range(2):
        async with opened(fresh, seed=5) as session:
            first = await session.generate(messages=[HELLO])
            sibling = await session.generate(messages=[HELLO])
            second = await session.generate(parent=first["turn"], messages=[AGAIN])
            answers.append([turn["token_ids"] for turn in (first, sibling, second)])
    assert answers[0] == answers[1]
    assert answers[0][0] != answers[0][1]


async def test_a_chat_goes_on_in_the_same_segment_and_is_vllm_s_answer(fresh: Server):
    async with opened(fresh) as session:
        first = (await session.chat(HELLO, temperature=0.1, max_tokens=7)).json()
        said = first["choices"][0]["message"]
        second = (await session.chat(HELLO, {"role": "assistant", "content": said["content"]}, AGAIN)).json()
        trajectory = await session.trajectory()
    (segment,) = trajectory["segments"]
    assert (first["model"], first["usage"]["completion_tokens"], first["choices"][0]["finish_reason"]) == (
        "mine", 7, "length",
    )  # fmt: skip
    assert [turn["end"] - turn["start"] for turn in segment["turns"]] == [7, 12]
    assert second["usage"]["prompt_tokens"] == segment["turns"][1]["start"]
    assert segment["turns"][0]["label"] == "mine"
    assert [turn["masked"] for turn in segment["turns"]] == [None, None]
    assert trajectory["stats"]["overruled"] == 1
    assert [message["role"] for message in segment["messages"]] == ["user", "assistant", "user", "assistant"]


async def test_a_stream_is_the_recorded_message(fresh: Server):
    async with opened(fresh) as session:
        answer = await session.chat(HELLO, stream=True, stream_options={"include_usage": True})
        (segment,) = (await session.trajectory())["segments"]
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    assert lines.pop() == "[DONE]"
    chunks = [json.loads(line) for line in lines]
    text = "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])
    assert text == segment["turns"][0]["text"]
    assert chunks[-1]["usage"]["completion_tokens"] == 12
    assert segment["turns"][0]["masked"] is None


async def test_a_retry_gets_the_recorded_answer_and_another_request_a_sibling(fresh: Server):
    async with opened(fresh) as session:
        first, retried = [(await session.chat(HELLO, retry=retry)).json() for retry in (0, 1)]
        sibling = (await session.chat(HELLO)).json()
        trajectory = await session.trajectory()
    texts = [answer["choices"][0]["message"]["content"] for answer in (first, retried, sibling)]
    assert texts[0] == texts[1]
    assert texts[2] != texts[0]
    assert trajectory["stats"]["turns"] == 2
    assert trajectory["segments"][1]["fork_reason"] == "branch"


async def gone_client(session: Opened) -> None:
    """A client that goes away after its turn has begun; the session's weights are not there yet."""
    gone = asyncio.create_task(session.chat(HELLO))
    await session.until(lambda stats: stats["turns"] == 1)
    assert not gone.done()
    gone.cancel()
    await asyncio.wait((gone,))


async def test_a_client_that_goes_away_leaves_an_answer_that_a_retry_gets(fresh: Server):
    async with fresh.trainer() as trainer:
        await trainer.join(take_over=True)
        async with opened(fresh, weights_session=trainer.session) as session:
            await gone_client(session)
            retrying = asyncio.create_task(session.chat(HELLO, retry=1))
            await trainer.push(fresh.model(1), 1)
            retried = (await retrying).json()
            trajectory = await session.trajectory()
    assert retried["usage"]["completion_tokens"] == trajectory["stats"]["sampled"]
    assert (trajectory["stats"]["turns"], trajectory["stats"]["masked"]) == (1, {})


async def test_an_answer_that_nobody_fetched_is_masked(fresh: Server):
    async with fresh.trainer() as trainer:
        await trainer.join(take_over=True)
        async with opened(fresh, weights_session=trainer.session) as session:
            await gone_client(session)
            await trainer.push(fresh.model(1), 1)
            stats = await session.until(lambda stats: stats["sampled"] > 0)
    assert stats["masked"] == {"undelivered": stats["sampled"]}


def many(ask: Callable[..., Coroutine[Any, Any, Any]]) -> list[asyncio.Task[Any]]:
    """Ask for a dozen turns at once, some of them long: a push shall come in the middle of one."""
    return [asyncio.create_task(ask({"role": "user", "content": letter})) for letter in ascii_lowercase[:12]]


async def turns_of(session: Opened) -> list[dict[str, Any]]:
    return [turn for segment in (await session.trajectory())["segments"] for turn in segment["turns"]]


def versions(turn: dict[str, Any]) -> list[int]:
    return [version for version, _ in turn["versions"]]


async def num_prompt_tokens(server: Server) -> float:
    """Tokens of all prompts of which a token has been sampled."""
    async with httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=30.0) as http:
        lines = (await http.get("/metrics")).text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("vllm:prompt_tokens_total"))


async def until_another_runs(server: Server, before: float) -> None:
    """Wait until a prompt is running that was not at `before`."""
    async with asyncio.timeout(30.0):
        while await num_prompt_tokens(server) == before:  # noqa: ASYNC110 - another process counts
            await asyncio.sleep(0.01)


async def test_requests_wait_while_weights_load_and_each_token_has_its_version(fresh: Server):
    async with fresh.trainer() as trainer:
        await trainer.join(take_over=True)
        await trainer.push(fresh.model(1), 1)
        async with opened(
            fresh, weights_session=trainer.session, min_version=2, sampling={"max_tokens": 300}
        ) as session:
            waiting = many(lambda message: session.generate(messages=[message]))
            await asyncio.sleep(0.5)
            assert not any(task.done() for task in waiting)
            second, third = fresh.model(2), fresh.model(3)
            before = await num_prompt_tokens(fresh)
            with fresh.slow():
                await trainer.push(second, 2)
                await until_another_runs(fresh, before)
                await trainer.push(third, 3)
            answered = await asyncio.gather(*waiting)
            recorded = await turns_of(session)
    assert sorted(turn["versions"] for turn in answered) == sorted(turn["versions"] for turn in recorded)
    assert [2, 3] in map(versions, answered)
    assert all(versions(turn) in ([2], [2, 3], [3]) for turn in answered)


async def test_a_turn_that_a_failed_push_aborts_goes_on_under_the_next_weights(fresh: Server):
    async with fresh.trainer() as trainer:
        await trainer.join(take_over=True)
        await trainer.push(fresh.model(1), 7)
        async with opened(fresh, sampling={"max_tokens": 300}) as session:
            manifest = manifest_of(fresh.model(2))
            before = await num_prompt_tokens(fresh)
            with fresh.slow():
                asked = many(session.chat)
                await until_another_runs(fresh, before)
                await trainer.begin(8, manifest)
            await trainer.clients[0].abort(AbortRequest(session=trainer.session, reason="the loss is NaN"))
            await asyncio.sleep(0.5)
            waiting = [task for task in asked if not task.done()]
            assert waiting
            await fresh.heal()
            answers = [answer.json()["choices"][0]["finish_reason"] for answer in await asyncio.gather(*asked)]
            turns = await turns_of(session)
    assert [7, 1] in map(versions, turns)
    assert len([turn for turn in turns if versions(turn) != [7]]) == len(waiting)
    assert sorted(answers) == sorted(turn["finish_reason"] for turn in turns)
    assert "abort" not in answers


async def test_another_trainer_ends_the_sessions_of_the_one_before(fresh: Server):
    async with fresh.trainer() as trainer:
        await trainer.join(take_over=True)
        await trainer.push(fresh.model(1), 1)
        async with opened(fresh, weights_session=trainer.session) as session:
            await fresh.heal()
            refused = await session.chat(HELLO)
            state = (await session.trajectory())["status"]
    assert (refused.status_code, refused.headers["x-should-retry"]) == (410, "false")
    assert refused.json()["error"]["code"] == "session_gone"
    assert state == "failed"


@pytest.mark.parametrize(
    ("limits", "detail"),
    [
        ({"max_turns": 1}, "max_turns 1 is reached"),
        ({"max_sampled_tokens": 12}, "max_sampled_tokens 12 is reached"),
        ({"max_segments": 1}, "max_segments 1 is reached"),
    ],
)
async def test_a_limit_ends_the_session_as_the_policys_doing(fresh: Server, limits: dict[str, int], detail: str):
    async with opened(fresh, limits=limits) as session:
        assert (await session.chat(HELLO)).status_code == 200
        refused = await session.chat(AGAIN)
        again = await session.chat(AGAIN)
        closed = (await session.control("close", {"status": "completed"})).json()
    for answer in (refused, again):
        assert (answer.status_code, answer.headers["x-should-retry"]) == (400, "false")
        assert detail in answer.json()["error"]["message"]
    assert (closed["status"], closed["cause"], closed["detail"]) == ("truncated", "policy", detail)


async def test_a_full_context_is_told_as_agents_know_it_and_the_session_goes_on(fresh: Server):
    async with opened(fresh, limits={"max_context_tokens": 64}) as session:
        refused = await session.chat({"role": "user", "content": "x" * 100})
        assert (await session.chat(HELLO)).status_code == 200
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")


async def test_idle_time_and_the_deadline_end_a_session_as_the_policys_doing(fresh: Server):
    for limits, detail in (({"idle_s": 0.5}, "no request for idle_s 0.5"), ({"deadline_s": 0.5}, "deadline_s 0.5")):
        async with opened(fresh, limits=limits) as session:
            await asyncio.sleep(1.2)
            found = await session.trajectory()
            refused = await session.chat(HELLO)
        assert (found["status"], found["cause"]) == ("truncated", "policy")
        assert (refused.status_code, refused.headers["x-should-retry"]) == (400, "false")
        assert detail in refused.json()["error"]["message"]


async def test_a_turn_that_the_limit_of_sampled_tokens_cuts_is_answered_and_ends_the_session(fresh: Server):
    async with opened(fresh, limits={"max_sampled_tokens": 5}) as session:
        answer = (await session.chat(HELLO)).json()
        closed = (await session.control("close", {"status": "completed"})).json()
        stats = (await session.trajectory())["stats"]
    assert (answer["choices"][0]["finish_reason"], answer["usage"]["completion_tokens"]) == ("length", 5)
    assert (closed["status"], closed["cause"], stats["masked"]) == ("truncated", "policy", {})


async def test_keys_open_their_routes_alone_without_a_token_of_the_server_too(fresh: Server):
    async with opened(fresh) as session:
        assert (await session.chat(HELLO, key="control_key")).status_code == 403
        assert (await session.control("reward", {"name": "r", "value": 1.0}, key="api_key")).status_code == 403
        assert (await session.control("trajectory", Authorization="Bearer wrong")).status_code == 401
        url = f"{session.answer['openai_base_url']}/models"
        for headers in ({"x-api-key": session.answer["api_key"]}, {"api-key": session.answer["api_key"]}):
            assert (await session.http.get(url, headers=headers)).status_code == 200
        assert (await session.http.get(url)).status_code == 401


async def test_rewards_a_newer_session_and_deletion(fresh: Server):
    async with opened(fresh, session_id="mine") as old, opened(fresh, session_id="mine") as session:
        assert (await old.control("trajectory")).status_code == 401
        turn = await session.generate(messages=[HELLO])
        for body in ({"value": 0.5}, {"value": 1.0}, {"value": None, "turn": turn["turn"]}):
            assert (await session.control("reward", {"name": "won", **body})).status_code == 200
        unknown = await session.control("reward", {"name": "won", "value": 1.0, "turn": 9})
        found = await session.trajectory()
        headers = {"Authorization": f"Bearer {session.answer['control_key']}"}
        deleted = await session.http.delete(session.path, headers=headers)
        gone = await session.control("trajectory")
    assert (unknown.status_code, unknown.json()["error"]["type"]) == (422, "unknown_turn")
    assert (found["rewards"], found["segments"][0]["turns"][0]["reward"]) == ({"won": 1.0}, {"won": None})
    assert (deleted.status_code, gone.status_code) == (200, 410)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"n": 2}, "n is 2"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "the role 'robot'"),
        ({"messages": [HELLO, {"role": "tool", "tool_call_id": "c", "content": "r"}]}, "which nobody made"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "send text and images"),
        ({"messages": [{"role": "user", "content": [PICTURE]}]}, "the messages show 1 images; this server takes 0"),
        ({"messages": []}, "an empty one"),
        ({"tools": [{"type": "web_search"}]}, "tools other than functions"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"stop": 3}, "stop is neither"),
    ],
)
async def test_what_would_be_lost_is_refused_in_openai_s_form(fresh: Server, body: dict[str, Any], says: str):
    async with opened(fresh) as session:
        refused = await session.chat(HELLO, **body)
        assert (await session.trajectory())["stats"]["turns"] == 0
    assert refused.status_code == 400
    assert says in refused.json()["error"]["message"]


async def test_what_a_program_asks_of_sampling_changes_nothing(fresh: Server):
    answers = []
    asked = {"temperature": 0.0, "seed": 9, "logprobs": True, "top_logprobs": 2, "use_beam_search": True,
             "kv_transfer_params": {"prompt_token_ids": [5]}, "response_format": {"type": "json_object"},
             "chat_template": "x", "ignore_eos": True, "tool_choice": None}  # fmt: skip
    for body in ({}, asked):
        async with opened(fresh, seed=3) as session:
            answer = await session.chat(HELLO, **body)
            assert answer.status_code == 200, answer.text
            answers.append(answer.json()["choices"][0]["message"]["content"])
            overruled = (await session.trajectory())["stats"]["overruled"]
    assert answers[0] == answers[1]
    assert overruled == len(asked) - 1


async def test_every_turn_is_sampled_by_the_settings_of_its_session(fresh: Server):
    letter = make_tokenizer().convert_tokens_to_ids("q")
    async with opened(fresh, sampling={"max_tokens": 12, "min_tokens": 9, "logit_bias": {letter: 100.0}}) as session:
        answer = await session.chat(HELLO)
    assert answer.json()["choices"][0]["message"]["content"] == "q" * 12
    async with httpx.AsyncClient(base_url=fresh.url, trust_env=False, timeout=PATIENCE_S) as http:
        refused = await http.post("/v1/sessions", json={"sampling": {"logit_bias": {"5000": 1.0}}})
    assert (refused.status_code, refused.json()["error"]["type"]) == (422, "unknown_token")


async def test_info_names_what_the_probe_found(fresh: Server):
    async with opened(fresh) as session:
        found = (await session.http.get("/info")).json()["sessions"]
    assert found["open"] >= 1
    assert (found["tool_parser"], found["template"]["usable"], found["template"]["end_token"]) == (
        "hermes", True, "<|im_end|>",
    )  # fmt: skip
