"""Tools and classes written for TRL, played by the trainer's runner: vLLM's tool parser reads what a script samples."""

import json
from pathlib import Path

import pytest

from grpo_trainer.episodes.played import Played
from grpo_trainer.errors import UsageError
from tests.rollout.sessions.marks import IN_PROCESS
from tests.rollout.sessions.scripted_policy import FAMILY, policy

pytestmark = IN_PROCESS

GAMES = Path(__file__).parents[2] / "trainer/episodes/games.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp(FAMILY)


def results(found: Played) -> list[str]:
    return [message["content"] for message in found.episode.transcript if message["role"] == "tool"]


async def test_a_tool_is_called_and_its_failures_are_observations(folder: Path, tmp_path: Path):
    async with policy(folder, tmp_path, tools=[f"{GAMES}:calc"]) as one:
        one.says(("calc", {"expression": "37*52"}), ("calc", {"expression": "1/0"}), ("cook", {}), ("calc", {"x": 1}))
        one.says(text="1924")
        found = await one.plays()
    schema = one.served.script.prompts[0]
    assert "such as 1+2" in one.served.tokenizer.decode(schema)
    assert results(found)[:3] == [
        "1924", "{'error': 'division by zero'}", "{'error': 'Tool cook not found.'}",
    ]  # fmt: skip
    assert "unexpected keyword argument" in results(found)[3]
    assert (found.episode.status, len(found.episode.segments), found.episode.text) == ("completed", 1, "1924")
    assert found.metrics == {"tools/calls": 4.0, "tools/failures": 3.0}
    assert "1924" in one.served.tokenizer.decode(one.served.script.prompts[1])


async def test_a_tool_that_hangs_is_an_observation_and_the_next_call_works(folder: Path, tmp_path: Path):
    async with policy(folder, tmp_path, tools=[f"{GAMES}:calc"], call_timeout_s=1) as one:
        one.says(("calc", {"expression": "wait"}))
        one.says(("calc", {"expression": "2+2"}))
        one.says(text="4")
        found = await one.plays()
    late, right = results(found)
    assert "did not return within 1 s" in late
    assert right == "4"
    assert found.episode.status == "completed"


async def test_an_environment_beside_tools_gets_what_calls_none(folder: Path, tmp_path: Path):
    async with policy(folder, tmp_path, environment=f"{GAMES}:Counting", tools=[f"{GAMES}:calc"]) as one:
        one.says(("calc", {"expression": "37*52"}))
        one.says(text="1924")
        found = await one.plays(steps=1)
    assert results(found) == ["1924"]
    assert [turn.reward for turn in found.episode.turns] == [None, 0.25]
    assert found.episode.rewards["environment"].score == 0.25


@pytest.mark.parametrize("limit", ["max_turns", "max_tokens"])
async def test_an_environment_sees_the_last_message_though_it_calls_a_tool(folder: Path, tmp_path: Path, limit: str):
    """A reward of null would be a place to hide."""
    config = {
        "environment": f"{GAMES}:Listening",
        "tools": [f"{GAMES}:calc"],
        "max_turns": 3 if limit == "max_turns" else 9,
    }
    heard = tmp_path / "heard"
    async with policy(folder, tmp_path, **config) as one:
        one.says(("calc", {"expression": "37*52"}))
        one.says(text="No.", thought="Hm.")
        one.says(("calc", {"expression": "19*24"}), text="Let me see.", thought="Hm.")
        found = await one.plays(max_tokens=4000 if limit == "max_turns" else one.num_said, heard=str(heard))
    assert results(found) == ["1924", "456"]
    assert (found.episode.status, found.episode.cause) == ("truncated", "policy")
    messages = [json.loads(line) for line in heard.read_text().splitlines()]
    assert [message["content"].strip() for message in messages] == ["No.", "Let me see."]
    assert not any(message.get("tool_calls") for message in messages)
    assert [turn.reward for turn in found.episode.turns] == [None, 0.25, 0.25]
    assert found.episode.rewards["environment"].score == 0.5


async def test_an_environment_that_dies_of_the_last_message_is_lost(folder: Path, tmp_path: Path):
    """The server has ended the session for its limit by then."""
    config = {"environment": f"{GAMES}:Counting", "tools": [f"{GAMES}:calc"]}
    async with policy(folder, tmp_path, **config) as one:
        one.says(("calc", {"expression": "37*52"}))
        found = await one.plays(max_tokens=one.num_said, steps=9, dies_at=1)
    assert (found.episode.status, found.episode.cause, found.ending.lost) == ("failed", "infrastructure", "environment")
    assert found.episode.rewards["environment"].status == "error"


