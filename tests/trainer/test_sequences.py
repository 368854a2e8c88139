"""The types: what was sampled is checked where it is written down, and decisions reach the right tokens."""

import math
from dataclasses import replace

import numpy as np
import pytest
from tests.trainer.made_episodes import (
    MAX_COMPLETION_LENGTH,
    VERSION,
    decided,
    make_sequences,
    make_taken,
    two_segments,
)

from grpo_trainer.algorithm.decisions import slices, training_sequences, updates_of
from grpo_trainer.algorithm.named_arrays import from_arrays, to_arrays
from grpo_trainer.algorithm.normalisers import NORMALISERS
from grpo_trainer.algorithm.normalisers.counts import Counts
from grpo_trainer.algorithm.sequences import CONTEXT, Group, Segment, Turn, single_turn
from grpo_trainer.config.algorithm import AlgorithmConfig
from grpo_trainer.data.prompt_row import PromptRow


@pytest.mark.parametrize(
    ("turns", "logprobs", "message"),
    [
        ([Turn(0, 2, [(1, 2)], "stop")], None, "the first token of a segment is never sampled"),
        ([Turn(1, 3, [(1, 2)], "stop"), Turn(2, 4, [(1, 2)], "stop")], None, "turns do not overlap"),
        ([Turn(3, 5, [(1, 2)], "stop")], None, "in a segment of 4"),
        ([Turn(1, 3, [(1, 1)], "stop")], None, "not of the 2 tokens"),
        ([Turn(1, 3, [(1, 2)], "stop")], [-1.0], "1 logprobs for 2 sampled tokens"),
    ],
)
def test_a_segment_that_cannot_be_is_named(turns: list[Turn], logprobs: list[float] | None, message: str):
    with pytest.raises(ValueError, match=message):
        Segment([1, 2, 3, 4], turns, logprobs)


def test_a_single_turn_is_one_segment_with_one_turn():
    episode = single_turn(
        "a", [1, 2], [3, 4, 5], versions=[(4, 3)], finish_reason="length", text="x", logprobs=[-1.0] * 3
    )
    assert (episode.status, episode.cause, episode.truncated) == ("truncated", "policy", True)
    assert (episode.num_tokens, episode.num_sampled, episode.sampled_token_ids) == (5, 3, [3, 4, 5])
    assert (episode.text, episode.finish_reason, episode.versions, episode.oldest_version) == (
        "x",
        "length",
        [(4, 3)],
        4,
    )


def test_what_is_trained_are_the_tokens_of_turns_that_are_not_masked():
    first, second = decided([(two_segments(), 2.0)], AlgorithmConfig(loss_type="grpo"))
    assert np.flatnonzero(first.loss_mask_L).tolist() == [*range(3, 8), *range(12, 20)]
    assert np.flatnonzero(second.loss_mask_L).tolist() == [6, 7, 8, 9]
    assert (first.episode, second.episode) == (0, 0)
    assert first.turns_L.tolist() == [CONTEXT] * 3 + [0] * 5 + [CONTEXT] * 4 + [1] * 8
    assert second.turns_L.tolist() == [CONTEXT] * 2 + [2] * 2 + [CONTEXT] * 2 + [3] * 4
    assert first.versions_L[3:8].tolist() == [VERSION - 1] * 2 + [VERSION] * 3
    assert np.isnan(first.logprobs_L[:3]).all()
    assert second.logprobs_L[6:].tolist() == pytest.approx([-2.2, -2.3, -2.4, -2.5])
    assert set(second.advantages_L[second.loss_mask_L]) == {2.0}
    # Seventeen trained tokens in one episode: each weighs 1 / 17, wherever the episode was cut.
    assert {*first.weights_L[first.loss_mask_L], *second.weights_L[second.loss_mask_L]} == {np.float32(1 / 17)}
    assert not second.weights_L[~second.loss_mask_L].any()


