"""The row in which every token stands once, and its planning: paths, the rule of what is shared, ranks and budget."""

import random

import numpy as np
import pytest
import torch
from tests.trainer.made_episodes import VERSION, build_updates, decided, make_taken, two_segments

from grpo_trainer.algorithm import prefixes
from grpo_trainer.algorithm.batching import collate
from grpo_trainer.algorithm.planning import plan_updates
from grpo_trainer.algorithm.prefixes import Growing, PrefixSharing, grow, sort_key, worth_sharing
from grpo_trainer.algorithm.sequences import Segment, TrainingSequence, Turn, single_turn, untrained_sequence

SHARING = PrefixSharing(key=0.1, score=1e-4, trained=0.02)


def trees(seed: int, count: int = 40) -> list[np.ndarray]:
    """Sequences that branch anywhere, some equal and some the beginning of others."""
    rng = random.Random(seed)
    found = [[1, 2, 3]]
    while len(found) < count:
        stem = rng.choice(found)
        found.append(
            [*stem[: rng.randint(0, len(stem))], *(rng.randrange(4) for _ in range(rng.randint(0, 12)))] or [0]
        )
    return [np.array(ids) for ids in found]


def groups(count: int, size: int, prompt: int, completion: tuple[int, int], *, seed: int = 0) -> list[TrainingSequence]:
    rng, taken = random.Random(seed), []
    for number in range(count):
        ids = [rng.randrange(5, 100) for _ in range(prompt)]
        for member in range(size):
            said = [rng.randrange(5, 100) for _ in range(rng.randint(*completion))]
            versions = [(VERSION, len(said))]
            episode = single_turn(f"e-{number}-{member}", ids, said, versions=versions, finish_reason="stop")
            taken.append((episode, rng.gauss(0, 1)))
    rng.shuffle(taken)
    return decided(taken)


