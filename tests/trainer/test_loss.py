"""The loss by itself; its equality with TRL is in test_loss_equals_trl.py."""

import random
from itertools import pairwise

import pytest
import torch
from tests.tiny_model import make_model
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
from grpo_trainer.algorithm.entropy_mask import mark_high_entropy
from grpo_trainer.algorithm.loss import old_logprobs
from grpo_trainer.algorithm.loss import policy_loss as loss_of
from grpo_trainer.algorithm.reduction import Tally
from grpo_trainer.algorithm.sequences import Episode, MicroBatch, Segment, TrainingSequence, Turn
from grpo_trainer.algorithm.surrogates import surrogate_of
from grpo_trainer.config.algorithm import LOSS_TYPES, AlgorithmConfig
from grpo_trainer.engine.policy import Policy


def micro_batch(sequences: list[TrainingSequence], weight: float = 1.0) -> MicroBatch:
    tokens = sum(sequence.num_trained for sequence in sequences)
    batch = collate(sequences, version=VERSION, update_tokens=tokens, pad_token_id=0, device="cpu")
    batch.weight_N = torch.full_like(batch.weight_N, weight)
    return batch


def policy_loss(
    logprobs_N: torch.Tensor, entropy_N: torch.Tensor, batch: MicroBatch, algorithm: AlgorithmConfig
) -> tuple[torch.Tensor, Tally]:
    return loss_of(logprobs_N, entropy_N, batch, algorithm, surrogate_of(algorithm))


def test_old_logprobs_are_the_trainers_own_for_fresh_and_the_servers_for_stale_sequences():
    sequences = make_sequences(8, stale_share=0.5)
    batch = micro_batch(sequences)
    own_N = torch.randn(batch.target_N.numel(), requires_grad=True)
    old_N = old_logprobs(batch, own_N)
    assert not old_N.requires_grad
    assert batch.fresh_N.any()
    assert not batch.fresh_N.all()
    assert torch.equal(old_N[batch.fresh_N], own_N.detach()[batch.fresh_N])
    assert torch.equal(old_N[~batch.fresh_N], batch.rollout_logprobs_N[~batch.fresh_N])


def test_on_policy_the_gradient_is_the_policy_gradient_whatever_the_clip():
    batch = micro_batch(make_sequences(4, logprobs=False), weight=0.25)
    logprobs_N = torch.randn(batch.target_N.numel(), requires_grad=True)
    batch.old_logprobs_N = old_logprobs(batch, logprobs_N)
    loss, _ = policy_loss(logprobs_N, torch.zeros_like(batch.weight_N), batch, AlgorithmConfig(epsilon=0.0))
    loss.backward()
    torch.testing.assert_close(logprobs_N.grad, -0.25 * batch.advantage_N)


@pytest.mark.parametrize(
    ("ratio", "advantage", "slope"),
    [(1.1, 1.0, -1.1), (1.5, 1.0, 0.0), (1.5, -1.0, 1.5), (0.7, -1.0, 0.0), (0.7, 1.0, -0.7), (3.0, -1.0, 0.0)],
)
def test_clip_and_delta_stop_the_gradient_on_their_side(ratio: float, advantage: float, slope: float):
    """∂loss/∂logp of one token: −ratio · A, or 0 where it is cut off."""
    batch = micro_batch(decided(one_completion([5], [6], advantage=advantage)))
    batch.old_logprobs_N = torch.zeros(1)
    logprobs_N = torch.tensor([ratio]).log().requires_grad_()
    loss, _ = policy_loss(logprobs_N, torch.zeros(1), batch, AlgorithmConfig(epsilon=0.2, epsilon_high=0.3, delta=2.0))
    loss.backward()
    assert logprobs_N.grad.item() == pytest.approx(slope)


def test_the_mismatch_is_measured_on_fresh_tokens_with_the_correction_off_too():
    sequences = make_sequences(6, stale_share=0.5)
    batch = micro_batch(sequences)
    logprobs_N = batch.rollout_logprobs_N + 0.25
    batch.old_logprobs_N = old_logprobs(batch, logprobs_N)
    _, tally = policy_loss(
        logprobs_N, torch.zeros_like(logprobs_N), batch, AlgorithmConfig(importance_sampling_correction=False)
    )
    metrics = tally.reduce()
    assert metrics["sampling/sampling_logp_difference/mean"] == pytest.approx(0.25, abs=1e-6)
    assert metrics["sampling/sampling_logp_difference/max"] == pytest.approx(0.25, abs=1e-6)
    assert "sampling/importance_sampling_ratio/mean" not in metrics
    assert "sampling/mixed_logp_difference/mean" not in metrics  # no push interrupted one of these


