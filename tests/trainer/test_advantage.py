import math
import statistics
from pathlib import Path

import pytest
import torch
from tests.trainer.importing import as_in_a_new_process

from grpo_trainer.algorithm.estimators import ESTIMATORS, estimator_of
from grpo_trainer.algorithm.estimators.rewards import Rewards, Scores
from grpo_trainer.algorithm.estimators.statistics import STD_EPSILON, reward_metrics
from grpo_trainer.config.algorithm import AlgorithmConfig
from grpo_trainer.errors import UpdateError, UsageError

REWARDS = [[1.0, 0.0, 0.5], [0.2, 0.4, 0.9]]


def advantages_of(
    totals: Scores,
    name: str = "grpo",
    *,
    scale: str | None = None,
    by_name: dict[str, Scores] | None = None,
    weights: dict[str, float] | None = None,
) -> list[list[float | None]]:
    """`totals` is the only reward unless `by_name` and `weights` say otherwise."""
    algorithm = AlgorithmConfig(advantage_estimator=name, scale_rewards=scale)
    return estimator_of(algorithm)(Rewards(totals, by_name or {"all": totals}, weights or {"all": 1.0}), algorithm)


def test_group_scaling_divides_by_the_unbiased_deviation_of_the_group():
    advantages = advantages_of(REWARDS)
    for group, found in zip(REWARDS, advantages, strict=True):
        mean, std = statistics.mean(group), statistics.stdev(group)
        assert found == pytest.approx([(reward - mean) / (std + STD_EPSILON) for reward in group])


def test_batch_scaling_divides_by_the_deviation_of_all_rewards_but_subtracts_the_mean_of_the_group():
    advantages = advantages_of(REWARDS, scale="batch")
    std = statistics.stdev([reward for group in REWARDS for reward in group])
    assert advantages[1][2] == pytest.approx((0.9 - 0.5) / (std + STD_EPSILON))
    assert reward_metrics(REWARDS)["reward_std"] == pytest.approx(std)


def test_no_scaling_only_subtracts_the_mean():
    assert advantages_of(REWARDS, scale="none")[0] == pytest.approx([0.5, -0.5, 0.0])


EACH = [(name, scale) for name, estimator in ESTIMATORS.items() for scale in estimator.scales or ()]


@pytest.mark.parametrize(("name", "scale"), EACH)
def test_what_has_no_score_changes_nothing_for_the_others(name: str, scale: str):
    with_nulls = [[1.0, None, 0.0, 0.5], [None, 0.2, 0.4, 0.9, None], [None, None]]
    advantages = advantages_of(with_nulls, name, scale=scale)
    assert advantages[0][1] is None
    assert advantages[1][0] is None
    assert advantages[2] == [None, None]
    left = [[a for a in group if a is not None] for group in advantages[:2]]
    assert left == [pytest.approx(group) for group in advantages_of(REWARDS, name, scale=scale)]
    assert reward_metrics(with_nulls) == reward_metrics(REWARDS)


@pytest.mark.parametrize(("name", "scale"), EACH)
def test_a_single_score_in_a_group_has_advantage_zero(name: str, scale: str):
    advantages = advantages_of([[None, 0.7, None], [0.0, 1.0]], name, scale=scale)
    if name != "reinforce_plus_plus":  # it needs no others of the group
        assert advantages[0] == [None, pytest.approx(0.0, abs=1e-12), None]


@pytest.mark.parametrize(("name", "scale"), EACH)
def test_an_estimator_that_declares_it_gives_exactly_zero_to_a_group_without_spread(name: str, scale: str):
    # The mean of three times 0.1 is not 0.1 in binary.
    advantages = advantages_of([[0.1, 0.1, 0.1], [0.0, 1.0, 0.3]], name, scale=scale)
    if ESTIMATORS[name].zero_without_spread:
        assert advantages[0] == [0.0, 0.0, 0.0]
    assert advantages[1] != [0.0, 0.0, 0.0]


def test_the_share_without_spread_counts_episodes():
    assert reward_metrics([[0.1, 0.1, 0.1], [0.0, 1.0]])["frac_reward_zero_std"] == pytest.approx(3 / 5)


def test_a_batch_without_scores_has_no_metrics():
    assert advantages_of([[None, None]], scale="batch") == [[None, None]]
    assert reward_metrics([[None, None]]) == {}


