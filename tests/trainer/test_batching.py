import random

import pytest
import torch
from tests.trainer.made_episodes import (
    VERSION,
    build_updates,
    decided,
    make_sequences,
    make_taken,
    one_completion,
    two_segments,
)

from grpo_trainer.algorithm.batching import collate
from grpo_trainer.algorithm.planning import Plan, plan_updates
from grpo_trainer.algorithm.sequences import MicroBatch, TrainingSequence
from grpo_trainer.config.algorithm import AlgorithmConfig


def members(update: list[list[list[int]]]) -> list[int]:
    return [i for micro_batches in update for indices in micro_batches for i in indices]


def random_plan(seed: int) -> tuple[list[TrainingSequence], Plan, int, int]:
    rng = random.Random(seed)
    algorithm = AlgorithmConfig(steps_per_generation=rng.randint(1, 4))
    sequences = make_sequences(rng.randint(1, 40), algorithm, seed=seed)
    world_size, budget = rng.randint(1, 4), rng.choice([8, 40, 100, 10_000])
    plan = plan_updates(sequences, world_size=world_size, tokens_per_micro_batch=budget)
    return sequences, plan, world_size, budget


@pytest.mark.parametrize("seed", range(25))
def test_a_plan_has_every_sample_once_and_keeps_all_ranks_together(seed: int):
    sequences, plan, world_size, budget = random_plan(seed)
    assert sorted(i for update in plan for i in members(update)) == list(range(len(sequences)))
    for update in plan:
        assert members(update), "an update without sequences would still move the weights"
        assert len(update) == world_size
        assert len({len(micro_batches) for micro_batches in update}) == 1
        for indices in (indices for micro_batches in update for indices in micro_batches if indices):
            padded = len(indices) * max(sequences[i].num_tokens for i in indices)
            assert padded <= budget or len(indices) == 1


def test_updates_are_consecutive_slices_of_nearly_equal_size():
    sequences = make_sequences(11, AlgorithmConfig(steps_per_generation=3))
    plan = plan_updates(sequences, world_size=2, tokens_per_micro_batch=50)
    slices = [sorted(members(update)) for update in plan]
    assert [i for indices in slices for i in indices] == list(range(11))
    assert {len(indices) for indices in slices} == {3, 4}


def test_fewer_sequences_than_updates_make_fewer_updates_and_none_make_none():
    sequences = make_sequences(2, AlgorithmConfig(steps_per_generation=4))
    plan = plan_updates(sequences, world_size=1, tokens_per_micro_batch=50)
    assert len(plan) == 2
    assert plan_updates([], world_size=1, tokens_per_micro_batch=50) == []


def test_a_plan_is_the_same_every_time_and_work_is_spread_evenly():
    sequences = make_sequences(64, seed=3)
    plans = [plan_updates(sequences, world_size=2, tokens_per_micro_batch=100) for _ in range(2)]
    assert plans[0] == plans[1]
    loads = [sum(sequences[i].num_tokens for indices in rank for i in indices) for rank in plans[0][0]]
    assert max(loads) <= 1.02 * min(loads)


def test_a_sample_longer_than_the_budget_has_a_micro_batch_of_its_own():
    plan = plan_updates(make_sequences(5), world_size=1, tokens_per_micro_batch=1)
    assert sorted(plan[0][0]) == [[0], [1], [2], [3], [4]]


def test_short_rows_are_not_padded_to_long_ones_when_the_micro_batch_is_full_enough():
    lengths = [100] * 4 + [10] * 40
    sequences = decided([taken for length in lengths for taken in one_completion([5], [6] * (length - 1))])
    ((micro_batches,),) = plan_updates(sequences, world_size=1, tokens_per_micro_batch=1600)
    assert micro_batches == [list(range(4)), list(range(4, 44))]


def test_a_rank_without_sequences_gets_empty_micro_batches():
    plan = plan_updates(make_sequences(1), world_size=3, tokens_per_micro_batch=100)
    assert plan == [[[[0]], [[]], [[]]]]


