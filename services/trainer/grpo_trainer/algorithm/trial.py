"""The trial: what is wrong with the settings of the algorithm is found before the run waits for anything."""

from dataclasses import replace

import torch

from ..config.algorithm import AlgorithmConfig
from ..config.run_config import RunConfig
from ..config.teacher import teacher_setting
from ..errors import RunError, UsageError
from .estimators import ESTIMATORS, estimator_of
from .loss import policy_loss
from .normalisers import normaliser_of
from .sequences import MicroBatch
from .surrogates import SURROGATES, reads_of, surrogate_of
from .surrogates.reads import is_by_token, keeps_reference, prepared_for


def check_algorithm(config: RunConfig) -> None:
    """Raise UsageError for a surrogate, a normaliser or an estimator that is in no table and in no file, for a user's
    surrogate that cannot be trained with, and for one that reads what the run does not have or has otherwise."""
    algorithm = config.algorithm
    surrogate = surrogate_of(algorithm)
    normaliser_of(algorithm)
    estimator = estimator_of(algorithm)
    if config.rollout.num_generations < 2 and estimator.compares_in_group and not config.teachers:
        without_groups = [name for name, known in ESTIMATORS.items() if not known.compares_in_group]
        raise UsageError(
            f"algorithm.advantage_estimator {algorithm.advantage_estimator} compares the completions of a prompt, and "
            "with rollout.num_generations 1 there is one: every advantage would be 0",
            hint="set rollout.num_generations to 2 or more, or algorithm.advantage_estimator to "
            f"{' or '.join(without_groups)}",
        )
    if reads_of(surrogate).behaviour and config.rollout.distorting:
        raise UsageError(
            f"algorithm.loss {algorithm.surrogate_name} reads the servers' logprobs, and with "
            f"{', '.join(config.rollout.distorting)} they are of another distribution than the policy's",
            hint="sample without it, or choose a loss that reads the trainer's own logprobs",
        )
    if reads_of(surrogate).episode_advantage and config.teachers:
        raise UsageError(
            f"algorithm.loss {algorithm.surrogate_name} reads one advantage for a whole completion, and a teacher "
            "gives each token its own",
            hint=f"choose another loss, or leave {teacher_setting(next(iter(config.teachers)), config)} out",
        )
    check_settings(algorithm)
    if algorithm.sync_ref_model:
        check_moving_reference(config)
    if algorithm.surrogate_name not in SURROGATES:
        try_out(algorithm)


def check_settings(algorithm: AlgorithmConfig) -> None:
    """Raise UsageError for settings that the surrogate does not read or cannot do with."""
    reading = reads_of(surrogate_of(algorithm))
    if algorithm.importance_sampling_level != "token" and not reading.level:
        of_ratios = [name for name, surrogate in SURROGATES.items() if reads_of(surrogate).level]
        raise UsageError(
            f"algorithm.importance_sampling_level is {algorithm.importance_sampling_level}, and the loss "
            f"{algorithm.surrogate_name} does not read it",
            hint=f"set it to token, or choose a loss of ratios: {', '.join(of_ratios)}",
        )
    if reading.proximal and not algorithm.importance_sampling_correction:
        raise UsageError(
            f"algorithm.loss {algorithm.surrogate_name} leaves the policy that sampled to the correction, which is off",
            hint="set algorithm.importance_sampling_correction true",
        )
    if reading.token_correction and not algorithm.importance_sampling_mode.startswith("token"):
        raise UsageError(
            f"algorithm.loss {algorithm.surrogate_name} combines the corrections of single tokens, and "
            f"importance_sampling_mode {algorithm.importance_sampling_mode} has one for the whole episode",
            hint="set algorithm.importance_sampling_mode to token_truncate or token_mask",
        )


def check_moving_reference(config: RunConfig) -> None:
    """Raise UsageError when the run has no reference model, or none with weights of its own."""
    if not keeps_reference(surrogate_of(config.algorithm), config.algorithm):
        raise UsageError(
            "algorithm.sync_ref_model moves the reference model, and the loss reads none",
            hint="set algorithm.beta above 0, or algorithm.sync_ref_model false",
        )
    if config.model.lora is not None:
        raise UsageError(
            "algorithm.sync_ref_model moves the reference model, which with model.lora is the frozen model below the "
            "adapter",
            hint="set algorithm.sync_ref_model false, or train all weights, without model.lora",
        )


