"""KL in the reward: what is subtracted before the advantages, and what then stays out of the loss."""

import pytest
import torch
from pydantic import ValidationError
from tests.trainer.made_episodes import VERSION, make_taken, two_segments

from grpo_trainer.algorithm.batching import micro_batches, parts_of_ranks
from grpo_trainer.algorithm.decisions import training_sequences
from grpo_trainer.algorithm.estimators import estimator_of
from grpo_trainer.algorithm.kl_in_reward import log_ratio_sums, penalize, sequences_to_compare
from grpo_trainer.algorithm.planning import plan_updates
from grpo_trainer.algorithm.prefixes import PrefixSharing
from grpo_trainer.algorithm.sequences import Group
from grpo_trainer.algorithm.skipping import may_skip
from grpo_trainer.config.algorithm import AlgorithmConfig
from grpo_trainer.data.prompt_row import PromptRow
from grpo_trainer.errors import UsageError


def group_of(*totals: float | None) -> Group:
    """Episodes of one turn, and one last of several turns of which one is masked."""
    episodes = [episode for episode, _ in make_taken(len(totals) - 1, seed=1)] + [two_segments()]
    for episode, total in zip(episodes, totals, strict=True):
        episode.total = total
    return Group(0, PromptRow(0, [1], "p", {}), episodes)


@pytest.mark.parametrize("world_size", [1, 2, 5])
@pytest.mark.parametrize("budget", [20, 1000])
@pytest.mark.parametrize("prefixes", [None, PrefixSharing()])
def test_the_penalty_is_of_all_trained_tokens_of_an_episode_however_the_batch_is_cut(
    world_size: int, budget: int, prefixes: PrefixSharing | None
):
    group = group_of(1.0, 0.5, None, 0.0)
    episodes, sequences = sequences_to_compare([group])
    plan = plan_updates(sequences, world_size=world_size, tokens_per_micro_batch=budget, prefixes=prefixes)
    parts, plans = parts_of_ranks(sequences, plan, world_size)
    sums = []
    for part, plan_of_rank in zip(parts, plans, strict=True):
        (batches,) = micro_batches(
            part, plan_of_rank, [0], version=VERSION, pad_token_id=0, device="cpu", prefixes=prefixes
        )
        for batch in batches:
            logprobs_N = -batch.target_N.float() / 64
            sums += log_ratio_sums(batch, logprobs_N, torch.full_like(logprobs_N, -0.25))
    metrics = penalize(episodes, [sequence for part in parts for sequence in part], sums, beta=0.5)

    trained = [
        [
            token
            for segment in episode.segments
            for turn in segment.turns
            if turn.masked is None
            for token in segment.token_ids[turn.start : turn.end]
        ]
        for episode in group.episodes
    ]
    expected = [sum(0.25 - token / 64 for token in tokens) for tokens in trained]
    penalties = [episode.kl_penalty for episode in group.episodes]
    assert penalties == pytest.approx([0.5 * expected[0], 0.5 * expected[1], 0.0, 0.5 * expected[3]])
    count = len(trained[0]) + len(trained[1]) + len(trained[3])
    assert metrics == {"kl": pytest.approx((expected[0] + expected[1] + expected[3]) / count)}


def test_the_advantages_are_of_the_rewards_less_the_penalty_and_the_metrics_of_the_rewards():
    group = group_of(1.0, 1.0, None, 1.0)
    for episode, penalty in zip(group.episodes, (0.1, 0.2, 9.0, 0.6), strict=True):
        episode.kl_penalty = penalty
    algorithm = AlgorithmConfig(scale_rewards="none", beta=0.1, kl_in_reward=True)
    _, metrics = training_sequences([group], algorithm, reward_weights={}, max_completion_length=14)
    assert [episode.advantage for episode in group.episodes] == [
        pytest.approx(0.2), pytest.approx(0.1), None, pytest.approx(-0.3),
    ]  # fmt: skip
    assert metrics == {"reward": 1.0, "reward_std": 0.0, "frac_reward_zero_std": 1.0}


def test_a_batch_without_scores_has_nothing_to_compare():
    assert sequences_to_compare([group_of(None, None)]) == ([], [])
    assert penalize([], [], [], beta=0.1) == {}


def test_the_loss_has_no_kl_term_beside():
    algorithm = AlgorithmConfig(beta=0.1, kl_in_reward=True)
    assert algorithm.beta_of_loss == 0.0
    assert may_skip(algorithm)
    assert not may_skip(AlgorithmConfig(beta=0.1))


def test_a_kl_in_the_reward_needs_a_beta():
    with pytest.raises(ValidationError, match="kl_in_reward subtracts beta · KL from the rewards, and beta is 0"):
        AlgorithmConfig(kl_in_reward=True)


@pytest.mark.parametrize("name", ["gdpo", "maxrl", "real"])
def test_an_estimator_that_a_penalty_on_the_total_does_not_suit_is_refused(name: str):
    with pytest.raises(UsageError, match=f"kl_in_reward subtracts the KL from total rewards, and the estimator {name}"):
        estimator_of(AlgorithmConfig(beta=0.1, kl_in_reward=True, advantage_estimator=name))