@pytest.mark.parametrize("seed", range(8))
def test_a_row_has_every_beginning_once_and_the_path_of_a_sequence_spells_it(
    seed: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(prefixes, "TOKEN_IN_SCORES", 1e9)
    tokens = trees(seed)
    forest = grow(tokens)
    row = np.full(forest.num_unique, -1)
    for ids, path in zip(tokens, forest.paths_Q, strict=True):
        assert (np.diff(path) != 0).all()
        row[path] = ids
    assert all((row[path] == ids).all() for ids, path in zip(tokens, forest.paths_Q, strict=True))
    assert forest.num_unique == len({tuple(ids[: end + 1]) for ids in tokens for end in range(len(ids))})
    assert sorted(i for block in forest.blocks for i in block) == [i for i, own in enumerate(forest.own_Q) if own]


@pytest.mark.parametrize("seed", range(4))
def test_a_growing_set_counts_what_its_row_has_whatever_the_order(seed: int):
    tokens = trees(seed)
    grown, shuffled = Growing(PrefixSharing(key=1.0)), random.Random(seed).sample(tokens, len(tokens))
    for ids in shuffled:
        grown.add(ids, sort_key(ids), num_trained=1)
    forest = grow(tokens)
    assert grown.num_unique == forest.num_unique
    assert grown.kept == forest.num_unique + sum(
        len(path) for path, own in zip(forest.paths_Q, forest.own_Q, strict=True) if own
    )


def test_a_few_tokens_in_common_are_not_worth_a_masked_attention_and_a_prompt_is():
    assert worth_sharing(1, 500) == worth_sharing(1, 24) == 0  # BOS
    assert worth_sharing(20, 500) == 0  # the head of a template
    assert worth_sharing(128, 384) == 128
    assert worth_sharing(1024, 2048) == 1024
    assert worth_sharing(300, 300) == 300  # an equal sequence computes nothing


@pytest.mark.parametrize("seed", range(12))
def test_a_plan_computes_all_keeps_to_the_budget_and_gives_ranks_as_many_micro_batches(seed: int):
    rng = random.Random(seed)
    taken = make_taken(rng.randint(1, 30), seed=seed) + [(two_segments(number), 0.5) for number in range(3)]
    rng.shuffle(taken)
    sequences, world_size, budget = decided(taken), rng.randint(1, 4), rng.randint(20, 120)
    plan = plan_updates(sequences, world_size=world_size, tokens_per_micro_batch=budget, prefixes=SHARING)
    assert plan == plan_updates(sequences, world_size=world_size, tokens_per_micro_batch=budget, prefixes=SHARING)
    assert sorted(i for update in plan for rank in update for numbers in rank for i in numbers) == list(
        range(len(sequences))
    )
    for update in plan:
        assert len({len(rank) for rank in update}) == 1
        for numbers in (numbers for rank in update for numbers in rank):
            grown = Growing(SHARING)
            for i in numbers:
                ids = sequences[i].needed_ids
                grown.add(ids, sort_key(ids), num_trained=sequences[i].num_trained)
            assert grown.kept <= budget or len({sequences[i].episode for i in numbers}) == 1


@pytest.mark.parametrize("world_size", [1, 2, 8])
def test_ranks_have_like_loads_and_cuts_compute_little_twice(world_size: int):
    sequences = groups(32, 8, 100, (1, 14))
    (ranks,) = plan_updates(sequences, world_size=world_size, tokens_per_micro_batch=2000, prefixes=PrefixSharing())
    loads = [sum(grow([sequences[i].needed_ids for i in numbers]).num_unique for numbers in rank) for rank in ranks]
    once = grow([sequence.needed_ids for sequence in sequences]).num_unique
    assert sum(loads) < 1.15 * once
    assert max(loads) < 1.15 * sum(loads) / world_size


def test_a_shared_micro_batch_has_the_trained_tokens_of_the_padded_one_in_order():
    sequences = [*groups(2, 3, 6, (2, 9)), *decided([*make_taken(9, seed=2, stale_share=0.5), (two_segments(), 0.5)])]
    padded, shared = (
        collate(sequences, version=VERSION, update_tokens=1, pad_token_id=0, device="cpu", prefixes=how)
        for how in (None, SHARING)
    )
    for batch in (padded, shared):
        previous = [ids for one in sequences for ids in one.token_ids_L[np.flatnonzero(one.loss_mask_L) - 1]]
        assert batch.input_ids_BL.flatten()[batch.hidden_N].tolist() == previous
    for name in ("target_N", "episode_N", "advantage_N", "weight_N", "fresh_N", "rollout_logprobs_N", "mixed_N"):
        torch.testing.assert_close(getattr(shared, name), getattr(padded, name), rtol=0, atol=0, equal_nan=True)
    assert (shared.trained_Q, shared.num_episodes) == (padded.trained_Q, padded.num_episodes)
    columns = [column for one in sequences for column in np.flatnonzero(one.loss_mask_L) - 1]
    assert shared.position_ids_BL[0, shared.hidden_N].tolist() == columns
    assert shared.input_ids_BL.numel() < sum(len(sequence.needed_ids) for sequence in sequences)


def test_what_predicts_nothing_that_is_trained_is_not_computed():
    """The last token of a completion, context that comes after the last trained token, and a masked turn there."""
    turns = [Turn(3, 5, [(VERSION, 2)], "stop"), Turn(7, 8, [(VERSION, 1)], "stop", masked="mixed")]
    masked = untrained_sequence(Segment([1, 2, 3, 4, 5, 6, 7, 8, 9], turns))
    assert masked.needed_ids.tolist() == [1, 2, 3, 4]
    untrained = untrained_sequence(Segment([1, 2, 3], []), episode=1)
    assert untrained.needed_ids.tolist() == [1]
    ends_otherwise = untrained_sequence(Segment([1, 2, 3, 4, 9], [Turn(3, 5, [(VERSION, 2)], "stop")]), episode=2)
    batch = collate(
        [masked, untrained, ends_otherwise], version=VERSION, update_tokens=4, pad_token_id=0, device="cpu",
        prefixes=SHARING,
    )  # fmt: skip
    assert batch.input_ids_BL.tolist() == [[1, 2, 3, 4]]
    assert batch.target_N.tolist() == [4, 5, 4, 9]
    assert batch.input_ids_BL.flatten()[batch.hidden_N].tolist() == [3, 4, 3, 4]


def test_sequences_that_share_nothing_have_no_mask_and_equal_ones_no_copies():
    (batch,) = build_updates(groups(6, 1, 4, (9, 9)), tokens_per_micro_batch=1000, prefixes=SHARING)[0]
    assert [(block.shared_b, block.key_index, block.query_index) for block in batch.layout.blocks] == [(None,) * 3]
    assert batch.layout.key_index is None
    assert batch.input_ids_BL.shape == (6, 12)
    assert batch.position_ids_BL is None
