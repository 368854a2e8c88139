"""Groups → numbers: names, denominators, and that null is never 0."""

import math

import numpy as np
import pytest

from grpo_proto import RewardScore
from grpo_trainer.observe.metrics import accuracy, count_tokens, merge_updates, rollout_metrics
from grpo_trainer.samples import Group, PromptRow, Sample

OK = {"countdown": RewardScore(score=1.0, status="ok"), "format": RewardScore(score=1.0, status="ok")}


def make_sample(
    total: float | None = 1.0,
    *,
    length: int = 4,
    finish_reason: str = "stop",
    versions: list[tuple[int, int]] | None = None,
    rewards: dict[str, RewardScore] | None = None,
    advantage: float | None = 0.5,
) -> Sample:
    if rewards is None:
        rewards = {"countdown": RewardScore(score=total, status="ok" if total is not None else "unscorable")}
    return Sample(
        id="s",
        token_ids=[1] * length,
        rollout_logprobs=[-0.1] * length,
        text="text",
        finish_reason=finish_reason,
        versions=[(3, length)] if versions is None else versions,
        rewards=rewards,
        total_reward=total,
        advantage=None if total is None else advantage,
    )


def make_group(*samples: Sample, position: int = 0) -> Group:
    return Group(position, PromptRow(position, [1, 2, 3], "prompt", {}), list(samples))


def metrics_of(*groups: Group, names: tuple[str, ...] = ("countdown",), version: int = 3, **options: int):
    return rollout_metrics(groups, reward_names=names, accuracy_reward="countdown", policy_version=version, **options)


def test_rewards_are_means_and_sample_deviations_over_what_was_scored():
    totals = [1.0, 0.0, 0.25, None]
    metrics = metrics_of(make_group(*[make_sample(total) for total in totals]))
    scored = [1.0, 0.0, 0.25]
    assert metrics["reward"] == pytest.approx(np.mean(scored))
    assert metrics["reward_std"] == pytest.approx(np.std(scored, ddof=1))
    assert metrics["rewards/countdown/mean"] == pytest.approx(np.mean(scored))
    assert metrics["rewards/countdown/std"] == pytest.approx(np.std(scored, ddof=1))
    assert metrics["accuracy"] == pytest.approx(1 / 3)
    assert metrics["samples/used"] == 3
    assert metrics["samples/unscorable"] == 1


def test_a_batch_without_any_score_has_no_reward_instead_of_zero():
    metrics = metrics_of(make_group(make_sample(None), make_sample(None)))
    missing = ["reward", "reward_std", "rewards/countdown/mean", "rewards/countdown/std", "accuracy"]
    assert not {*missing, "frac_reward_zero_std"} & metrics.keys()
    assert metrics["samples/unscorable"] == 2
    assert metrics["samples/used"] == 0


def test_groups_without_a_spread_are_counted_among_groups_that_can_have_one():
    flat = make_group(make_sample(1.0), make_sample(1.0))
    mixed = make_group(make_sample(1.0), make_sample(0.0))
    lone = make_group(make_sample(1.0), make_sample(None))
    assert metrics_of(flat, mixed, lone)["frac_reward_zero_std"] == 0.5


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
    assert metrics["rewards/format/mean"] == 0.75
    assert metrics["rewards/format/num_tags"] == 3.0
    assert "rewards/countdown/std" not in metrics, "one score has no deviation"


def test_lengths_of_all_and_of_those_that_ended_by_themselves():
    metrics = metrics_of(
        make_group(
            make_sample(length=2),
            make_sample(length=6),
            make_sample(length=8, finish_reason="length"),
            make_sample(length=1, finish_reason="abort"),
        )
    )
    assert [metrics[f"completions/{name}_length"] for name in ("mean", "min", "max")] == [4.25, 1, 8]
    assert [metrics[f"completions/{name}_terminated_length"] for name in ("mean", "min", "max")] == [4, 2, 6]
    assert metrics["completions/clipped_ratio"] == 0.25
    assert metrics["samples/aborted"] == 1


def test_without_a_terminated_completion_there_is_no_terminated_length():
    metrics = metrics_of(make_group(make_sample(finish_reason="length")))
    assert not [key for key in metrics if "terminated" in key]
    assert metrics["completions/clipped_ratio"] == 1.0


def test_staleness_is_that_of_the_oldest_token():
    fresh, mixed = make_sample(versions=[(5, 4)]), make_sample(versions=[(3, 1), (4, 3)])
    empty = make_sample(length=0, versions=[], finish_reason="abort")
    metrics = metrics_of(make_group(fresh, mixed, empty), version=5, dropped_stale=8)
    assert (metrics["staleness/mean"], metrics["staleness/max"]) == (1.0, 2)
    assert metrics["samples/dropped_stale"] == 8


def test_nothing_at_all_is_no_error():
    metrics = metrics_of()
    assert set(metrics) == {
        f"samples/{name}" for name in ("used", "dropped_stale", "unscorable", "timeout", "error", "aborted")
    }
    assert accuracy([], "countdown") is None


def test_tokens_count_the_prompt_for_each_completion():
    assert count_tokens([make_group(make_sample(length=2), make_sample(length=5))]) == 3 + 2 + 3 + 5


def test_updates_of_a_step_merge_by_name():
    first = {"loss": 1.0, "clip_ratio/low_min": 0.1, "clip_ratio/high_max": 0.3, "learning_rate": 1e-3, "kl": 0.5}
    second = {"loss": 3.0, "clip_ratio/low_min": 0.2, "clip_ratio/high_max": 0.1, "learning_rate": 5e-4}
    assert merge_updates([first, second]) == {
        "loss": 2.0,
        "clip_ratio/low_min": 0.1,
        "clip_ratio/high_max": 0.3,
        "learning_rate": 5e-4,
        "kl": 0.5,
    }
    assert math.isnan(merge_updates([{"loss": 1.0}, {"loss": math.nan}])["loss"])
    assert merge_updates([]) == {}
