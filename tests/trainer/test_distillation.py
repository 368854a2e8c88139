"""A teacher's logprobs → advantages of tokens, and what they do in the loss."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.trainer.made_episodes import MAX_COMPLETION_LENGTH, build_updates, completion, make_taken, two_segments

from grpo_trainer.algorithm.decisions import sequences_of, training_sequences
from grpo_trainer.algorithm.loss import policy_loss
from grpo_trainer.algorithm.sequences import Episode, Group, TrainingSequence
from grpo_trainer.algorithm.skipping import sequences_to_compute
from grpo_trainer.algorithm.surrogates import surrogate_of
from grpo_trainer.config.algorithm import AlgorithmConfig
from grpo_trainer.config.teacher import TeacherConfig
from grpo_trainer.data.prompt_row import PromptRow
from grpo_trainer.errors import RunError
from grpo_trainer.observe.dataset_metrics import dataset_metrics

TEACHER = TeacherConfig(url="http://127.0.0.1:8010", coef=0.5)


def taught(episode: Episode, teacher_logprobs: list[float], *, total: float | None = None) -> Episode:
    episode.teacher_logprobs, episode.total = teacher_logprobs, total
    return episode


def group_of(*episodes: Episode) -> Group:
    return Group(0, PromptRow(0, [1], "p", {}), list(episodes))


def a_group(*totals: float | None) -> Group:
    """Completions of two tokens; the teacher finds the first more likely by 1 and the second less likely by 2."""
    made = (completion(f"0-{n}", [5, 6], [-1.0, -2.0], "x", "stop", [(1, 2)]) for n, _ in enumerate(totals))
    return group_of(*(taught(one, [0.0, -4.0], total=total) for one, total in zip(made, totals, strict=True)))


def decide(
    group: Group, *, teacher: TeacherConfig | None = TEACHER, rewards: dict[str, float] | None = None
) -> tuple[list[TrainingSequence], dict[str, float]]:
    weights = {"letters": 1.0} if rewards is None else rewards
    return training_sequences(
        [group],
        AlgorithmConfig(scale_rewards="none"),
        reward_weights=weights,
        max_completion_length=14,
        teachers={"": teacher} if teacher else {},
    )


def test_beside_rewards_a_token_gets_the_advantage_of_its_completion_and_its_own_term():
    sequences, metrics = decide(a_group(1.0, 0.0))
    assert [one.advantages_L.tolist() for one in sequences] == [
        [0.0, 0.5 + 0.5, 0.5 - 1.0],
        [0.0, -0.5 + 0.5, -0.5 - 1.0],
    ]
    assert metrics["teacher/kl"] == pytest.approx((-1.0 + 2.0) / 2)
    assert (metrics["teacher/tokens"], metrics["reward"]) == (4, 0.5)


@pytest.mark.parametrize(
    ("teacher", "rewards"),
    [(TEACHER.model_copy(update={"only": True}), None), (TEACHER, {})],
    ids=["only", "no rewards"],
)
def test_alone_the_teacher_teaches_what_has_no_score_too(teacher: TeacherConfig, rewards: dict[str, float] | None):
    sequences, _ = decide(a_group(1.0, None), teacher=teacher, rewards=rewards)
    assert [one.advantages_L.tolist() for one in sequences] == [[0.0, 0.5, -1.0]] * 2


def test_beside_rewards_what_has_no_score_is_left_out():
    sequences, _ = decide(a_group(1.0, None))
    assert len(sequences) == 1


def test_nothing_that_the_teacher_teaches_is_skipped():
    sequences, _ = decide(a_group(1.0, 1.0))
    assert len(sequences_to_compute(sequences, AlgorithmConfig())) == 2
    agreed = a_group(1.0, 1.0)
    agreed.episodes[1].teacher_logprobs = [-1.0, -2.0]
    sequences, _ = decide(agreed)
    assert [one.episode for one in sequences_to_compute(sequences, AlgorithmConfig())] == [0]


def test_every_token_of_several_turns_gets_its_own_term_and_masked_ones_none():
    episode = two_segments()
    behaviour = [logprob for segment in episode.segments for logprob in segment.logprobs or []]
    taught(episode, [logprob + 0.1 * n for n, logprob in enumerate(behaviour)])
    first, second = sequences_of(
        [(episode, 1.0)], AlgorithmConfig(), max_completion_length=MAX_COMPLETION_LENGTH, teachers=[TEACHER]
    )
    assert first.advantages_L[first.loss_mask_L] == pytest.approx([1.0 + 0.05 * n for n in range(13)])
    assert second.advantages_L[second.loss_mask_L] == pytest.approx([1.0 + 0.05 * n for n in range(15, 19)])
    assert not first.advantages_L[~first.loss_mask_L].any()
    assert not second.advantages_L[~second.loss_mask_L].any()


def test_each_dataset_learns_from_its_own_teacher_from_rewards_or_from_both():
    names = ("both", "alone", "rewards")
    groups = [replace(a_group(1.0, 0.0), row=PromptRow(0, [1], "p", {}, name)) for name in names]
    groups[1].episodes[0].total = groups[1].episodes[1].total = None
    for episode in groups[2].episodes:
        episode.teacher_logprobs = None
    sequences, metrics = training_sequences(
        groups,
        AlgorithmConfig(scale_rewards="none"),
        reward_weights={"letters": 1.0},
        own_rewards={"alone": {}},
        max_completion_length=14,
        teachers={"both": TEACHER, "alone": TEACHER.model_copy(update={"coef": 2.0})},
    )
    assert [one.advantages_L[1:].tolist() for one in sequences] == [
        [0.5 + 0.5, 0.5 - 1.0],
        [-0.5 + 0.5, -0.5 - 1.0],
        *[[2.0, -4.0]] * 2,
        [0.5, 0.5],
        [-0.5, -0.5],
    ]
    assert (metrics["teacher/tokens"], metrics["reward"]) == (8, 0.5)
    groups[1].episodes[0].teacher_logprobs = [-1.0, -2.0]
    of_datasets = dataset_metrics(groups, names, taught={"both", "alone"})
    assert {name: value for name, value in of_datasets.items() if "teacher" in name} == {
        "data/both/teacher/kl": 0.5,
        "data/both/teacher/tokens": 4,
        "data/alone/teacher/kl": 0.25,
        "data/alone/teacher/tokens": 4,
    }


def test_without_the_logprobs_of_the_sampling_there_is_nothing_to_compare():
    (episode, _), *_ = make_taken(1, logprobs=False)
    with pytest.raises(RunError, match="sample e-0 came without"):
        decide(group_of(taught(episode, [-1.0] * episode.num_sampled)), rewards={})


def test_the_gradient_is_that_of_the_reverse_kl():
    """All tokens of a vocabulary as completions, each weighed by its probability: the expectation without sampling."""
    generator = torch.Generator().manual_seed(0)
    student_V, teacher_V = (torch.randn(6, generator=generator, dtype=torch.float64) for _ in range(2))
    student_V.requires_grad_()
    logprobs_V, of_teacher_V = student_V.log_softmax(-1), teacher_V.log_softmax(-1)
    kl = (logprobs_V.exp() * (logprobs_V - of_teacher_V)).sum()
    (wanted_V,) = torch.autograd.grad(kl, student_V, retain_graph=True)

    behaviour = logprobs_V.detach().tolist()
    episodes = [
        taught(completion(f"0-{k}", [k], [behaviour[k]], "x", "stop", [(1, 1)]), [of_teacher_V[k].item()])
        for k in range(6)
    ]
    teacher = TEACHER.model_copy(update={"coef": 1.0})
    sequences, _ = decide(group_of(*episodes), teacher=teacher, rewards={})
    for sequence, logprob in zip(sequences, behaviour, strict=True):
        sequence.weights_L[sequence.loss_mask_L] = np.exp(logprob)
    ((batch,),) = build_updates(sequences, tokens_per_micro_batch=1000)
    batch.old_logprobs_N = batch.rollout_logprobs_N
    algorithm = AlgorithmConfig(loss_type="reinforce", importance_sampling_correction=False)
    # A micro-batch has its sequences in an order of its own.
    tokens_N = batch.target_N
    loss, _ = policy_loss(logprobs_V[tokens_N], torch.zeros(()), batch, algorithm, surrogate_of(algorithm))
    (found_V,) = torch.autograd.grad(loss, student_V)
    assert torch.allclose(found_V, wanted_V, atol=1e-6)
