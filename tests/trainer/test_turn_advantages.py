"""An estimator that gives each turn an advantage of its own."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.trainer.made_episodes import conversation

from grpo_trainer.algorithm.decisions import training_sequences
from grpo_trainer.algorithm.sequences import Episode, Group, TrainingSequence
from grpo_trainer.algorithm.skipping import sequences_to_compute
from grpo_trainer.algorithm.spread import teaches, teaches_by_turn
from grpo_trainer.config.algorithm import AlgorithmConfig
from grpo_trainer.data.prompt_row import PromptRow
from grpo_trainer.errors import RunError

OWN = """
def of_turns(rewards, algorithm):
    return [
        [None if total is None else [reward or 0.0 for reward in turns] for total, turns in zip(totals, of_group)]
        for totals, of_group in zip(rewards.totals, rewards.turns)
    ]


def too_few(rewards, algorithm):
    return [[[1.0] for _ in totals] for totals in rewards.totals]
"""


def rewarded(name: str, *rewards: float | None) -> Episode:
    """A conversation with the rewards of its turns, in the order of its segments; both episodes are worth 1."""
    found, made = iter(rewards), conversation(name)
    segments = [
        replace(segment, turns=[replace(turn, reward=next(found)) for turn in segment.turns])
        for segment in made.segments
    ]
    return replace(made, segments=segments, total=1.0)


@pytest.fixture
def own(tmp_path: Path) -> Path:
    (tmp_path / "own.py").write_text(OWN)
    return tmp_path / "own.py"


def trained(group: Group, **algorithm: object) -> tuple[list[TrainingSequence], AlgorithmConfig]:
    config = AlgorithmConfig.model_validate(algorithm)
    return training_sequences([group], config, reward_weights={"x": 1.0}, max_completion_length=9)[0], config


def group_of(*episodes: Episode) -> Group:
    return Group(0, PromptRow(0, [], "", {}), list(episodes))


def test_every_token_of_a_turn_gets_the_turns_advantage(own: Path):
    group = group_of(rewarded("a", 0.25, 0.75, None), rewarded("b", 0.75, 0.25, 9.0))
    sequences, config = trained(group, advantage_estimator=f"{own}:of_turns")
    assert [sequence.advantages_L.tolist() for sequence in sequences] == [
        [0, 0, 0.25, 0.25, 0, 0.75, 0.75], [0, 0, 0.75, 0.75, 0, 0.25, 0.25],
    ]  # fmt: skip
    assert [episode.advantage for episode in group.episodes] == [0.5, 0.5], "the masked branch is not in the mean"
    assert sequences_to_compute(sequences, config) == sequences
    assert (teaches(group), teaches_by_turn(group)) == (False, True)


def test_where_an_episode_is_cut_changes_nothing(own: Path):
    whole = rewarded("a", 0.25, 0.75, None)
    first, branch = whole.segments
    turns = list(first.turns)
    cut = [
        replace(first, token_ids=first.token_ids[:4], turns=turns[:1], logprobs=[-0.1] * 2),
        replace(first, turns=turns[1:], logprobs=[-0.1] * 2, parent=0),
    ]
    (one,), _ = trained(group_of(whole), advantage_estimator=f"{own}:of_turns")
    parts, _ = trained(group_of(replace(whole, segments=[*cut, branch])), advantage_estimator=f"{own}:of_turns")
    total = np.zeros_like(one.advantages_L)
    for part in parts:
        total[: part.num_tokens] += part.advantages_L * part.loss_mask_L
    assert total.tolist() == (one.advantages_L * one.loss_mask_L).tolist()
    assert sum(float((p.weights_L * p.advantages_L).sum()) for p in parts) == pytest.approx(
        float((one.weights_L * one.advantages_L).sum()), rel=1e-6
    )


def test_a_list_that_is_not_one_number_a_turn_is_refused(own: Path):
    with pytest.raises(RunError, match=r"returned 1 advantages for the 3 turns of episode a: \[1.0\]"):
        trained(group_of(rewarded("a", None, None, None)), advantage_estimator=f"{own}:too_few")


def test_a_loss_that_reads_the_advantage_of_an_episode_is_refused(own: Path):
    group = group_of(rewarded("a", 0.5, 0.5, None))
    with pytest.raises(RunError, match="off_policy_mask_threshold reads one for the whole episode"):
        trained(group, advantage_estimator=f"{own}:of_turns", off_policy_mask_threshold=0.5)
