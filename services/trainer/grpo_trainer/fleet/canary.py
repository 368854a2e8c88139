"""The canary: check that the served policy computes the same logprobs as the trained policy.

A digest proves that the bytes arrived, not that the engine uses them: it may keep a second, older copy of a weight. So
every server samples a few fixed prompts with fixed seeds, and the trainer compares the server's logprobs with those of
its own forward pass over the same tokens. The prompts span the lengths of the run's sequences.

The canary samples without top_p, top_k, min_p and penalties, whatever the run uses: only then do both sides report
logprobs of the same distribution.
"""

import asyncio
import itertools
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from grpo_proto import Completion, ConflictError, InfrastructureError, Prompt, RolloutRequest, RolloutResponse, Sampling

from ..algorithm.batching import micro_batches
from ..algorithm.planning import Neighbours, fill_rows
from ..algorithm.prefixes import PrefixSharing
from ..algorithm.sequences import MicroBatch, Segment, TrainingSequence, Turn
from ..config.run_config import RunConfig
from ..config.weights import CanaryConfig
from ..data.prompt_row import PromptRow
from ..errors import RunError
from .fleet import Fleet

log = logging.getLogger(__name__)

DEFAULT_BOUND = {
    ("cpu", "float32"): 1e-4, ("cpu", "bfloat16"): 0.02, ("cuda", "float32"): 0.01, ("cuda", "bfloat16"): 0.1,
}  # fmt: skip
"""Bounds by the trainer's device and the dtype of the weights. Two GPU engines differ more: for
Qwen2.5-0.5B-Instruct in bf16 the difference of a sampled token has a standard deviation of 0.05
(huggingface/trl#6789), for Qwen2.5-7B 0.04 in bf16 and 0.002 in float32 (ServiceNow/Fast-LLM#525)."""

MOE_QUANTILE = 0.75


class Scores(Protocol):
    """The trained policy, as far as the canary needs it."""

    device: torch.device

    def logprobs(self, micro_batches: Sequence[MicroBatch]) -> list[torch.Tensor]: ...


@dataclass(frozen=True)
class Probe:
    """One server's sample of one prompt."""

    url: str
    segment: Segment


