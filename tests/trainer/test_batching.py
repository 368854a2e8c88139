import math
import random

import pytest
import torch
from tests.trainer.made_samples import MAX_COMPLETION_LENGTH, make_samples

from grpo_trainer.algorithm.batching import Plan, build_updates, collate, plan_updates, token_weights
from grpo_trainer.algorithm.sequences import TrainingSample
from grpo_trainer.config.run_config import AlgorithmConfig

LOSS_TYPES = ["grpo", "bnpo", "dr_grpo", "dapo"]


def members(update: list[list[list[int]]]) -> list[int]:
    return [i for micro_batches in update for indices in micro_batches for i in indices]


def random_plan(seed: int) -> tuple[list[TrainingSample], Plan, int, int]:
    rng = random.Random(seed)
    samples = make_samples(rng.randint(1, 40), seed=seed)
    world_size, budget = rng.randint(1, 4), rng.choice([8, 40, 100, 10_000])
    plan = plan_updates(
        samples, steps_per_generation=rng.randint(1, 4), world_size=world_size, tokens_per_micro_batch=budget
    )
    return samples, plan, world_size, budget


@pytest.mark.parametrize("seed", range(25))
def test_a_plan_has_every_sample_once_and_keeps_all_ranks_together(seed: int):
    samples, plan, world_size, budget = random_plan(seed)
    assert sorted(i for update in plan for i in members(update)) == list(range(len(samples)))
    for update in plan:
        assert members(update), "an update without samples would still move the weights"
        assert len(update) == world_size
        assert len({len(micro_batches) for micro_batches in update}) == 1
        for indices in (indices for micro_batches in update for indices in micro_batches if indices):
            padded = len(indices) * max(samples[i].num_tokens for i in indices)
            assert padded <= budget or len(indices) == 1


def test_updates_are_consecutive_slices_of_nearly_equal_size():
    samples = make_samples(11)
    plan = plan_updates(samples, steps_per_generation=3, world_size=2, tokens_per_micro_batch=50)
    slices = [sorted(members(update)) for update in plan]
    assert [i for indices in slices for i in indices] == list(range(11))
    assert {len(indices) for indices in slices} == {3, 4}


def test_fewer_samples_than_updates_make_fewer_updates_and_none_make_none():
    plan = plan_updates(make_samples(2), steps_per_generation=4, world_size=1, tokens_per_micro_batch=50)
    assert len(plan) == 2
    assert plan_updates([], steps_per_generation=4, world_size=1, tokens_per_micro_batch=50) == []


def test_a_plan_is_the_same_every_time_and_work_is_spread_evenly():
    samples = make_samples(64, seed=3)
    plans = [plan_updates(samples, steps_per_generation=1, world_size=2, tokens_per_micro_batch=100) for _ in range(2)]
    assert plans[0] == plans[1]
    loads = [sum(samples[i].num_tokens for indices in rank for i in indices) for rank in plans[0][0]]
    assert max(loads) <= 1.02 * min(loads)


def test_a_sample_longer_than_the_budget_has_a_micro_batch_of_its_own():
    plan = plan_updates(make_samples(5), steps_per_generation=1, world_size=1, tokens_per_micro_batch=1)
    assert sorted(plan[0][0]) == [[0], [1], [2], [3], [4]]


def test_short_rows_are_not_padded_to_long_ones_when_the_micro_batch_is_full_enough():
    lengths = [100] * 4 + [10] * 40
    samples = [TrainingSample([5], [6] * (length - 1), [], 0.0, True) for length in lengths]
    ((micro_batches,),) = plan_updates(samples, steps_per_generation=1, world_size=1, tokens_per_micro_batch=1600)
    assert micro_batches == [list(range(4)), list(range(4, 44))]


