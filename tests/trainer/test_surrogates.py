"""Surrogates that no peer at hand has, against their formulas written out; and what they refuse."""

import math
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from tests.trainer import losses_page
from tests.trainer.made_episodes import VERSION, build_updates, decided, make_taken

from grpo_trainer.algorithm.entropy_mask import mark_high_entropy
from grpo_trainer.algorithm.kl import kl_term
from grpo_trainer.algorithm.loss import policy_loss
from grpo_trainer.algorithm.reduction import Tally
from grpo_trainer.algorithm.sequences import Episode, MicroBatch, Segment, Turn
from grpo_trainer.algorithm.surrogates import SURROGATES, surrogate_of
from grpo_trainer.algorithm.surrogates.ratios import mean_by_episode
from grpo_trainer.algorithm.trial import check_settings
from grpo_trainer.config.algorithm import LOSS_TYPES, AlgorithmConfig
from grpo_trainer.errors import UsageError


def made_batch(scale: float = 1.0) -> tuple[MicroBatch, torch.Tensor]:
    """Twelve episodes, half of them of a negative advantage, and logprobs away from those that sampled them."""
    ((batch,),) = build_updates(decided(make_taken(12, seed=3)), tokens_per_micro_batch=10_000)
    generator = torch.Generator().manual_seed(1)
    noise_N = torch.randn(batch.target_N.numel(), generator=generator) * scale
    batch.old_logprobs_N = batch.rollout_logprobs_N + 0.01
    return batch, (batch.rollout_logprobs_N / 8 + noise_N).clamp(max=-1e-3).requires_grad_()


def loss_of(name: str, batch: MicroBatch, logprobs_N: torch.Tensor, **settings: object) -> torch.Tensor:
    algorithm = AlgorithmConfig(loss_type=name, **settings)  # type: ignore[arg-type]
    return surrogate_of(algorithm)(logprobs_N, batch, algorithm, Tally())


@pytest.mark.parametrize(("name", "threshold"), [("dppo_tv", 0.15), ("dppo_kl", 0.05)])
def test_dppo_takes_the_gradient_of_tokens_that_moved_too_far_the_way_of_their_advantage(name: str, threshold: float):
    batch, logprobs_N = made_batch()
    batch.rollout_logprobs_N = batch.rollout_logprobs_N / 8
    loss_N = loss_of(name, batch, logprobs_N)
    expected, masked = [], 0
    for log_p, log_q, advantage in zip(
        logprobs_N.tolist(), batch.rollout_logprobs_N.tolist(), batch.advantage_N.tolist(), strict=True
    ):
        p, q = math.exp(log_p), math.exp(log_q)
        distance = abs(p - q) if name == "dppo_tv" else q * math.log(q / p) + (1 - q) * math.log((1 - q) / (1 - p))
        outside = distance > threshold and (p > q if advantage > 0 else p < q)
        masked += outside
        expected.append(0.0 if outside else -min(p / q, 20.0) * advantage * log_p)
    assert 0 < masked < len(expected)
    assert loss_N.tolist() == pytest.approx(expected, rel=2e-5, abs=1e-6)
    (gradient_N,) = torch.autograd.grad(loss_N.sum(), logprobs_N)
    ratio_N = torch.exp(logprobs_N.detach() - batch.rollout_logprobs_N).clamp(max=20.0)
    kept_N = torch.tensor([float(value != 0.0) for value in expected])
    torch.testing.assert_close(gradient_N, -kept_N * ratio_N * batch.advantage_N)


def test_reinforce_has_the_gradient_of_the_clipped_loss_while_the_policy_is_the_old_one():
    batch, logprobs_N = made_batch()
    batch.old_logprobs_N = logprobs_N.detach()
    (of_reinforce,) = torch.autograd.grad(loss_of("reinforce", batch, logprobs_N).sum(), logprobs_N)
    (of_clipped,) = torch.autograd.grad(loss_of("dapo", batch, logprobs_N).sum(), logprobs_N)
    torch.testing.assert_close(of_reinforce, of_clipped)


def test_gspo_token_is_gspo_where_an_episode_has_one_advantage():
    batch, logprobs_N = made_batch(scale=0.1)
    batch.old_logprobs_N = logprobs_N.detach() + 1e-4 * torch.linspace(-3, 3, len(logprobs_N))
    results = []
    for name in ("gspo", "gspo_token"):
        # The gradient of an episode is what counts: that of its sum, with the weight of the normaliser.
        loss_N = loss_of(name, batch, logprobs_N)
        results.append((loss_N.detach(), torch.autograd.grad((batch.weight_N * loss_N).sum(), logprobs_N)[0]))
    torch.testing.assert_close(results[0], results[1])
    assert len(results[0][1].unique()) > 6


