"""Groups → numbers: names, denominators, and that null is never 0."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.trainer.made_episodes import completion

from grpo_proto import RewardScore, RewardSpec
from grpo_proto.totals import missing_because
from grpo_trainer.algorithm.scores import accuracy, is_correct
from grpo_trainer.algorithm.sequences import DROP_REASONS, Episode, Group
from grpo_trainer.data.prompt_row import PromptRow
from grpo_trainer.observe.live_history import MAX_NEW_STEPS
from grpo_trainer.observe.metrics import count_tokens, merge_updates, rollout_metrics
from grpo_trainer.observe.missing_scores import MissingScores, missing_scores
from grpo_trainer.observe.prometheus import LEARNING, RunMetrics
from grpo_trainer.observe.run_status import RunStatus
from grpo_trainer.observe.stage_clock import STAGES, StageClock

OK = {"countdown": RewardScore(score=1.0, status="ok"), "format": RewardScore(score=1.0, status="ok")}


def make_sample(
    total: float | None = 1.0,
    *,
    length: int = 4,
    finish_reason: str = "stop",
    versions: list[tuple[int, int]] | None = None,
    rewards: dict[str, RewardScore] | None = None,
    advantage: float | None = 0.5,
) -> Episode:
    if rewards is None:
        rewards = {"countdown": RewardScore(score=total, status="ok" if total is not None else "unscorable")}
    sample = completion(
        "s",
        token_ids=[1] * length,
        logprobs=[-0.1] * length,
        text="text",
        finish_reason=finish_reason,
        versions=[(3, length)] if versions is None else versions,
        rewards=rewards,
        total=total,
        unscored_because=missing_because([RewardSpec(name=name) for name in rewards], rewards),
        advantage=None if total is None else advantage,
        prompt=[1, 2, 3],
    )
    sample.correct = is_correct(rewards.get("countdown"))
    return sample


def make_group(*episodes: Episode, position: int = 0) -> Group:
    return Group(position, PromptRow(position, [1, 2, 3], "prompt", {}), list(episodes))


def metrics_of(
    *groups: Group,
    names: tuple[str, ...] = ("countdown",),
    version: int = 3,
    mask_truncated: bool = False,
    **options: Any,
):
    return rollout_metrics(
        groups,
        reward_names=names,
        policy_version=version,
        mask_truncated=mask_truncated,
        **options,
    )


def test_rewards_are_means_and_sample_deviations_over_what_was_scored():
    totals = [1.0, 0.0, 0.25, None]
    metrics = metrics_of(make_group(*[make_sample(total) for total in totals]))
    scored = [1.0, 0.0, 0.25]
    assert metrics["rewards/countdown/mean"] == pytest.approx(np.mean(scored))
    assert metrics["rewards/countdown/std"] == pytest.approx(np.std(scored, ddof=1))
    assert metrics["accuracy"] == pytest.approx(1 / 3)
    assert metrics["samples/used"] == 3
    assert metrics["samples/unscorable"] == 1


def test_a_batch_without_any_score_has_no_reward_instead_of_zero():
    metrics = metrics_of(make_group(make_sample(None), make_sample(None)))
    assert not {"rewards/countdown/mean", "rewards/countdown/std", "accuracy"} & metrics.keys()
    assert metrics["samples/unscorable"] == 2
    assert metrics["samples/used"] == 0


def test_every_status_of_a_sample_is_counted_and_only_scores_enter_means():
    rewards = {
        "countdown": RewardScore(score=None, status="timeout", detail="10 s"),
        "format": RewardScore(score=0.5, status="ok", metrics={"num_tags": 3.0}),
    }
    broken = {"countdown": RewardScore(score=None, status="error"), "format": RewardScore(score=None, status="error")}
    metrics = metrics_of(
        make_group(make_sample(0.5, rewards=rewards), make_sample(None, rewards=broken), make_sample(2.0, rewards=OK)),
        names=("countdown", "format"),
    )
    assert (metrics["samples/timeout"], metrics["samples/error"]) == (1, 1)
    assert metrics["rewards/countdown/mean"] == 1.0
    assert metrics["rewards/countdown/timed_out"] == 1 / 3
    assert metrics["rewards/format/mean"] == 0.75
    assert metrics["rewards/format/num_tags"] == 3.0
    assert "rewards/countdown/std" not in metrics, "one score has no deviation"


def test_numbers_of_a_reward_take_no_place_of_its_scores():
    own = {"countdown": RewardScore(score=0.5, status="ok", metrics={"mean": 42.0, "tests/mean": 120.0, "depth": 3.0})}
    metrics = metrics_of(make_group(make_sample(0.5, rewards=own)))
    assert {name: value for name, value in metrics.items() if name.startswith("rewards/")} == {
        "rewards/countdown/mean": 0.5,
        "rewards/countdown/timed_out": 0.0,
        "rewards/countdown/mean_reported": 42.0,
        "rewards/countdown/tests/mean_reported": 120.0,
        "rewards/countdown/depth": 3.0,
    }


def test_lengths_of_all_and_of_those_that_ended_by_themselves():
    metrics = metrics_of(
        make_group(
            make_sample(length=2),
            make_sample(length=6),
            make_sample(length=8, finish_reason="length"),
            make_sample(length=1, finish_reason="repetition"),
        )
    )
    assert [metrics[f"completions/{name}_length"] for name in ("mean", "min", "max")] == [4.25, 1, 8]
    assert [metrics[f"completions/{name}_terminated_length"] for name in ("mean", "min", "max")] == [4, 2, 6]
    assert metrics["completions/clipped_ratio"] == 0.25


def test_without_a_terminated_completion_there_is_no_terminated_length():
    metrics = metrics_of(make_group(make_sample(finish_reason="length")))
    assert not [key for key in metrics if "terminated" in key]
    assert metrics["completions/clipped_ratio"] == 1.0


def test_staleness_is_that_of_the_oldest_token():
    fresh, mixed = make_sample(versions=[(5, 4)]), make_sample(versions=[(3, 1), (4, 3)])
    empty = make_sample(length=0, versions=[])
    metrics = metrics_of(make_group(fresh, mixed, empty), version=5, dropped_stale=8, dropped_crash=2)
    assert (metrics["staleness/mean"], metrics["staleness/max"]) == (1.0, 2)
    assert (metrics["samples/dropped_stale"], metrics["samples/dropped_crash"]) == (8, 2)


def test_a_sample_is_left_out_once_and_only_without_a_total():
    none, late = RewardScore(score=None, status="unscorable"), RewardScore(score=None, status="timeout")
    broken, fine = RewardScore(score=None, status="error", detail="ValueError"), RewardScore(score=1.0, status="ok")
    samples = [
        make_sample(1.0, rewards={"a": fine, "b": broken}),
        make_sample(1.0, rewards={"a": fine, "b": none}),
        make_sample(None, rewards={"a": none, "b": broken}),
        make_sample(None, rewards={"a": none, "b": late}),
        make_sample(None, rewards={"a": none, "b": none}),
        make_sample(None, rewards={"a": broken, "b": broken}, finish_reason="length"),
        make_sample(1.0, rewards={"a": fine, "b": fine}, finish_reason="length"),
        make_sample(1.0, rewards={"a": fine, "b": fine}, length=0, versions=[]),
    ]
    small = make_group(make_sample(1.0, advantage=None, rewards={"a": fine}), make_sample(None, rewards={"a": broken}))
    turns = small.episodes[0].segments[0].turns
    turns[:] = [replace(turn, masked="dropped") for turn in turns]
    metrics = metrics_of(
        make_group(*samples), names=("a", "b"), mask_truncated=True, dropped_stale=2, too_small=[small]
    )
    assert metrics["samples/used"] == 2
    left_out = {reason: metrics[f"samples/dropped_{reason}"] for reason in DROP_REASONS}
    assert left_out == {
        "stale": 2, "crash": 0, "unscorable": 1, "timeout": 1, "error": 3, "small_group": 1, "truncated": 1, "empty": 1,
    }  # fmt: skip
    assert metrics_of(make_group(*samples), names=("a", "b"))["samples/used"] == 3, "cut-off ones teach unless masked"
    assert (metrics["samples/error"], metrics["samples/unscorable"]) == (4, 4), "samples that lack a score of a reward"


def test_missing_scores_are_told_for_each_reward_with_the_first_reason():
    broken, fine = RewardScore(score=None, status="error", detail="ValueError"), RewardScore(score=1.0, status="ok")
    late = RewardScore(score=None, status="timeout")
    samples = [make_sample(1.0, rewards={"a": fine, "b": score}) for score in (late, broken, broken, fine)]
    assert missing_scores([make_group(*samples)], ["a", "b"]) == [
        MissingScores("b", "error", 2, 4, "ValueError"),
        MissingScores("b", "timeout", 1, 4, None),
    ]
    assert missing_scores([], ["a", "b"]) == []


def test_nothing_at_all_is_no_error():
    metrics = metrics_of()
    named = {f"samples/{name}" for name in ("used", "unscorable", "timeout", "error")}
    assert set(metrics) == named | {f"samples/dropped_{reason}" for reason in DROP_REASONS}
    assert accuracy([]) is None


def test_tokens_count_the_prompt_for_each_completion():
    assert count_tokens([make_group(make_sample(length=2), make_sample(length=5))]) == 3 + 2 + 3 + 5


def test_updates_of_a_step_merge_by_name():
    first = {"loss": 1.0, "clip_ratio/low_min": 0.1, "clip_ratio/high_max": 0.3, "learning_rate": 1e-3, "kl": 0.5}
    second = {"loss": 3.0, "clip_ratio/low_min": 0.2, "clip_ratio/high_max": 0.1, "learning_rate": 5e-4}
    first["entropy_coef"], second["entropy_coef"] = 0.01, 0.03
    assert merge_updates([first, second]) == {
        "loss": 2.0,
        "clip_ratio/low_min": 0.1,
        "clip_ratio/high_max": 0.3,
        "learning_rate": 5e-4,
        "kl": 0.5,
        "entropy_coef": 0.03,
    }
    assert math.isnan(merge_updates([{"loss": 1.0}, {"loss": math.nan}])["loss"])
    assert merge_updates([]) == {}


def scraped(metrics: RunMetrics) -> dict[tuple[str, ...], float]:
    return {
        (sample.name.removeprefix("grpo_trainer_"), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(metrics.text().decode())
        for sample in family.samples
    }


class TestWhatPrometheusSees:
    @pytest.fixture
    def status(self) -> RunStatus:
        return RunStatus("demo", max_steps=1000, heartbeat_bound_s=60.0)

    def test_counters_begin_at_zero(self, status: RunStatus):
        """Of a series that begins at 80 the first 80 are not seen."""
        shown = scraped(RunMetrics(status))
        assert {key[1] for key in shown if key[0] == "samples_dropped_total"} == set(DROP_REASONS)
        assert {key[1] for key in shown if key[0] == "stage_seconds_total"} == set(STAGES)
        assert not any(value for key, value in shown.items() if key[0].endswith("_total"))

    def test_stage_seconds_are_of_this_process_also_when_the_run_is_resumed(self, status: RunStatus):
        """From an older checkpoint those of the whole run go back, and rate() sees all of them at once."""
        metrics, times = RunMetrics(status), iter([0.0, 1.0, 4.0, 5.0])
        status.know_run(max_steps=1000, step=5)
        assert scraped(metrics)["stage_seconds_total", "train"] == 0.0
        clock = StageClock(earlier_totals={"train": 600.0}, now=lambda: next(times))
        with clock.stage("train"):
            pass
        clock.end_step()
        assert clock.totals() == {"train": 603.0}
        status.step_done(6, {}, seconds_per_stage=clock.own_totals())
        assert scraped(metrics)["stage_seconds_total", "train"] == 3.0

    def test_what_a_run_is_steered_by_is_that_of_the_last_step(self, status: RunStatus):
        metrics = RunMetrics(status)
        gauges = {name for name, _ in LEARNING.values()}
        assert not gauges & {key[0] for key in scraped(metrics)}, "what was not measured is absent, not 0"
        first = {name: 0.5 + position for position, name in enumerate(LEARNING)}
        status.step_done(
            1, {**first, "rewards/countdown/mean": 0.25, "rewards/countdown/std": 9.0}, seconds_per_stage={}
        )
        shown = scraped(metrics)
        assert {name: shown[gauge,] for name, (gauge, _) in LEARNING.items()} == first
        assert {key[1:]: value for key, value in shown.items() if key[0] == "reward_component"} == {
            ("countdown",): 0.25
        }
        status.step_done(2, {"entropy": 0.125}, seconds_per_stage={})
        shown = scraped(metrics)
        assert shown["entropy_nats",] == 0.125
        left = gauges & {key[0] for key in shown}
        assert left == {"entropy_nats", "evaluation_accuracy", "evaluation_greedy_accuracy"}, "evaluations are rarer"
        assert not [key for key in shown if key[0] == "reward_component"]

    def test_a_scrape_after_very_many_steps_has_the_last_one(self, status: RunStatus):
        metrics = RunMetrics(status)
        for step in range(1, 3 * MAX_NEW_STEPS):
            unmeasured = {"kl": 0.5} if step == 1 else {}
            status.step_done(step, {"entropy": float(step), "eval_accuracy": 0.5, **unmeasured}, seconds_per_stage={})
        shown = scraped(metrics)
        assert ("kl_nats",) not in shown
        assert (shown["entropy_nats",], shown["evaluation_accuracy",]) == (3 * MAX_NEW_STEPS - 1, 0.5)
        status.step_done(3 * MAX_NEW_STEPS, {"entropy": 0.25}, seconds_per_stage={})
        assert scraped(metrics)["entropy_nats",] == 0.25
