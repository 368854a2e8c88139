"""The numbers of `grpo-reward score` against values computed by hand, and against the trainer's."""

import math

import pytest

from grpo_proto import ScoreSample
from grpo_reward.cli.comparison import advantage_changes, agreement, most_different, old_scores
from grpo_reward.cli.rows import Row
from grpo_reward.cli.statistics import advantages, average_ranks, mean, percentile, spearman, std
from grpo_trainer.algorithm.estimators.grpo import grpo
from grpo_trainer.algorithm.estimators.rewards import Rewards
from grpo_trainer.config.algorithm import AlgorithmConfig


def row(number: int, group: str | None = "g", total: float | None = None, **scores: float | None) -> Row:
    sample = ScoreSample(completion=f"text {number}")
    return Row(f"f:{number}", f"line {number}", sample, None, group, scores, total, True, None, False)


def test_mean_and_standard_deviation():
    assert mean([]) is None
    assert mean([0.1, 0.1, 0.1]) == 0.1
    assert std([1.0, 2.0, 3.0, 4.0]) == pytest.approx(math.sqrt(5 / 3))
    assert std([5.0]) == std([]) == std([0.1, 0.1, 0.1]) == 0.0


@pytest.mark.parametrize(
    ("values", "ranks"),
    [
        ([], []),
        ([7.0], [1]),
        ([10.0, 20.0, 20.0, 30.0], [1, 2.5, 2.5, 4]),
        ([3.0, 1.0, 3.0, 3.0, 0.0], [4, 2, 4, 4, 1]),
        ([1.0, 1.0, 1.0], [2, 2, 2]),
    ],
)
def test_equal_values_share_their_ranks(values, ranks):
    assert average_ranks(values) == ranks


@pytest.mark.parametrize(
    ("first", "second", "correlation"),
    [
        ([1, 2, 3], [10, 100, 1000], 1.0),
        ([1, 2, 3], [3, 2, 1], -1.0),
        # 1 − 6·Σd² / (n(n² − 1)) with Σd² = 194 and n = 10
        ([106, 100, 86, 101, 99, 103, 97, 113, 112, 110], [7, 27, 2, 50, 28, 29, 20, 12, 6, 17], 1 - 6 * 194 / 990),
        # Ranks 1 2 3 4 5 and 1 2 3.5 5 3.5: covariance 8, squares 10 and 9.5.
        ([1, 2, 3, 4, 5], [5, 6, 7, 8, 7], 8 / math.sqrt(95)),
        # Ranks 1.5 1.5 3.5 3.5 and 1 3 3 3: covariance 2, squares 4 and 3.
        ([0, 0, 1, 1], [0, 1, 1, 1], 2 / math.sqrt(12)),
    ],
)
def test_rank_correlation_by_hand(first, second, correlation):
    assert spearman(first, second) == pytest.approx(correlation)
    assert spearman(second, first) == pytest.approx(correlation)


@pytest.mark.parametrize(("first", "second"), [([], []), ([1], [2]), ([1, 1], [1, 2]), ([1, 2], [3, 3])])
def test_without_an_order_there_is_no_rank_correlation(first, second):
    assert spearman(first, second) is None


def test_percentile_is_the_nearest_rank():
    values = [float(value) for value in range(100, 0, -1)]
    assert (percentile(values, 0.5), percentile(values, 0.99), percentile([3.0], 0.99)) == (50.0, 99.0, 3.0)


def test_advantages_by_hand():
    # Mean 2/3, standard deviation √(((1/3)² + (1/3)² + (2/3)²) / 2) = √(1/3).
    divisor = math.sqrt(1 / 3) + 1e-4
    expected = [1 / 3 / divisor, -2 / 3 / divisor, None, 1 / 3 / divisor]
    assert advantages([1.0, 0.0, None, 1.0]) == pytest.approx(expected)
    assert advantages([0.3, 0.3]) == [0.0, 0.0]
    assert advantages([None, None]) == [None, None]


@pytest.mark.parametrize("group", [[1.0, 0.0, None, 0.5], [0.1] * 3, [2.0], [None], [-1.0, 1e6, 3.3, 0.1]])
def test_advantages_are_those_of_the_trainer(group):
    assert advantages(group) == grpo(Rewards([group]), AlgorithmConfig())[0]


def test_agreement_leaves_out_what_has_no_score():
    found = agreement([1.0, 0.0, None, 1.0, None], [1.0, 0.5, 0.0, None, None])
    assert found == {
        "pairs": 2,
        "equal": 0.5,
        "mean_difference": 0.25,
        "spearman": 1.0,
        "lost": 1,
        "gained": 1,
        "both_null": 1,
    }
    nothing = agreement([None], [1.0])
    assert (nothing["pairs"], nothing["equal"], nothing["mean_difference"]) == (0, None, None)
    assert agreement([0.3], [0.1 + 0.2])["equal"] == 1.0


def test_only_what_the_file_tells_is_compared():
    rows = [row(1, total=1.0, format=1.0), row(2)]
    new = {"format": [1.0, 1.0], "accuracy": [0.0, 0.0], "total": [1.0, 1.0]}
    assert old_scores(rows, new) == {"format": [1.0, None], "total": [1.0, None]}


def test_samples_that_differ_most_come_first_and_lost_scores_before_them():
    rows = [row(1, a=0.0, b=0.0), row(2, a=0.0, b=0.0), row(3, a=1.0, b=0.0), row(4, a=0.0, b=0.0)]
    new = {"a": [0.5, 0.1, None, 0.0], "b": [0.2, 0.7, 0.0, 0.0]}
    found = most_different(rows, old_scores(rows, new), new, 10)
    assert [(entry["id"], entry["reward"], entry["old"], entry["new"]) for entry in found] == [
        ("line 3", "a", 1.0, None),
        ("line 2", "b", 0.0, 0.7),
        ("line 1", "a", 0.0, 0.5),
    ]
    assert len(most_different(rows, old_scores(rows, new), new, 1)) == 1


def test_changes_of_advantages():
    rows = [row(1, "a"), row(2, "a"), row(3, "b"), row(4, "b"), row(5, "c"), row(6, "c"), row(7, None), row(8, "d")]
    old = [1.0, 0.0, 1.0, 1.0, 0.0, 2.0, 5.0, 1.0]
    new = [0.0, 1.0, 1.0, 0.0, 3.0, 3.0, 6.0, 0.0]
    # a: both signs change; b stops being constant; c becomes it; without a group, or alone in one, nothing changes.
    found = advantage_changes(rows, old, new)
    assert found is not None
    size = 0.5 / (math.sqrt(0.5) + 1e-4)
    two = 1 / (math.sqrt(2) + 1e-4)
    assert found["mean_absolute_change"] == pytest.approx((2 * 2 * size + 2 * size + 2 * two) / 6)
    assert (found["groups"], found["samples"], found["sign_changes"]) == (3, 6, 2 / 6)
    assert (found["became_constant"], found["stopped_being_constant"]) == (1 / 3, 1 / 3)


def test_a_group_that_lost_its_scores_is_not_compared():
    rows = [row(1, "a"), row(2, "a")]
    assert advantage_changes(rows, [0.0, 1.0], [None, 1.0]) is None