def test_the_mismatch_of_tokens_that_follow_older_ones_in_their_turn_is_measured_apart():
    """The first turn of `two_segments` spans a push: two tokens of the version before, then three fresh ones."""
    batch = micro_batch(decided([(two_segments(), 1.0)]))
    off_N = torch.full_like(batch.rollout_logprobs_N, 0.25)
    off_N[:5] = torch.tensor([9.0, 9.0, 0.5, 1.0, 1.5])
    logprobs_N = batch.rollout_logprobs_N + off_N
    batch.old_logprobs_N = old_logprobs(batch, logprobs_N)
    _, tally = policy_loss(logprobs_N, torch.zeros_like(logprobs_N), batch, AlgorithmConfig())
    metrics = tally.reduce()
    assert metrics["sampling/mixed_logp_difference/mean"] == pytest.approx(1.0, abs=1e-6)
    assert metrics["sampling/mixed_logp_difference/max"] == pytest.approx(1.5, abs=1e-6)
    assert metrics["sampling/sampling_logp_difference/mean"] == pytest.approx((3.0 + 12 * 0.25) / 15, abs=1e-6)


def test_a_token_without_a_server_logprob_is_not_corrected():
    batch = micro_batch(make_sequences(3, logprobs=False))
    logprobs_N = torch.randn(batch.target_N.numel())
    batch.old_logprobs_N = logprobs_N
    _, tally = policy_loss(logprobs_N, torch.zeros_like(logprobs_N), batch, AlgorithmConfig())
    metrics = tally.reduce()
    assert metrics["sampling/importance_sampling_ratio/mean"] == 1.0
    assert "sampling/sampling_logp_difference/mean" not in metrics


def test_what_is_not_filled_in_is_named():
    batch = micro_batch(make_sequences(2))
    logprobs_N = torch.zeros(batch.target_N.numel())
    with pytest.raises(ValueError, match="old_logprobs_N"):
        policy_loss(logprobs_N, logprobs_N, batch, AlgorithmConfig())
    batch.old_logprobs_N = logprobs_N
    with pytest.raises(ValueError, match="ref_logprobs_N"):
        policy_loss(logprobs_N, logprobs_N, batch, AlgorithmConfig(beta=0.1))


def run(
    policy: Policy, sequences: list[TrainingSequence], cuts: list[list[int]], algorithm: AlgorithmConfig
) -> tuple[float, torch.Tensor, dict[str, float]]:
    """Loss, gradient and metrics of one update over `sequences`, cut into the micro-batches `cuts`."""
    update_tokens = sum(sequence.num_trained for sequence in sequences)
    policy.zero_grad()
    total, tally = 0.0, Tally()
    batches = [
        collate(
            [sequences[i] for i in indices],
            version=VERSION,
            update_tokens=update_tokens,
            pad_token_id=0,
            device="cpu",
        )
        for indices in cuts
    ]
    if algorithm.masks_low_entropy:
        with torch.no_grad():
            entropies = [policy(*batch.inputs)[1] for batch in batches]
        mark_high_entropy(batches, entropies, top_quantile=algorithm.top_entropy_quantile)
    for batch in batches:
        batch.old_logprobs_N = batch.rollout_logprobs_N
        batch.ref_logprobs_N = batch.rollout_logprobs_N + 0.1
        loss, part = policy_loss(*policy(*batch.inputs), batch, algorithm)
        loss.backward()
        total += loss.item()
        tally.merge(part)
    gradient = torch.cat([p.grad.flatten() for p in policy.parameters()])
    return total, gradient, tally.reduce()


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
@pytest.mark.parametrize("seed", range(2))
def test_loss_gradient_and_metrics_do_not_depend_on_how_the_update_is_cut(loss_type: str, seed: int):
    rng = random.Random(seed)
    policy = Policy(make_model(tied=True, hidden_size=64), temperature=1.0, chunk_tokens=16)
    mode = "token_mask" if loss_type == "vespo" else "sequence_mask"
    algorithm = AlgorithmConfig(
        loss_type=loss_type,
        beta=0.05,
        entropy_coef=0.02,
        importance_sampling_mode=mode,
        top_entropy_quantile=0.4 if seed % 2 else 1.0,
    )
    sequences = make_sequences(rng.randint(6, 16), algorithm, seed=seed)
    everything = list(range(len(sequences)))
    expected_loss, expected_gradient, expected_metrics = run(policy, sequences, [everything], algorithm)
    for _ in range(3):
        order = rng.sample(everything, len(everything))
        bounds = sorted({0, len(order), *(rng.randrange(1, len(order)) for _ in range(rng.randint(1, 6)))})
        cuts = [order[a:b] for a, b in pairwise(bounds)] + [[]] * rng.randint(0, 2)
        loss, gradient, metrics = run(policy, sequences, cuts, algorithm)
        # A · log π is far from 0 at every token, and cancels in the sum.
        cancels = LOSS_TYPES[loss_type].surrogate in ("cispo", "dppo_tv", "dppo_kl", "vespo", "reinforce")
        assert loss == pytest.approx(expected_loss, rel=1e-6, abs=1e-6 if cancels else 1e-7)
        # VESPO's weight multiplies the rounding of all logprobs of an episode.
        bound = 1e-5 if loss_type == "vespo" else 1e-6
        assert (gradient - expected_gradient).norm() < bound * expected_gradient.norm()
        assert metrics.keys() == expected_metrics.keys()
        for name, value in metrics.items():
            assert value == pytest.approx(expected_metrics[name], rel=1e-5, abs=1e-6), name