def test_sequences_travel_as_arrays():
    sequences = decided(
        [*make_taken(5, stale_share=0.5), (two_segments(), 0.25)], AlgorithmConfig(steps_per_generation=2)
    )
    for sent, received in zip(sequences, from_arrays(to_arrays(sequences)), strict=True):
        assert (sent.episode, sent.update) == (received.episode, received.update)
        for name in ("token_ids_L", "loss_mask_L", "advantages_L", "weights_L", "logprobs_L", "versions_L", "turns_L"):
            np.testing.assert_array_equal(getattr(sent, name), getattr(received, name))
            assert getattr(sent, name).dtype == getattr(received, name).dtype
    assert from_arrays(to_arrays([])) == []


@pytest.mark.parametrize(("count", "num_slices"), [(11, 3), (2, 4), (0, 4), (8, 1)])
def test_updates_are_consecutive_slices_of_nearly_equal_size(count: int, num_slices: int):
    found = slices(count, num_slices)
    assert found == sorted(found)
    assert len(found) == count
    sizes = [found.count(k) for k in range(min(count, num_slices))]
    assert max(sizes, default=0) - min(sizes, default=0) <= 1
    assert all(sizes), "an update without episodes would still move the weights"


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", NORMALISERS)
def test_the_denominators_are_counts_over_the_whole_update(name: str, seed: int):
    algorithm = AlgorithmConfig(normaliser=name, steps_per_generation=1 + seed % 4)
    sequences = make_sequences(7 + 5 * seed, algorithm, seed=seed)
    num_updates = sequences[-1].update + 1
    batch_tokens = sum(sequence.num_trained for sequence in sequences)
    for update in range(num_updates):
        members = [sequence for sequence in sequences if sequence.update == update]
        tokens = sum(sequence.num_trained for sequence in members)
        for sequence in members:
            expected = {
                "grpo": 1 / sequence.num_trained / len(members),
                "bnpo": 1 / tokens,
                "dr_grpo": 1 / (len(members) * MAX_COMPLETION_LENGTH),
                "dapo": 1 / (batch_tokens / num_updates),
                "luspo": 1 / len(members),
            }[name]
            assert sequence.weights_L[sequence.loss_mask_L] == pytest.approx(expected)
        total = math.fsum(sequence.weights_L.sum() for sequence in members)
        if name in ("grpo", "bnpo"):
            assert total == pytest.approx(1.0)


def test_what_is_cut_off_and_masked_counts_among_the_completions_of_its_update_and_is_not_trained():
    episodes = [episode for episode, _ in make_taken(6)]
    for number, episode in enumerate(episodes):
        episode.total = float(number)
    cut = [replace(episode, status="truncated") for episode in episodes[:2]]
    group = Group(0, PromptRow(0, [1], "p", {}), [*cut, *episodes[2:]])
    group.episodes[3].total = None  # without a score it counts in nothing
    algorithm = AlgorithmConfig(loss_type="dr_grpo", mask_truncated_completions=True, steps_per_generation=2)
    sequences, _ = training_sequences([group], algorithm, reward_weights={}, max_completion_length=10)
    weights = [sequence.weights_L[sequence.loss_mask_L][0] * 10 for sequence in sequences]
    # Five that count make updates of two and three: the first has none to train on and is not made.
    assert [sequence.update for sequence in sequences] == [0, 0, 0]
    assert weights == pytest.approx([1 / 3] * 3)
    one_update = algorithm.model_copy(update={"steps_per_generation": 1})
    sequences, _ = training_sequences([group], one_update, reward_weights={}, max_completion_length=10)
    assert [sequence.weights_L[sequence.loss_mask_L][0] * 10 for sequence in sequences] == pytest.approx([1 / 5] * 3)


def test_an_update_whose_completions_are_all_masked_is_left_out():
    masked = [False, True, True, True, False, False]
    assert updates_of(masked, 3) == ([0, 1, 1], {0: 1})
    assert updates_of([True, True], 2) == ([], {})


def test_a_normaliser_gives_each_episode_one_weight():
    counts = Counts(tokens=[2, 3, 5], update=[0, 0, 1], limit=10)
    assert {name: normaliser(counts) for name, normaliser in NORMALISERS.items()} == {
        "grpo": [1 / 4, 1 / 6, 1 / 5], "bnpo": [1 / 5, 1 / 5, 1 / 5], "dr_grpo": [1 / 20, 1 / 20, 1 / 10],
        "dapo": [2 / 10] * 3, "luspo": [1 / 2, 1 / 2, 1],
    }  # fmt: skip