def test_advantages_of_a_group_sum_to_zero():
    advantages = advantages_of([[0.3, 0.1, 0.7, 1.1, 0.0]])
    assert math.fsum(a for a in advantages[0] if a is not None) == pytest.approx(0.0, abs=1e-12)


def test_reinforce_plus_plus_normalises_over_the_batch():
    flat = [reward for group in REWARDS for reward in group]
    mean, std = statistics.mean(flat), statistics.stdev(flat)
    found = [a for group in advantages_of(REWARDS, "reinforce_plus_plus") for a in group]
    assert found == pytest.approx([(reward - mean) / (std + STD_EPSILON) for reward in flat])


def test_reinforce_plus_plus_with_baseline_divides_differences_to_the_group_by_their_deviation_over_the_batch():
    differences = [reward - statistics.mean(group) for group in REWARDS for reward in group]
    divisor = statistics.stdev(differences) + STD_EPSILON
    found = [a for group in advantages_of(REWARDS, "reinforce_plus_plus_baseline") for a in group]
    assert found == pytest.approx([difference / divisor for difference in differences])


def test_maxrl_weighs_a_rare_success_most():
    advantages = advantages_of([[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0]], "maxrl")
    assert advantages[0] == pytest.approx([3.0, -1.0, -1.0, -1.0])
    assert advantages[1] == pytest.approx([1 / 3, 1 / 3, 1 / 3, -1.0])
    assert advantages[2] == [0.0, 0.0, 0.0, 0.0]


def test_real_has_the_gradient_of_its_classification_where_nothing_has_been_learnt():
    groups, tau = [[1.0, 0.0, 0.0, 0.5], [1.0, 1.0, 1.0, 0.0], [1.0, 1.0, 1.0, 1.0]], 0.25
    logprobs = [torch.zeros(4, dtype=torch.float64, requires_grad=True) for _ in groups]
    losses = []
    for scores, s in zip(groups, logprobs, strict=True):  # mean log ratios of completions: 0, with a gradient
        is_right = torch.tensor([score > statistics.mean(scores) for score in scores])
        if is_right.any() and not is_right.all():
            losses.append(torch.log1p(torch.exp(-s[is_right] / tau).sum()))
            losses.append(torch.log1p(torch.exp(s[~is_right] / tau).sum()))
    (sum(losses) / len(groups)).backward()
    algorithm = AlgorithmConfig(loss_type="real", advantage_estimator_params={"tau": tau})
    assert (algorithm.surrogate_name, algorithm.normaliser_name) == ("reinforce", "grpo")
    found = estimator_of(algorithm)(Rewards(groups, {"all": groups}, {"all": 1.0}), algorithm)
    for advantages, s in zip(found, logprobs, strict=True):  # the loss of completion i is −A_i · s_i / their number
        gradient = torch.zeros(4) if s.grad is None else s.grad
        assert [-advantage / 12 for advantage in advantages] == pytest.approx(gradient.tolist())


@pytest.mark.parametrize("given", [{"num_iterations": 2}, {"steps_per_generation": 2}, {"max_staleness": 1}])
def test_real_is_for_one_update_of_each_batch(given: dict[str, int]):
    (name,) = given
    with pytest.raises(UsageError, match=f"the estimator real knows nothing of what was learnt.*{name}"):
        estimator_of(AlgorithmConfig(loss_type="real", **given))


@pytest.mark.parametrize("tau", [0.0, -1.0, math.nan, math.inf])
def test_real_refuses_a_temperature_that_cannot_divide_before_anything_is_sampled(tau: float):
    with pytest.raises(UsageError, match="tau"):
        estimator_of(AlgorithmConfig(loss_type="real", advantage_estimator_params={"tau": tau}))


def test_maxrl_refuses_a_reward_below_zero():
    with pytest.raises(UsageError, match=r"maxrl: an episode has the reward -0\.5"):
        advantages_of([[1.0, -0.5]], "maxrl")


def test_pass_at_k_rewards_the_best_by_its_lead_over_the_second():
    totals = [[0.2, 0.9, 0.4], [1.0, 1.0, 0.0], [-0.3, -0.1, None]]
    advantages = advantages_of(totals, "pass_at_k")
    assert advantages == [[0.0, pytest.approx(0.5), 0.0], [0.0, 0.0, 0.0], [0.0, pytest.approx(0.2), None]]
    std = statistics.stdev([0.2, 0.9, 0.4])
    assert advantages_of(totals, "pass_at_k", scale="group")[0][1] == pytest.approx(0.5 / (std + STD_EPSILON))


