"""Which tokens the entropy mask keeps; TRL's loss and gradient are in trl_cases.py, real ranks in engine_worker.py."""

import pytest
import torch
from tests.trainer.made_episodes import build_updates, make_sequences

from grpo_trainer.algorithm.entropy_mask import mark_high_entropy
from grpo_trainer.algorithm.loss import policy_loss
from grpo_trainer.algorithm.sequences import MicroBatch
from grpo_trainer.algorithm.surrogates.reinforce import reinforce
from grpo_trainer.config.algorithm import AlgorithmConfig


def made_update() -> list[MicroBatch]:
    """One optimizer update in several micro-batches."""
    (update,) = build_updates(make_sequences(9, seed=2), tokens_per_micro_batch=40)
    assert len(update) > 2
    return update


def made_entropies(update: list[MicroBatch]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.rand(len(batch.target_N), generator=generator) for batch in update]


@pytest.mark.parametrize("top_quantile", [0.0, 0.2, 0.5, 0.9])
def test_the_threshold_is_the_quantile_over_all_micro_batches(top_quantile: float):
    update = made_update()
    entropies = made_entropies(update)
    mark_high_entropy(update, entropies, top_quantile=top_quantile)
    of_update = torch.cat(entropies)
    kept = of_update >= torch.quantile(of_update, 1.0 - top_quantile)
    assert torch.equal(torch.cat([batch.high_entropy_N for batch in update]), kept)
    assert {batch.update_high_entropy_tokens for batch in update} == {int(kept.sum())}


def test_tokens_of_one_entropy_are_kept_together_whatever_its_rounding():
    update = made_update()
    entropies = made_entropies(update)
    tied = [0.5 + k * 2e-7 for k in range(10)]
    entropies[0][:5], entropies[1][:5] = torch.tensor(tied[:5]), torch.tensor(tied[5:])
    share_above = float((torch.cat(entropies) > tied[4]).double().mean())
    mark_high_entropy(update, entropies, top_quantile=share_above)
    assert update[0].high_entropy_N[:5].all()
    assert update[1].high_entropy_N[:5].all()


def test_a_masked_token_has_no_policy_gradient_and_no_bonus():
    algorithm = AlgorithmConfig(
        loss_type="reinforce", top_entropy_quantile=0.3, entropy_coef=0.1, importance_sampling_correction=False
    )
    update = made_update()
    mark_high_entropy(update, made_entropies(update), top_quantile=0.3)
    batch = update[0]
    logprobs_N = batch.rollout_logprobs_N.clone().requires_grad_()
    entropy_N = torch.ones(len(logprobs_N), requires_grad=True)
    loss, tally = policy_loss(logprobs_N, entropy_N, batch, algorithm, reinforce)
    loss.backward()
    kept_N = batch.high_entropy_N
    torch.testing.assert_close(logprobs_N.grad, -batch.advantage_N * batch.weight_N * kept_N)
    torch.testing.assert_close(entropy_N.grad, -0.1 * kept_N / batch.update_high_entropy_tokens)
    assert tally.reduce()["entropy_mask/masked"] == pytest.approx(1 - float(kept_N.double().mean()))


def test_a_mask_that_is_not_filled_in_is_named():
    batch = made_update()[0]
    logprobs_N = batch.rollout_logprobs_N
    with pytest.raises(ValueError, match="high_entropy_N is not filled in"):
        policy_loss(
            logprobs_N, -logprobs_N, batch, AlgorithmConfig(loss="reinforce", top_entropy_quantile=0.5), reinforce
        )
