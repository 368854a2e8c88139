"""What is not computed, and that nothing learnt depends on it; on real ranks: `skipped` in engine_worker.py."""

import pytest
import torch
from tests.tiny_model import make_model
from tests.trainer.made_episodes import VERSION, Taken, build_updates, decided, make_taken, two_segments

from grpo_trainer.algorithm.loss import old_logprobs, policy_loss
from grpo_trainer.algorithm.planning import count_updates, plan_updates
from grpo_trainer.algorithm.sequences import TrainingSequence
from grpo_trainer.algorithm.skipping import sequences_to_compute, surveyed
from grpo_trainer.algorithm.surrogates import SURROGATES, reads_of, surrogate_of
from grpo_trainer.config.algorithm import LOSS_TYPES, AlgorithmConfig
from grpo_trainer.engine.policy import Policy


def half_without_spread(count: int = 12) -> Taken:
    """Every second pair of episodes has advantage 0."""
    taken = make_taken(count, seed=4, stale_share=0.3)
    return [(episode, 0.0 if number // 2 % 2 else advantage) for number, (episode, advantage) in enumerate(taken)]


def test_an_episode_of_advantage_0_is_not_computed_and_the_others_keep_weight_and_order():
    sequences = decided(half_without_spread())
    computed = sequences_to_compute(sequences, AlgorithmConfig())
    assert [sequence.episode for sequence in computed] == [0, 1, 4, 5, 8, 9]
    assert all(any(one is other for other in sequences) for one in computed)


@pytest.mark.parametrize(
    "settings",
    [
        {"skip_zero_advantage": False},
        {"beta": 0.1},
        {"entropy_coef": 0.01},
        {"use_adaptive_entropy": True, "entropy_target": 1.0},
        {"top_entropy_quantile": 0.9},
        {"router_aux_loss_coef": 0.01},
        {"loss": "FILE"},
    ],
    ids=str,
)
def test_all_are_computed_where_a_sample_of_advantage_0_may_have_a_gradient(
    settings: dict[str, object], tmp_path: object
):
    if "loss" in settings:
        file = f"{tmp_path}/own.py"
        with open(file, "w") as own:
            own.write("def loss(logprobs_N, batch, algorithm, tally):\n    return -logprobs_N\n")
        settings = {"loss": f"{file}:loss"}
    sequences = decided(half_without_spread())
    assert len(sequences_to_compute(sequences, AlgorithmConfig(**settings))) == len(sequences)  # type: ignore[arg-type]


def test_an_episode_is_computed_whole_or_not_at_all():
    sequences = decided([(two_segments(0), 0.5), (two_segments(1), 0.0)])
    sequences[1].advantages_L[:] = 0.0
    assert [sequence.episode for sequence in sequences_to_compute(sequences, AlgorithmConfig())] == [0, 0]


def test_an_update_of_which_nothing_is_computed_has_an_empty_micro_batch_on_every_rank():
    taken = [(episode, float(number < 4)) for number, (episode, _) in enumerate(make_taken(8))]
    sequences = decided(taken, AlgorithmConfig(steps_per_generation=2))
    computed = sequences_to_compute(sequences, AlgorithmConfig())
    plan = plan_updates(computed, world_size=2, tokens_per_micro_batch=1000, num_updates=count_updates(sequences))
    assert [i for rank in plan[0] for numbers in rank for i in numbers] != []
    assert plan[1] == [[[]], [[]]]


DECLARED = [name for name, surrogate in SURROGATES.items() if reads_of(surrogate).zero_without_advantage]


@pytest.mark.parametrize("surrogate", DECLARED)
def test_a_surrogate_that_declares_it_has_no_loss_and_no_gradient_without_advantage(surrogate: str):
    algorithm = AlgorithmConfig(loss=surrogate)
    ((batch,),) = build_updates(decided([(e, 0.0) for e, _ in make_taken(9)]), tokens_per_micro_batch=10_000)
    generator = torch.Generator().manual_seed(0)
    batch.old_logprobs_N = batch.rollout_logprobs_N
    logprobs_N = batch.rollout_logprobs_N + torch.randn(batch.target_N.numel(), generator=generator)
    logprobs_N.requires_grad_()
    loss, _ = policy_loss(logprobs_N, torch.zeros(()), batch, algorithm, surrogate_of(algorithm))
    loss.backward()
    assert loss.item() == 0.0
    assert not logprobs_N.grad.any()


def loss_and_gradient(
    policy: Policy, computed: list[TrainingSequence], algorithm: AlgorithmConfig
) -> tuple[float, torch.Tensor]:
    policy.zero_grad()
    (update,) = build_updates(computed, tokens_per_micro_batch=40, version=VERSION)
    losses = []
    for batch in update:
        logprobs_N, entropy_N = policy(*batch.inputs)
        batch.old_logprobs_N = old_logprobs(batch, logprobs_N)
        loss, _ = policy_loss(logprobs_N, entropy_N.detach(), batch, algorithm, surrogate_of(algorithm))
        loss.backward()
        losses.append(loss.item())
    return sum(losses), torch.cat([p.grad.flatten() for p in policy.parameters()])


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_loss_and_gradient_are_those_of_all_samples(loss_type: str):
    algorithm = AlgorithmConfig(loss_type=loss_type)  # type: ignore[arg-type]
    policy = Policy(make_model(tied=True, hidden_size=64), temperature=0.9, chunk_tokens=8)
    sequences = decided(half_without_spread(), algorithm)
    loss, gradient = loss_and_gradient(policy, sequences, algorithm)
    loss_computed, gradient_computed = loss_and_gradient(policy, sequences_to_compute(sequences, algorithm), algorithm)
    bound = 1e-5 if loss_type == "vespo" else 1e-6  # its weight multiplies the rounding of all logprobs of an episode
    assert loss_computed == pytest.approx(loss, rel=bound)
    assert (gradient - gradient_computed).norm() < bound * gradient.norm()


def test_metrics_of_all_samples_are_labelled():
    assert surveyed({"loss": 1.0, "entropy": 0.5}) == {"all_samples/entropy": 0.5}