def try_out(algorithm: AlgorithmConfig) -> None:
    """Call a user's surrogate on made tokens: seven in three episodes, then none, as an idle rank has.

    Raises UsageError when it raises, when its loss is not one finite number for each token or does not depend on the
    logprobs, and when it declares `by_token` and depends on other tokens.
    """
    name, surrogate = f"algorithm.loss {algorithm.surrogate_name}", surrogate_of(algorithm)
    reading = prepared_for(surrogate, algorithm)
    for made in (_made([3, 2, 2]), _made([])):
        batch = made if reading.reference else replace(made, ref_logprobs_N=None)
        logprobs_N = torch.linspace(-0.3, -2.0, len(batch.target_N)).requires_grad_()
        try:
            loss, _ = policy_loss(logprobs_N, -logprobs_N.detach(), batch, algorithm, surrogate)
            of_single_tokens = None
            if is_by_token(surrogate, algorithm):
                of_single_tokens = _sum_of_single_tokens(logprobs_N.detach(), batch, algorithm)
        except RunError as error:
            hint = error.hint
            if "raised" in error.message and "NoneType" in error.message:
                hint = "what a loss reads of the batch it declares, such as @reads(reference=True): CONTRIBUTING.md"
            raise UsageError(error.message, hint) from error
        if not loss.isfinite():
            raise UsageError(f"{name} is {loss.item()} for {len(batch.target_N)} tokens", hint="an empty sum is 0")
        if len(batch.target_N) and not loss.requires_grad:
            raise UsageError(f"{name} does not depend on logprobs_N: it has no gradient", hint="do not detach them")
        if loss.requires_grad:
            loss.backward()
            if not logprobs_N.grad.isfinite().all():
                raise UsageError(f"the gradient of {name} is not finite", hint=f"it is {logprobs_N.grad.tolist()}")
        if of_single_tokens is not None and not torch.allclose(of_single_tokens, loss.detach()):
            raise UsageError(
                f"{name} declares by_token, and the losses of single tokens do not add up to the loss of all",
                hint="leave by_token out of what it reads",
            )


def _sum_of_single_tokens(logprobs_N: torch.Tensor, batch: MicroBatch, algorithm: AlgorithmConfig) -> torch.Tensor:
    """The loss of each token as of a micro-batch without the others, all of them together."""
    total = torch.zeros(())
    for token in (slice(number, number + 1) for number in range(len(logprobs_N))):
        own, alone = logprobs_N[token], batch.part(token)
        total = total + policy_loss(own, -own, alone, algorithm, surrogate_of(algorithm))[0]
    return total


def _made(lengths: list[int]) -> MicroBatch:
    """Episodes of `lengths` trained tokens, the last one stale, their policy a little away from what sampled them."""
    count = sum(lengths)
    numbers_N = torch.arange(count)
    episode_N = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths, dtype=torch.int64))
    old_N = torch.linspace(-0.4, -1.7, count)
    return MicroBatch(
        input_ids_BL=torch.zeros(max(len(lengths), 1), max(lengths, default=0) + 1, dtype=torch.int64),
        hidden_N=numbers_N,
        target_N=torch.zeros_like(numbers_N),
        episode_N=episode_N,
        position_N=torch.cat([numbers_N[:0], *(torch.arange(1, length + 1) for length in lengths)]),
        advantage_N=torch.tensor([1.0, -0.5, 0.0])[episode_N],
        rollout_logprobs_N=old_N - 0.01,
        fresh_N=episode_N < 2,
        mixed_N=episode_N == 1,
        weight_N=torch.full((count,), 1.0 / max(count, 1)),
        num_episodes=len(lengths),
        update_tokens=count,
        trained_Q=lengths,
        old_logprobs_N=old_N,
        ref_logprobs_N=old_N - 0.1,
        high_entropy_N=numbers_N % 2 == 0,
        update_high_entropy_tokens=(count + 1) // 2,
    )