def test_the_micro_batches_of_one_update_add_up_to_the_update():
    """The same through `build_updates`: any token budget, any number of ranks."""
    policy = Policy(make_model(tied=False, hidden_size=64), temperature=1.0, chunk_tokens=16)
    algorithm = AlgorithmConfig(loss_type="grpo")
    several = [(two_segments(number), 0.1 * number - 0.2) for number in range(4)]
    sequences = decided([*make_taken(13, seed=7), *several], algorithm)
    results = []
    for world_size, budget in ((1, 100_000), (1, 40), (2, 60), (3, 30)):
        policy.zero_grad()
        for rank in range(world_size):
            (update,) = build_updates(
                sequences,
                version=VERSION,
                tokens_per_micro_batch=budget,
                rank=rank,
                world_size=world_size,
                pad_token_id=0,
                device="cpu",
            )
            for batch in update:
                logprobs_N, entropy_N = policy(*batch.inputs)
                batch.old_logprobs_N = old_logprobs(batch, logprobs_N)
                policy_loss(logprobs_N, entropy_N, batch, algorithm)[0].backward()
        results.append(torch.cat([p.grad.flatten() for p in policy.parameters()]))
    for gradient in results[1:]:
        assert (gradient - results[0]).norm() < 1e-6 * results[0].norm()


@pytest.mark.parametrize("mode", ["token_truncate", "sequence_mask"])
def test_loss_and_gradient_do_not_depend_on_where_an_episode_is_cut(mode: str):
    """One segment of two turns, and the same two turns as two segments, each with what came before it as context."""
    tokens = list(range(5, 25))
    turns = [Turn(3, 8, [(VERSION, 5)], "stop", "a"), Turn(12, 20, [(VERSION, 8)], "stop", "b")]
    logprobs = [-4.0 - 0.1 * k for k in range(13)]
    whole = Episode("whole", [Segment(tokens, turns, logprobs)])
    cut = Episode("cut", [Segment(tokens[:8], turns[:1], logprobs[:5]), Segment(tokens, turns[1:], logprobs[5:])])
    policy = Policy(make_model(tied=True, hidden_size=64), temperature=1.0, chunk_tokens=16)
    algorithm = AlgorithmConfig(loss_type="grpo", importance_sampling_mode=mode, importance_sampling_clip_max=1e9)
    results = []
    for episode in (whole, cut):
        batch = micro_batch(decided([(episode, 0.7), (two_segments(), -0.3)], algorithm), weight=0.1)
        policy.zero_grad()
        logprobs_N, entropy_N = policy(*batch.inputs)
        batch.old_logprobs_N = old_logprobs(batch, logprobs_N)
        loss, tally = policy_loss(logprobs_N, entropy_N, batch, algorithm)
        loss.backward()
        gradient = torch.cat([p.grad.flatten() for p in policy.parameters()])
        results.append((loss.item(), gradient, tally.reduce()))
    (loss, gradient, metrics), (loss_cut, gradient_cut, metrics_cut) = results
    assert loss_cut == pytest.approx(loss, rel=1e-5)
    assert (gradient_cut - gradient).norm() < 1e-5 * gradient.norm()
    assert metrics_cut == pytest.approx(metrics, rel=1e-4, abs=1e-6)