def test_a_rank_without_samples_gets_empty_micro_batches():
    plan = plan_updates(make_samples(1), steps_per_generation=1, world_size=3, tokens_per_micro_batch=100)
    assert plan == [[[[0]], [[]], [[]]]]


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_the_denominators_are_counts_over_the_whole_update(loss_type: str, seed: int):
    samples, plan, _, _ = random_plan(seed)
    weights = token_weights(samples, plan, loss_type=loss_type, max_completion_length=MAX_COMPLETION_LENGTH)
    batch_tokens = sum(len(sample.token_ids) for sample in samples)
    for update in plan:
        indices = members(update)
        tokens = sum(len(samples[i].token_ids) for i in indices)
        for i in indices:
            expected = {
                "grpo": 1 / len(samples[i].token_ids) / len(indices),
                "bnpo": 1 / tokens,
                "dr_grpo": 1 / (len(indices) * MAX_COMPLETION_LENGTH),
                "dapo": 1 / (batch_tokens / len(plan)),
            }[loss_type]
            assert weights[i] == pytest.approx(expected)
        total = math.fsum(weights[i] * len(samples[i].token_ids) for i in indices)
        if loss_type in ("grpo", "bnpo"):
            assert total == pytest.approx(1.0)


def test_the_weights_do_not_depend_on_ranks_and_micro_batches():
    samples = make_samples(23, seed=1)
    results = []
    for world_size, budget in ((1, 10_000), (1, 30), (2, 60), (4, 25)):
        plan = plan_updates(samples, steps_per_generation=2, world_size=world_size, tokens_per_micro_batch=budget)
        results.append(token_weights(samples, plan, loss_type="grpo", max_completion_length=14))
    assert all(result == results[0] for result in results)


def test_collate_finds_every_completion_token():
    samples = make_samples(6, seed=2, stale_share=0.5)
    indices, weights = [4, 0, 2], [0.1 * i for i in range(6)]
    batch = collate(samples, indices, weights, update_tokens=99, pad_token_id=7, device="cpu")
    chosen = [samples[i] for i in indices]
    assert batch.input_ids_BL[batch.row_N, batch.column_N].tolist() == [t for s in chosen for t in s.token_ids]
    lengths = [len(sample.token_ids) for sample in chosen]
    spread = lambda values: [value for value, length in zip(values, lengths, strict=True) for _ in range(length)]  # noqa: E731
    torch.testing.assert_close(batch.advantage_N, torch.tensor(spread([s.advantage for s in chosen])))
    torch.testing.assert_close(batch.weight_N, torch.tensor(spread([weights[i] for i in indices])))
    assert batch.fresh_N.tolist() == spread([s.fresh for s in chosen])
    torch.testing.assert_close(batch.rollout_logprobs_N, torch.tensor([x for s in chosen for x in s.rollout_logprobs]))
    assert batch.update_tokens == 99
    for row, sample in zip(batch.input_ids_BL.tolist(), chosen, strict=True):
        assert row == sample.prompt_token_ids + sample.token_ids + [7] * (len(row) - sample.num_tokens)


def test_an_empty_micro_batch_is_one_row_of_padding_without_tokens():
    batch = collate([], [], [], update_tokens=5, pad_token_id=3, device="cpu")
    assert batch.input_ids_BL.tolist() == [[3]]
    assert batch.row_N.numel() == batch.weight_N.numel() == batch.rollout_logprobs_N.numel() == 0


def test_logprobs_the_server_did_not_send_are_nan():
    batch = collate(make_samples(1, logprobs=False), [0], [1.0], update_tokens=1, pad_token_id=0, device="cpu")
    assert batch.rollout_logprobs_N.isnan().all()


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        (TrainingSample([], [1], [-1.0], 0.0, True), "one prompt token"),
        (TrainingSample([1], [], [], 0.0, True), "one completion token"),
        (TrainingSample([1], [1, 2], [-1.0], 0.0, True), "1 rollout logprobs for 2 tokens"),
        (TrainingSample([1], [1], [], 0.0, False), "stale"),
    ],
)
def test_a_sample_that_cannot_be_trained_on_is_named(sample: TrainingSample, message: str):
    with pytest.raises(ValueError, match=message):
        collate([sample], [0], [1.0], update_tokens=1, pad_token_id=0, device="cpu")


def test_build_updates_gives_each_rank_its_part():
    samples = make_samples(17, seed=5)
    algorithm = AlgorithmConfig(steps_per_generation=2)
    by_rank = [
        build_updates(
            samples,
            algorithm,
            max_completion_length=MAX_COMPLETION_LENGTH,
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
