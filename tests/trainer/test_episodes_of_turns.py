"""An episode of several turns where a completion used to be: rewards, logs, pages and the report."""

import json
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from tests.trainer.made_episodes import completion, conversation

from grpo_proto import RewardClient, RewardScore, ScoreRequest, ScoreResponse, ScoreResult
from grpo_reward.cli.rows import read_rows
from grpo_trainer.algorithm.sequences import Group
from grpo_trainer.config.episodes import EpisodesConfig
from grpo_trainer.config.run_config import RewardConfig
from grpo_trainer.data.prompt_row import PromptRow
from grpo_trainer.observe.completions import CompletionLog
from grpo_trainer.observe.live_groups import groups_shown
from grpo_trainer.observe.metrics import length_metrics
from grpo_trainer.observe.report_samples import read_samples
from grpo_trainer.observe.run_files import COMPLETIONS_FILE
from grpo_trainer.sampling.reward import RewardStage

ROW = PromptRow(0, [], "", {"answer": 12})
OK = RewardScore(score=0.5, status="ok")


async def scored(
    group: Group, config: RewardConfig, brought: dict[str, float], optional: frozenset[str] = frozenset()
) -> list[ScoreRequest]:
    """Score `group` with a server that gives 2 for everything; what it was asked."""
    asked: list[ScoreRequest] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(message := ScoreRequest.model_validate_json(request.content))
        found = {spec.name: RewardScore(score=2.0, status="ok") for spec in message.rewards}
        results = [ScoreResult(id=one.id or "", total=2.0, rewards=found) for one in message.samples]
        return httpx.Response(200, text=ScoreResponse(results=results, elapsed_s=0.0).model_dump_json())

    async with RewardClient("http://127.0.0.1:1", transport=httpx.MockTransport(answer)) as client:
        await RewardStage(client, config, brought=brought, optional=optional).score([group], step=1)
    return asked


async def test_a_reward_gets_what_was_said_last_all_sampled_ids_and_the_whole_conversation():
    episode = conversation()
    (asked,) = await scored(Group(0, ROW, [episode]), RewardConfig(reward_funcs=["polite"]), {})
    (sample,) = asked.samples
    assert (sample.completion, sample.completion_token_ids) == ("12", [6, 7, 8, 9, 12, 13])
    assert [message.role for message in sample.messages or []] == ["user", "assistant", "tool", "assistant"]
    assert sample.prompt == (sample.messages or [])[:1]
    assert episode.total == 2.0


async def test_own_rewards_and_the_servers_make_one_total_and_what_is_judged_is_not_asked_for():
    brings, lacks, judged = conversation("a"), conversation("b"), conversation("c")
    failed = replace(conversation("d"), unscored_because=("environment", RewardScore(score=None, status="error")))
    brings.rewards, judged.total = {"environment": OK, "noted": OK}, 7.0
    group = Group(0, ROW, [brings, lacks, judged, failed])
    (asked,) = await scored(group, RewardConfig(reward_funcs=["polite"]), {"environment": 3.0})
    assert [sample.id for sample in asked.samples] == ["a", "b"]
    assert [episode.total for episode in group.episodes] == [3.0 * 0.5 + 2.0, 2.0, 7.0, None]
    assert lacks.rewards["environment"].status == "unscorable"
    assert [episode.correct for episode in group.episodes] == [False, None, None, None]


async def test_a_class_without_a_reward_of_its_own_is_not_missed_beside_another():
    paid, unpaid = conversation("a"), conversation("b")
    paid.rewards = {"by_its_state": OK}
    group = Group(0, ROW, [paid, unpaid])
    weights = {"by_its_state": 1.0, "Game": 1.0}
    assert await scored(group, RewardConfig(reward_funcs=[]), weights, frozenset({"Game"})) == []
    assert (paid.total, paid.rewards.keys()) == (0.5, {"by_its_state"})
    assert (unpaid.total, unpaid.rewards.keys()) == (None, {"by_its_state", "Game"})


async def test_a_scheduler_without_a_total_leaves_accuracy_to_the_rewards_that_it_is_paid_by():
    """As `--multi_turn_scheduler tips --reward_funcs accuracy` is imported, and without a weight."""
    for weights in ({"environment": 0.0}, {}):
        episodes = EpisodesConfig(multi_turn_scheduler="a.py:Tips", reward_weights=weights)
        unpaid, paid = conversation("a"), conversation("b")
        paid.rewards = {"environment": OK}
        config = RewardConfig(reward_funcs=["accuracy"])
        await scored(Group(0, ROW, [unpaid, paid]), config, episodes.weights, episodes.optional_rewards)
        assert (unpaid.total, unpaid.correct, list(unpaid.rewards)) == (2.0, True, ["accuracy"])
        assert (paid.total, paid.correct) == ((2.0, True) if weights else (2.5, False))