def test_gspo_token_acts_with_the_advantage_of_each_token():
    batch, logprobs_N = made_batch(scale=0.1)
    batch.old_logprobs_N = logprobs_N.detach()
    batch.advantage_N = torch.linspace(-1, 1, len(logprobs_N))
    (gradient_N,) = torch.autograd.grad(loss_of("gspo_token", batch, logprobs_N).sum(), logprobs_N)
    torch.testing.assert_close(gradient_N, -batch.advantage_N)


def several_turns() -> Episode:
    """Two turns around context of nine tokens, of which one is masked, and a segment of its own."""
    turns = [Turn(3, 7, [(VERSION, 4)], "stop"), Turn(9, 12, [(VERSION, 3)], "stop", masked="mixed")]
    turns.append(Turn(16, 20, [(VERSION, 4)], "stop"))
    segments = [Segment(list(range(5, 25)), turns), Segment(list(range(30, 38)), [Turn(2, 8, [(VERSION, 6)], "stop")])]
    return Episode("several turns", segments, status="completed")


def moved_batch(scale: float) -> tuple[MicroBatch, torch.Tensor]:
    """Episodes of one turn and of several, and logprobs far from the old ones."""
    taken = [*make_taken(8, seed=3), (several_turns(), -0.7), (several_turns(), 0.7)]
    ((batch,),) = build_updates(decided(taken), tokens_per_micro_batch=10_000)
    generator = torch.Generator().manual_seed(2)
    batch.old_logprobs_N = -1.0 - torch.rand(len(batch.target_N), generator=generator)
    shift_N = scale * torch.randn(len(batch.target_N), generator=generator)
    return batch, (batch.old_logprobs_N + shift_N).requires_grad_()


FIPO = [
    {"fipo_decay_rate": 3.0},
    {"fipo_decay_rate": 2.0, "fipo_clip_range": 0.5, "fipo_clip_high_only": False},
    {"fipo_decay_rate": 2.0, "fipo_clip_range": None, "fipo_safety_threshold": 1.5},
    {"fipo_decay_rate": 2.0, "fipo_clip_range": 0, "fipo_safety_threshold": None},
]


@pytest.mark.parametrize("params", FIPO, ids=str)
@pytest.mark.parametrize("settings", [{}, {"delta": 2.0}, {"importance_sampling_level": "sequence"}], ids=str)
def test_fipo_weighs_the_clipped_loss_by_what_happens_to_the_tokens_that_follow(
    params: dict[str, Any], settings: dict[str, Any]
):
    batch, logprobs_N = moved_batch(1.5)
    shift_N = (logprobs_N - batch.old_logprobs_N).detach()
    ratio_N = shift_N.exp()
    if settings.get("importance_sampling_level") == "sequence":
        ratio_N = mean_by_episode(shift_N, batch).exp()[batch.episode_N]
    discount, width = 2 ** (-1 / params["fipo_decay_rate"]), params.get("fipo_clip_range", 0.2)
    delta, threshold = settings.get("delta"), params.get("fipo_safety_threshold", 4.0)
    futures, weights, safe = [], [], 0
    sequences = [q for q, count in enumerate(batch.trained_Q) for _ in range(count)]
    positions = batch.position_N.tolist()
    for n, sequence in enumerate(sequences):
        future = sum(
            discount ** (positions[k] - positions[n]) * shift_N[k].item()
            for k in range(n, len(sequences))
            if sequences[k] == sequence and (delta is None or ratio_N[k] <= delta)
        )
        weight = math.exp(future)
        if width:
            weight = min(max(weight, 1.0 if params.get("fipo_clip_high_only", True) else 1 - width), 1 + width)
        if threshold is not None and batch.advantage_N[n] < 0 and ratio_N[n] > threshold:
            weight = min(max(weight, 0.8), 1.0)
            safe += 1
        futures.append(future)
        weights.append(weight)
    tally = Tally()
    algorithm = AlgorithmConfig(loss_type="fipo", params=params, **settings)
    loss_N = surrogate_of(algorithm)(logprobs_N, batch, algorithm, tally)
    plain_N, weight_N = loss_of("dapo", batch, logprobs_N, **settings), torch.tensor(weights)
    torch.testing.assert_close(loss_N, weight_N * plain_N)
    (gradient_N,) = torch.autograd.grad(loss_N.sum(), logprobs_N)
    (plain_gradient_N,) = torch.autograd.grad((weight_N * plain_N).sum(), logprobs_N)
    torch.testing.assert_close(gradient_N, plain_gradient_N)
    metrics = {name: (total / count).item() for name, (total, count) in tally.sums_and_counts.items()}
    assert metrics["fipo/future_kl_mean"] == pytest.approx(sum(futures) / len(futures), rel=1e-5, abs=1e-6)
    assert metrics["fipo/influence_weight_mean"] == pytest.approx(sum(weights) / len(weights), rel=1e-5)
    assert metrics["fipo/safety_keep_ratio"] == pytest.approx(1 - safe / len(weights))
    assert max(batch.trained_Q) > 8
    assert threshold is None or safe or settings