def canary_prompts(rows: Sequence[PromptRow], config: CanaryConfig, *, shortest: int, longest: int) -> list[list[int]]:
    """Return `canary.num_prompts` prompts as token ids, the same in every call. They span the lengths of the run.

    With the canary's completion they are `shortest` to `longest` tokens long, in equal steps; one alone is the longest.
    Each is made of the prompts of the rows, one behind the other, and cut.
    """
    last = max(longest - config.max_tokens, shortest)
    steps = max(config.num_prompts - 1, 1)
    lengths = [last - (last - shortest) * number // steps for number in reversed(range(config.num_prompts))]
    return [_joined(rows, number, length) for number, length in enumerate(lengths)]


def _joined(rows: Sequence[PromptRow], first: int, length: int) -> list[int]:
    token_ids: list[int] = []
    for number in itertools.count(first):
        if len(token_ids) >= length:
            return token_ids[:length]
        token_ids += rows[number % len(rows)].token_ids
    raise AssertionError("unreachable: a prompt has a token")


async def sample_probes(
    fleet: Fleet,
    prompts: Sequence[list[int]],
    config: CanaryConfig,
    *,
    session: int,
    version: int,
    temperature: float,
) -> list[Probe]:
    """Have every member sample every prompt. A member that does not answer gets no probe, and no more traffic.

    A member that answers that it ran out of time gets no probe but keeps its traffic: it may be busy with other
    requests.
    """
    request = RolloutRequest(
        request_id=f"canary-{session}-{version}",
        session=session,
        min_version=version,
        prompts=[Prompt(token_ids=token_ids, seed=number) for number, token_ids in enumerate(prompts)],
        sampling=Sampling(temperature=temperature, max_tokens=config.max_tokens),
        deadline_s=120.0,
    )
    members = fleet.members
    asking = [replica.unless_lost(replica.rollouts.rollouts(request)) for replica in members]
    answers = await asyncio.gather(*asking, return_exceptions=True)
    for replica, answer in zip(members, answers, strict=True):
        if isinstance(answer, InfrastructureError) and answer.status is not None:
            log.warning("the canary has not checked %s: %s", replica.url, answer)
        elif isinstance(answer, InfrastructureError | ConflictError):
            await fleet.expel(replica, answer, session=session)
        elif isinstance(answer, BaseException):
            raise answer
    return [
        Probe(
            replica.url,
            _segment(group.prompt_token_ids, completion, version),
        )
        for replica, answer in zip(members, answers, strict=True)
        if isinstance(answer, RolloutResponse)
        for group in answer.groups
        for completion in group.completions
    ]


def _segment(prompt_token_ids: list[int], completion: Completion, version: int) -> Segment:
    token_ids = [*prompt_token_ids, *completion.token_ids]
    # The canary asks for one version, and nothing is pushed meanwhile: what spans the server reports does not matter.
    versions = [(version, len(completion.token_ids))]
    turn = Turn(len(prompt_token_ids), len(token_ids), versions, completion.finish_reason, completion.text)
    return Segment(token_ids, [turn], completion.logprobs)


def own_logprobs(
    engine: Scores,
    sequences: Sequence[TrainingSequence],
    *,
    version: int,
    tokens_per_micro_batch: int,
    pad_token_id: int,
    prefixes: PrefixSharing | None = None,
) -> list[list[float]]:
    """Compute the trainer's logprobs of the same tokens, on all ranks alike: the sequences are few and short.

    In padded rows, whatever the run trains with, so that what is compared with the servers shares nothing; or with
    `prefixes` shared. With many servers they do not fit one micro-batch.
    """
    if prefixes is None:
        longest_first = sorted(range(len(sequences)), key=lambda i: (-sequences[i].num_tokens, i))
        filled = fill_rows(sequences, [[i] for i in longest_first], tokens_per_micro_batch)
    else:
        neighbours = Neighbours(sequences, prefixes)
        in_order = neighbours.in_order([[i] for i in range(len(sequences))])
        filled = neighbours.fill(in_order, tokens_per_micro_batch)
    numbers = [[i for (i,) in units] for units in filled]
    (batches,) = micro_batches(
        sequences,
        [numbers],
        [0],
        version=version,
        pad_token_id=pad_token_id,
        device=engine.device,
        prefixes=prefixes,
    )
    found: dict[int, list[float]] = {}
    for indices, logprobs_N in zip(numbers, engine.logprobs(batches), strict=True):
        lengths = [sequences[i].num_trained for i in indices]
        found |= dict(zip(indices, (part.tolist() for part in logprobs_N.split(lengths)), strict=True))
    return [found[i] for i in range(len(sequences))]


@dataclass(frozen=True)
class Rule:
    """How far a server's logprobs may be from the trainer's own: their mean difference, or a quantile of it."""

    bound: float
    quantile: float | None = None

    def measure(self, differences: Sequence[float]) -> float:
        if self.quantile is None:
            return sum(differences) / max(len(differences), 1)
        return float(torch.tensor(differences, dtype=torch.float64).quantile(self.quantile)) if differences else 0.0

    def __str__(self) -> str:
        return "on average" if self.quantile is None else f"at the {self.quantile:.0%} quantile"


def rule_for(config: RunConfig, device: str, *, has_experts: bool) -> Rule:
    """The configured bound, or the default for the trainer's device and the dtype of the weights.

    On the mean, except for experts in bf16: where two experts are nearly as likely, rounding chooses another one on
    each side, and a few tokens with large differences say nothing about the weights. Wrong weights move most tokens.
    """
    bound = config.canary.max_logprob_difference or DEFAULT_BOUND[device, config.model.dtype]
    return Rule(bound, MOE_QUANTILE if has_experts and config.model.dtype == "bfloat16" else None)


def compared_urls(probes: Sequence[Probe]) -> set[str]:
    """Return the URLs of the servers of which at least one token is compared."""
    return {probe.url for probe in probes if probe.segment.logprobs}


def compare(
    probes: Sequence[Probe], own_logprobs: Sequence[Sequence[float]], *, rule: Rule, version: int
) -> dict[str, float]:
    """Compute mean and largest absolute difference per token. Raises RunError when a server is beyond `rule`."""
    by_server: dict[str, list[float]] = {}
    for probe, own in zip(probes, own_logprobs, strict=True):
        differences = [abs(a - b) for a, b in zip(probe.segment.logprobs or [], own, strict=True)]
        by_server.setdefault(probe.url, []).extend(differences)
    for url, differences in by_server.items():
        measured = rule.measure(differences)
        if not measured <= rule.bound:  # a NaN exceeds every bound
            raise RunError(
                f"{url} serves another policy than version {version} that was pushed to it: its logprobs differ by "
                f"{measured:.4g} {rule} (at most {max(differences, default=0.0):.4g}); the bound is {rule.bound:g}",
                hint="use the same dtype and engine flags on both sides, or raise canary.max_logprob_difference",
            )
    everything = [difference for differences in by_server.values() for difference in differences]
    if not everything:
        return {}
    return {
        "canary/logprob_difference_mean": sum(everything) / len(everything),
        "canary/logprob_difference_max": max(everything),
    }