def put_together(sequences: list[TrainingSequence], *, update_tokens: int = 1, pad_token_id: int = 0) -> MicroBatch:
    return collate(sequences, version=VERSION, update_tokens=update_tokens, pad_token_id=pad_token_id, device="cpu")


def test_collate_finds_every_trained_token():
    taken = make_taken(6, seed=2, stale_share=0.5)
    sequences = decided(taken, AlgorithmConfig(loss_type="grpo"))
    indices = [4, 0, 2]
    batch = put_together([sequences[i] for i in indices], update_tokens=99, pad_token_id=7)
    chosen = [taken[i] for i in indices]
    sampled = [episode.sampled_token_ids for episode, _ in chosen]
    assert batch.target_N.tolist() == [token for ids in sampled for token in ids]
    spread = lambda values: [value for value, ids in zip(values, sampled, strict=True) for _ in ids]  # noqa: E731
    torch.testing.assert_close(batch.advantage_N, torch.tensor(spread([advantage for _, advantage in chosen])))
    torch.testing.assert_close(batch.weight_N, torch.tensor(spread([1 / 6 / len(ids) for ids in sampled])))
    assert batch.fresh_N.tolist() == spread([episode.oldest_version == VERSION for episode, _ in chosen])
    assert batch.episode_N.tolist() == spread([0, 1, 2])
    logprobs = [x for episode, _ in chosen for x in episode.segments[0].logprobs or []]
    torch.testing.assert_close(batch.rollout_logprobs_N, torch.tensor(logprobs))
    assert (batch.update_tokens, batch.num_episodes) == (99, 3)
    for row, (episode, _) in zip(batch.input_ids_BL.tolist(), chosen, strict=True):
        assert row == episode.segments[0].token_ids + [7] * (len(row) - episode.num_tokens)


def test_an_empty_micro_batch_is_one_row_of_padding_without_tokens():
    batch = put_together([], pad_token_id=3)
    assert batch.input_ids_BL.tolist() == [[3]]
    assert (
        batch.target_N.numel() == batch.weight_N.numel() == batch.rollout_logprobs_N.numel() == batch.num_episodes == 0
    )


def test_logprobs_the_server_did_not_send_are_nan():
    assert put_together(make_sequences(1, logprobs=False)).rollout_logprobs_N.isnan().all()


def test_a_stale_token_without_a_logprob_is_refused():
    with pytest.raises(ValueError, match="stale"):
        put_together(decided(one_completion([1], [1], fresh=False)))


def test_the_segments_of_an_episode_stay_in_one_update_and_one_micro_batch():
    several = [(two_segments(number), 0.5) for number in range(9)]
    sequences = decided(several, AlgorithmConfig(steps_per_generation=2))
    for world_size, budget in ((1, 1), (2, 40), (3, 10_000)):
        plan = plan_updates(sequences, world_size=world_size, tokens_per_micro_batch=budget)
        for update in plan:
            together = [{sequences[i].episode for i in indices} for rank in update for indices in rank]
            assert sum(map(len, together)) == len(set().union(*together)), "an episode is in two micro-batches"
        assert not {sequences[i].episode for i in members(plan[0])} & {sequences[i].episode for i in members(plan[1])}
    batch = put_together(sequences[:4])
    assert batch.num_episodes == 2
    assert batch.episode_N[batch.hidden_N // batch.input_ids_BL.shape[1] == 1].unique().tolist() == [0]


def test_build_updates_gives_each_rank_its_part():
    sequences = make_sequences(17, AlgorithmConfig(steps_per_generation=2), seed=5)
    by_rank = [
        build_updates(
            sequences,
            version=VERSION,
            tokens_per_micro_batch=60,
            rank=rank,
            world_size=2,
            pad_token_id=0,
            device="cpu",
        )
        for rank in range(2)
    ]
    for first, second in zip(*by_rank, strict=True):
        assert len(first) == len(second)
        tokens = sum(batch.weight_N.numel() for batch in first + second)
        assert {batch.update_tokens for batch in first + second} == {tokens}