async def test_what_only_is_logged_decides_accuracy_where_it_is_named_for_it():
    for name, correct in ((None, True), ("environment", False)):
        episode = conversation("a")
        episode.rewards = {"environment": OK}
        config = RewardConfig(reward_funcs=["polite"], accuracy_reward=name)
        await scored(Group(0, ROW, [episode]), config, {"environment": 0.0})
        assert episode.correct is correct


async def test_without_rewards_of_the_server_nothing_is_asked():
    brings, lacks = conversation("a"), conversation("b")
    brings.rewards = {"environment": replace_score(1.0)}
    group = Group(0, ROW, [brings, lacks])
    assert await scored(group, RewardConfig(reward_funcs=[]), {"environment": 1.0}) == []
    assert [(episode.total, episode.correct) for episode in group.episodes] == [(1.0, True), (None, None)]
    assert lacks.left_out_because(mask_truncated=False) == "unscorable"


async def test_any_reward_of_the_run_may_decide_what_is_correct():
    brought = {"environment": 1.0, "won": 1.0}
    for name, correct in ((None, False), ("won", True), ("polite", True)):
        episode = conversation("a")
        episode.rewards = {"environment": OK, "won": replace_score(1.0)}
        await scored(Group(0, ROW, [episode]), RewardConfig(reward_funcs=["polite"], accuracy_reward=name), brought)
        assert episode.correct is correct


def replace_score(score: float) -> RewardScore:
    return OK.model_copy(update={"score": score})


def test_its_line_has_the_conversation_in_addition_and_is_scored_again_as_it_was(tmp_path: Path):
    plain, episode = completion("p", [1], [-0.1], "hello", "stop", [(3, 1)]), conversation()
    log = CompletionLog(tmp_path / COMPLETIONS_FILE, resumed_step=None, part_mib=1)
    log.write(3, [Group(7, replace(ROW, prompt="say"), [plain]), Group(8, ROW, [episode])])
    log.close()
    first, second = (json.loads(line) for line in (tmp_path / "completions.jsonl").read_text().splitlines())
    added = ["messages", "status", "cause", "attempt", "turns", "forks"]
    assert list(second) == [*first, *added]
    assert second["completion"] == "12"
    assert [(turn["segment"], turn["text"], turn["masked"]) for turn in second["turns"]] == [
        (0, "calc", None), (0, "12", None), (1, "notes", "undelivered"),
    ]  # fmt: skip
    assert second["forks"] == [{"segment": 1, "parent": 0, "at": 2, "reason": "another program"}]
    sample = read_rows(tmp_path / "completions.jsonl")[1].sample
    assert [message.role for message in sample.messages or []] == ["user", "assistant", "tool", "assistant"]
    assert sample.truncated is True
    (of_step,) = read_samples(tmp_path)
    plain_shown, shown = (prompt.best for prompt in of_step.prompts)
    assert (plain_shown.text, plain_shown.episode) == ("hello", None)
    assert shown.episode
    assert [said.role for said in shown.episode.messages] == ["assistant", "tool", "assistant"]
    assert of_step.prompts[1].prompt == "[user]\nWhat is 3*4?"


def test_the_live_page_shows_it_as_a_conversation():
    (shown,) = groups_shown([Group(8, ROW, [conversation()])])
    assert shown["prompt"] == "[user]\nWhat is 3*4?"
    (one,) = shown["completions"]
    assert (one["text"], one["tokens"]) == ("12", 6)
    said = one["episode"]["messages"]
    assert [(each["role"], each["text"]) for each in said] == [("assistant", ""), ("tool", "12"), ("assistant", "12")]
    assert said[0]["calls"] == [{"name": "calc", "arguments": '{"expr": "3*4"}'}]


@pytest.mark.parametrize(("status", "count"), [("completed", 1), ("truncated", 0), ("timeout", 0)])
def test_it_ended_by_itself_when_no_limit_ended_it(status: str, count: int):
    metrics = length_metrics([replace(conversation(), status=status)])  # type: ignore[arg-type]
    assert metrics["completions/mean_length"] == 6
    assert ("completions/mean_terminated_length" in metrics) == bool(count)


def test_an_episode_that_ended_before_its_first_turn_says_nothing():
    episode = replace(conversation(), segments=[])
    assert (episode.text, episode.finish_reason, episode.last_turn) == ("", "error", None)
    assert episode.left_out_because(mask_truncated=False) == "unscorable"
