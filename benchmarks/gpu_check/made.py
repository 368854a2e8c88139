"""What the checks compute with: micro-batches, models of random weights, sequences for them."""

import torch

from grpo_trainer.algorithm.sequences import MicroBatch


def made_batch(num_episodes: int, length: int, device: torch.device, dtype: torch.dtype) -> MicroBatch:
    """Episodes of `length` trained tokens whose policy moved away from what sampled them, a quarter of them stale."""
    made = torch.Generator().manual_seed(0)
    count = num_episodes * length

    def normal(scale: float, size: int = count) -> torch.Tensor:
        return (scale * torch.randn(size, generator=made, dtype=torch.float64)).to(device, dtype)

    episode_N = torch.arange(num_episodes, device=device).repeat_interleave(length)
    old_N = -2.0 + normal(0.5)
    return MicroBatch(
        input_ids_BL=torch.zeros(num_episodes, length + 1, dtype=torch.int64, device=device),
        hidden_N=torch.arange(count, device=device),
        target_N=torch.zeros(count, dtype=torch.int64, device=device),
        episode_N=episode_N,
        position_N=torch.arange(1, length + 1, device=device).repeat(num_episodes),
        advantage_N=normal(1.0, num_episodes)[episode_N],
        rollout_logprobs_N=old_N + normal(0.05),
        fresh_N=episode_N % 4 != 0,
        mixed_N=episode_N % 4 == 1,
        weight_N=torch.full((count,), 1.0 / count, device=device, dtype=dtype),
        num_episodes=num_episodes,
        update_tokens=count,
        trained_Q=[length] * num_episodes,
        old_logprobs_N=old_N,
        ref_logprobs_N=old_N + normal(0.1),
    )


def moved(old_N: torch.Tensor) -> torch.Tensor:
    """Logprobs of a policy a little away from `old_N`, the same numbers on every device."""
    step_N = torch.randn(len(old_N), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return (old_N + (0.2 * step_N).to(old_N)).requires_grad_()


def relative_difference(found: torch.Tensor, right: torch.Tensor) -> float:
    """max |found − right| / max |right|, in float64 on the CPU; NaN if one is not finite."""
    found, right = found.detach().double().cpu(), right.detach().double().cpu()
    return float((found - right).abs().max() / right.abs().max().clamp(min=1e-30))