@pytest.mark.parametrize("by_name", [False, True])
async def test_a_class_written_for_trl_plays_unchanged(folder: Path, tmp_path: Path, by_name: bool):
    door = f"{GAMES}:Door"
    async with policy(folder, tmp_path, environment_factory={"door": door} if by_name else door) as one:
        one.says(("look", {}), ("enter", {"code": "1234"}), ("_hidden", {}))
        one.says(text="It is open.")
        found = await one.plays(code="1234", colour="red", environment="door")
    assert found.episode.transcript[0]["content"] == "What is 37*52? The code begins with 1."
    assert results(found) == ["a door of red", "open", "{'error': 'Tool _hidden not found.'}"]
    assert found.episode.rewards["Door"].score == 1.0
    tools = one.served.tokenizer.decode(one.served.script.prompts[0])
    assert json.dumps("Try a code.") in tools
    assert "get_reward" not in tools


async def test_a_class_written_for_trl_is_called_as_trl_calls_it(folder: Path, tmp_path: Path):
    """A row without a prompt begins with an empty message, and a class that returns no text adds none to it."""
    async with policy(folder, tmp_path, environment_factory=f"{GAMES}:Door") as one:
        one.says(text="Hm.")
        found = await one.plays(prompt="", colour="red")
    assert found.episode.transcript[0] == {"role": "user", "content": ""}
    assert found.metrics == {"tools/calls": 0.0, "tools/failures": 0.0}, "it had tools, and called none"
    assert found.episode.rewards["Door"].score == 0.0


async def test_functions_written_for_trl_pay_by_the_state_of_the_environment(folder: Path, tmp_path: Path):
    rewards = [f"{GAMES}:num_tries", f"{GAMES}:not_its_task"]
    async with policy(folder, tmp_path, environment_factory=f"{GAMES}:make_door", reward_funcs=rewards) as one:
        one.says(("enter", {"code": "1000"}), ("enter", {"code": "1234"}))
        one.says(text="It is open.", thought="Hm.")
        found = await one.plays(code="1234", colour="red")
    scores = {name: (reward.score, reward.status) for name, reward in found.episode.rewards.items()}
    assert scores == {"make_door": (1.0, "ok"), "num_tries": (2.0, "ok"), "not_its_task": (None, "unscorable")}
    assert one.runner.config.weights == dict.fromkeys(scores, 1.0)


async def test_such_functions_pay_an_environment_of_ours(folder: Path, tmp_path: Path):
    config = {"environment": f"{GAMES}:Counting", "reward_funcs": [f"{GAMES}:steps_played"]}
    async with policy(folder, tmp_path, **config) as one:
        one.says(text="1")
        one.says(text="2")
        found = await one.plays(steps=2)
    assert {name: reward.score for name, reward in found.episode.rewards.items()} == {
        "environment": 0.5,
        "steps_played": 2.0,
    }


async def test_what_such_functions_log_is_kept_and_what_cannot_be_is_named(folder: Path, tmp_path: Path):
    config = {"environment_factory": f"{GAMES}:Door", "reward_funcs": [f"{GAMES}:logging"]}
    async with policy(folder, tmp_path, **config) as one:
        one.says(text="Hm.")
        found = await one.plays(code="1234")
    reward = found.episode.rewards["logging"]
    assert (reward.score, reward.status) == (1.0, "ok")
    assert (reward.log, reward.metrics) == ({"code": "1234", "array": [[0.5, 3.0]]}, {"tries": 1.5})
    assert reward.detail is not None
    assert reward.detail.startswith(
        "metric huge left out: it is nan, not a finite number; "
        "metric colour left out: it is 'red', not a finite number; "
        "log column keys left out: "
    )


async def test_a_last_message_that_only_tools_have_seen_stands_once_in_completions(folder: Path, tmp_path: Path):
    config = {
        "environment": f"{GAMES}:Counting",
        "tools": [f"{GAMES}:calc"],
        "reward_funcs": [f"{GAMES}:logging"],
        "max_turns": 1,
    }
    async with policy(folder, tmp_path, **config) as one:
        one.says(("calc", {"expression": "37*52"}))
        found = await one.plays(steps=9)
    assert {name: reward.score for name, reward in found.episode.rewards.items()} == {
        "environment": 0.25,
        "logging": 1.0,
    }


async def test_a_function_that_cannot_pay_an_episode_is_named(folder: Path, tmp_path: Path):
    with pytest.raises(UsageError, match=r"episodes.reward_funcs: .*:of_tokens takes completion_ids"):
        async with policy(folder, tmp_path, environment_factory=f"{GAMES}:Door", reward_funcs=[f"{GAMES}:of_tokens"]):
            pass
    for name, says in (
        ("of_a_batch", "of_a_batch returned [1.0, 0.0], not a list of one reward"),
        ("hangs", "hangs did not return within 1 s"),
        ("raises", "the reward raises raised KeyError: 'colour' (games.py, line "),
    ):
        config = {"environment_factory": f"{GAMES}:Door", "reward_funcs": [f"{GAMES}:{name}"], "call_timeout_s": 1}
        async with policy(folder, tmp_path, **config) as one:
            one.says(text="Hm.")
            found = await one.plays(colour="red")
        assert found.ending.lost == "environment"
        assert says in str(found.ending.detail)
        assert found.episode.rewards[name].status == "error"