def test_gdpo_gives_each_reward_the_same_say_whatever_its_scale():
    right, short = [[1.0, 0.0, 0.0]], [[0.0, 3.0, 0.0]]
    weights = {"right": 1.0, "short": 1.0}
    small = advantages_of([[1.0, 3.0, 0.0]], "gdpo", by_name={"right": right, "short": short}, weights=weights)
    short_in_metres = [[0.0, 3000.0, 0.0]]
    large = advantages_of(
        [[1.0, 3000.0, 0.0]], "gdpo", by_name={"right": right, "short": short_in_metres}, weights=weights
    )
    assert small[0] == pytest.approx(large[0], rel=1e-3)
    assert small[0][0] == pytest.approx(small[0][1], rel=1e-3)


def test_gdpo_leaves_out_what_a_reward_could_not_judge_and_whom_nothing_may_judge():
    """The third has no score of one reward; the fourth has no total, because a reward with a weight broke."""
    by_name = {"a": [[1.0, 0.0, None, 5.0]], "b": [[0.0, 0.0, 1.0, None]], "watched": [[9.0, None, 0.0, 7.0]]}
    advantages = advantages_of(
        [[1.0, 0.0, 2.0, None]], "gdpo", by_name=by_name, weights={"a": 1.0, "b": 2.0, "watched": 0.0}
    )
    half, third = math.sqrt(0.5) + STD_EPSILON, math.sqrt(1 / 3) + STD_EPSILON
    sums = [0.5 / half - 2 / 3 / third, -0.5 / half - 2 / 3 / third, 2 * 2 / 3 / third]
    divisor = statistics.stdev(sums) + STD_EPSILON
    assert advantages == [[*(pytest.approx((s - statistics.mean(sums)) / divisor) for s in sums), None]]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"advantage_estimator": "maxrl", "scale_rewards": "group"}, "the estimator maxrl always divides as none"),
        ({"advantage_estimator": "rloo", "scale_rewards": "group"}, "the estimator rloo knows none and batch"),
        ({"advantage_estimator": "rlo"}, "advantage_estimator rlo is unknown; did you mean rloo"),
        ({"advantage_estimator": "gdpo", "dynamic_sampling": True}, "the estimator gdpo trains on them"),
    ],
)
def test_a_name_or_a_setting_that_does_not_fit_the_estimator_is_refused(settings: dict[str, object], message: str):
    with pytest.raises(UsageError, match=message):
        estimator_of(AlgorithmConfig(**settings))


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("return 1 / 0", r"own.py:own raised ZeroDivisionError in line 3: division by zero"),
        ("return None", "own.py:own raised TypeError: 'NoneType' object is not iterable"),
        (
            "yield from [[float('inf'), 0.0], [None]]",
            "returned 1 advantages that are no finite numbers, such as inf",
        ),
        ("return [[0.5]]", "own.py:own returned 1 advantages in 1 groups for 3 totals in 2"),
        ("return [[0.5, 1.0, 2.0], [None]]", "own.py:own returned 4 advantages in 2 groups for 3 totals in 2"),
        (
            "return [[0.5, float('nan')], [None]]",
            "returned 1 advantages that are no finite numbers, such as nan",
        ),
        ("return [[0.5, 'x'], [None]]", "returned 1 advantages that are no finite numbers, such as 'x'"),
    ],
)
def test_an_own_estimator_that_fails_is_named(tmp_path: Path, code: str, message: str):
    (tmp_path / "own.py").write_text(f"\ndef own(rewards, algorithm):\n    {code}\n")
    as_in_a_new_process("own")
    algorithm = AlgorithmConfig(advantage_estimator=f"{tmp_path}/own.py:own")
    with pytest.raises(UpdateError, match=message):
        estimator_of(algorithm)(Rewards([[1.0, 0.0], [None]], {}, {}), algorithm)


def test_what_an_own_estimator_gives_for_no_total_does_not_count(tmp_path: Path):
    """As from a mean by numpy; and it may yield its groups."""
    (tmp_path / "own.py").write_text("def own(rewards, algorithm):\n    yield [0.5, float('nan')]\n")
    as_in_a_new_process("own")
    algorithm = AlgorithmConfig(advantage_estimator=f"{tmp_path}/own.py:own")
    [[first, _]] = estimator_of(algorithm)(Rewards([[1.0, None]], {}, {}), algorithm)
    assert first == 0.5
