import math
import statistics

import pytest

from grpo_trainer.algorithm.estimators.group_mean import STD_EPSILON, group_mean
from grpo_trainer.config.algorithm import AlgorithmConfig

REWARDS = [[1.0, 0.0, 0.5], [0.2, 0.4, 0.9]]


def test_group_scaling_divides_by_the_unbiased_deviation_of_the_group():
    advantages, _ = group_mean(REWARDS, AlgorithmConfig(scale_rewards="group"))
    for group, found in zip(REWARDS, advantages, strict=True):
        mean, std = statistics.mean(group), statistics.stdev(group)
        assert found == pytest.approx([(reward - mean) / (std + STD_EPSILON) for reward in group])


def test_batch_scaling_divides_by_the_deviation_of_all_rewards_but_subtracts_the_mean_of_the_group():
    advantages, metrics = group_mean(REWARDS, AlgorithmConfig(scale_rewards="batch"))
    std = statistics.stdev([reward for group in REWARDS for reward in group])
    assert advantages[1][2] == pytest.approx((0.9 - 0.5) / (std + STD_EPSILON))
    assert metrics["reward_std"] == pytest.approx(std)


def test_no_scaling_only_subtracts_the_mean():
    assert group_mean(REWARDS, AlgorithmConfig(scale_rewards="none"))[0][0] == pytest.approx([0.5, -0.5, 0.0])


@pytest.mark.parametrize("scale_rewards", ["group", "batch", "none"])
def test_what_has_no_score_changes_nothing_for_the_others(scale_rewards: str):
    with_nulls = [[1.0, None, 0.0, 0.5], [None, 0.2, 0.4, 0.9, None], [None, None]]
    advantages, metrics = group_mean(with_nulls, AlgorithmConfig(scale_rewards=scale_rewards))
    expected, expected_metrics = group_mean(REWARDS, AlgorithmConfig(scale_rewards=scale_rewards))
    assert advantages[0][1] is None
    assert advantages[1][0] is None
    assert advantages[2] == [None, None]
    assert [[a for a in group if a is not None] for group in advantages[:2]] == expected
    assert metrics == expected_metrics


@pytest.mark.parametrize("scale_rewards", ["group", "batch", "none"])
def test_a_single_score_in_a_group_has_advantage_zero(scale_rewards: str):
    advantages, _ = group_mean([[None, 0.7, None], [0.0, 1.0]], AlgorithmConfig(scale_rewards=scale_rewards))
    assert advantages[0] == [None, 0.0, None]


def test_equal_rewards_have_advantage_exactly_zero():
    # The mean of three times 0.1 is not 0.1 in binary.
    advantages, metrics = group_mean([[0.1, 0.1, 0.1], [0.0, 1.0]], AlgorithmConfig(scale_rewards="group"))
    assert advantages[0] == [0.0, 0.0, 0.0]
    assert metrics["frac_reward_zero_std"] == pytest.approx(3 / 5)


def test_a_batch_without_scores_has_no_metrics():
    assert group_mean([[None, None]], AlgorithmConfig(scale_rewards="batch")) == ([[None, None]], {})


def test_advantages_of_a_group_sum_to_zero():
    advantages, _ = group_mean([[0.3, 0.1, 0.7, 1.1, 0.0]], AlgorithmConfig(scale_rewards="group"))
    assert math.fsum(a for a in advantages[0] if a is not None) == pytest.approx(0.0, abs=1e-12)
