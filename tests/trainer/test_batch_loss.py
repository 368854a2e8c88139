"""The loss of a micro-batch in one pass through the output head against two. The head alone: test_output_head.py."""

import pytest
import torch
from tests.tiny_model import make_model
from tests.trainer.made_episodes import build_updates, decided, make_taken, two_segments

from grpo_trainer.algorithm.entropy_mask import mark_high_entropy
from grpo_trainer.algorithm.surrogates import surrogate_of
from grpo_trainer.algorithm.surrogates.reads import is_by_token
from grpo_trainer.config.algorithm import LOSS_TYPES, AlgorithmConfig
from grpo_trainer.engine import batch_loss as module
from grpo_trainer.engine.policy import Policy

IN_TWO_PASSES = {"gspo", "gspo_token", "luspo", "gmpo", "fipo", "vespo"}
BY_EPISODE = [
    {"importance_sampling_mode": "sequence_mask"},
    {"importance_sampling_level": "sequence"},
    {"off_policy_mask_threshold": 0.1},
]


def computed(
    algorithm: AlgorithmConfig, *, given_old: bool, entropy_coef: float = 0.0
) -> tuple[int, dict[str, float], list[torch.Tensor]]:
    """Products of logits, metrics, and what was found: loss, old logprobs, gradients. Episodes lie across chunks."""
    policy = Policy(make_model(tied=True, hidden_size=64), temperature=0.9, chunk_tokens=16)
    taken = [*make_taken(9, seed=4, stale_share=0.3), (two_segments(), 0.4)]
    ((batch,),) = build_updates(decided(taken, algorithm), tokens_per_micro_batch=10_000)
    inputs = batch.inputs
    with torch.no_grad():
        logprobs_N, entropy_N = policy(*inputs)
    # A policy that has moved: some ratios are clipped.
    moved_N = logprobs_N + 0.3 * torch.randn(len(logprobs_N), generator=torch.Generator().manual_seed(0))
    batch.ref_logprobs_N, batch.old_logprobs_N = moved_N, moved_N if given_old else None
    mark_high_entropy([batch], [entropy_N], top_quantile=0.6)
    passes = []
    policy.head.register_forward_hook(lambda head, inputs, outputs: passes.append(4 - len(outputs)))
    loss, tally = module.batch_loss(
        policy, batch, algorithm, surrogate_of(algorithm), entropy_coef=entropy_coef, fills_old=True
    )
    loss.backward()
    assert batch.old_logprobs_N is not None
    gradients = [parameter.grad for parameter in policy.parameters()]
    return passes[0], tally.reduce(), [loss.detach(), batch.old_logprobs_N, *gradients]


@pytest.mark.parametrize("given_old", [False, True], ids=["first update", "later update"])
@pytest.mark.parametrize("loss_type", sorted(set(LOSS_TYPES) - IN_TWO_PASSES))
def test_one_pass_has_loss_gradient_and_metrics_of_two(
    loss_type: str, given_old: bool, monkeypatch: pytest.MonkeyPatch
):
    algorithm = AlgorithmConfig(loss_type=loss_type, beta=0.1, top_entropy_quantile=0.6)  # type: ignore[arg-type]
    passes, metrics, found = computed(algorithm, given_old=given_old)
    monkeypatch.setattr(module, "is_by_token", lambda *_: False)
    passes_expected, metrics_expected, expected = computed(algorithm, given_old=given_old)
    assert (passes, passes_expected) == (1, 2)
    assert metrics == pytest.approx(metrics_expected, rel=1e-6, abs=1e-7)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("settings", [*({"loss_type": name} for name in sorted(IN_TWO_PASSES)), *BY_EPISODE], ids=str)
def test_a_loss_that_depends_on_the_other_tokens_takes_two_passes(settings: dict[str, object]):
    algorithm = AlgorithmConfig(**settings)  # type: ignore[arg-type]
    assert not is_by_token(surrogate_of(algorithm), algorithm)
    assert computed(algorithm, given_old=True)[0] == 2


def test_an_entropy_bonus_takes_two_passes():
    assert computed(AlgorithmConfig(), given_old=False, entropy_coef=0.01)[0] == 2