def test_fipo_has_a_gradient_of_0_without_advantage_however_far_the_policy_moved():
    batch, logprobs_N = moved_batch(1.5)
    batch.old_logprobs_N, batch.advantage_N = logprobs_N.detach() - 60.0, torch.zeros_like(batch.advantage_N)
    loss_N = loss_of("fipo", batch, logprobs_N, params={"fipo_clip_range": 0})
    loss_N.sum().backward()
    assert not loss_N.any()
    assert not logprobs_N.grad.any()


def test_fipo_is_the_clipped_loss_while_the_policy_is_the_old_one():
    batch, logprobs_N = made_batch()
    batch.old_logprobs_N = logprobs_N.detach()
    torch.testing.assert_close(loss_of("fipo", batch, logprobs_N), loss_of("dapo", batch, logprobs_N))


def test_dual_clip_is_delta():
    batch, logprobs_N = made_batch()
    ratio_N = torch.exp(logprobs_N - batch.old_logprobs_N)
    advantage_N = batch.advantage_N
    usual_N = torch.max(-ratio_N * advantage_N, -ratio_N.clamp(0.8, 1.2) * advantage_N)
    dual_N = torch.where(advantage_N < 0, torch.min(usual_N, -3.0 * advantage_N), usual_N)
    torch.testing.assert_close(loss_of("dapo", batch, logprobs_N, delta=3.0), dual_N)
    assert (dual_N != usual_N).any()


@pytest.mark.parametrize("name", LOSS_TYPES)
def test_a_preset_shows_the_defaults_that_it_changes_and_takes_others(name: str):
    algorithm = AlgorithmConfig(loss_type=name)  # type: ignore[arg-type]
    for setting, value in LOSS_TYPES[name].settings.items():
        assert getattr(algorithm, setting) == value
        assert algorithm.model_dump()[setting] == value
    assert AlgorithmConfig(loss_type=name, epsilon=0.11).epsilon == 0.11  # type: ignore[arg-type]


@pytest.mark.parametrize("name", SURROGATES)
def test_an_idle_rank_records_the_same_metrics(name: str):
    """Otherwise ranks would exchange the names in every update."""
    algorithm = AlgorithmConfig(loss=name, off_policy_mask_threshold=0.1, top_entropy_quantile=0.5)
    batch, logprobs_N = made_batch()
    ((nothing,),) = build_updates([], tokens_per_micro_batch=10, num_updates=1)
    nothing.old_logprobs_N = nothing.rollout_logprobs_N
    mark_high_entropy([batch, nothing], [-logprobs_N.detach(), torch.zeros(0)], top_quantile=0.5)
    names = []
    for one, of_one in ((batch, logprobs_N), (nothing, torch.zeros(0, requires_grad=True))):
        loss, tally = policy_loss(of_one, -of_one.detach(), one, algorithm, SURROGATES[name])
        assert loss.isfinite()
        names.append(tally.names)
    assert names[0] == names[1]


def test_the_page_of_losses_is_that_of_the_tables():
    assert losses_page.PAGE.read_text() == losses_page.page(), "run python -m tests.trainer.losses_page"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"loss_type": "gmpo", "importance_sampling_level": "sequence"}, "the loss gmpo does not read it"),
        ({"loss_type": "decoupled", "importance_sampling_correction": False}, "leaves the policy that sampled to the"),
        ({"loss_type": "vespo", "importance_sampling_mode": "sequence_mask"}, "has one for the whole episode"),
    ],
)
def test_settings_that_exclude_each_other_are_refused(settings: dict[str, object], message: str):
    with pytest.raises(UsageError, match=message):
        check_settings(AlgorithmConfig(**settings))  # type: ignore[arg-type]


def test_bounds_of_the_correction_in_the_wrong_order_are_refused():
    with pytest.raises(ValidationError, match="importance_sampling_clip_min 5 is not below"):
        AlgorithmConfig(importance_sampling_clip_min=5.0)


def test_k2_has_the_gradient_of_the_reverse_kl_and_is_half_a_square():
    batch, logprobs_N = made_batch(scale=0.1)
    batch.ref_logprobs_N = logprobs_N.detach() - torch.linspace(-1, 1, len(logprobs_N))
    kl_N = kl_term(logprobs_N, batch, AlgorithmConfig(beta=0.1, kl_estimator="k2"))
    difference_N = logprobs_N.detach() - batch.ref_logprobs_N
    torch.testing.assert_close(kl_N.detach(), difference_N**2 / 2)
    torch.testing.assert_close(torch.autograd.grad(kl_N.sum(), logprobs_N)[0], difference_N)


def test_k1_is_refused_as_a_term_of_the_loss():
    with pytest.raises(ValidationError, match="set algorithm"):
        AlgorithmConfig(beta=0.1, kl_estimator="k1")  # type: ignore[arg-type]
