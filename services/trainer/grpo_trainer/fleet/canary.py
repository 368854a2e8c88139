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

from grpo_proto import Completion, ConflictError, InfrastructureError, Prompt, RolloutRequest, RolloutResponse, Sampling

from ..algorithm.agreement import Rule
from ..algorithm.image_tokens import prompt_tokens
from ..algorithm.sequences import Segment, Turn
from ..config.run_config import RunConfig
from ..config.weights import CanaryConfig
from ..data.prompt_row import PromptRow
from ..data.sent_images import SEES_NONE, ImagesOfPrompts
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


@dataclass(frozen=True)
class Probe:
    """One server's sample of one prompt."""

    url: str
    segment: Segment


def canary_prompts(
    rows: Sequence[PromptRow],
    config: CanaryConfig,
    *,
    shortest: int,
    longest: int,
    seen: PromptRow | None = None,
    images: ImagesOfPrompts = SEES_NONE,
) -> list[Prompt]:
    """Return `canary.num_prompts` prompts, the same in every call, with seeds. They span the lengths of the run.

    With the canary's completion they are `shortest` to `longest` tokens long, in equal steps; one alone is the longest.
    Each is made of the prompts of the rows, one behind the other without their images, and cut. Behind them stands the
    row `seen` with its images.
    """
    last = max(longest - config.max_tokens, shortest)
    steps = max(config.num_prompts - 1, 1)
    lengths = [last - (last - shortest) * number // steps for number in reversed(range(config.num_prompts))]
    prompts = [
        Prompt(token_ids=_joined(rows, number, length, images.token_id), seed=number)
        for number, length in enumerate(lengths)
    ]
    if seen is not None:
        prompts.append(Prompt(token_ids=seen.token_ids, images=images.encoded(seen), seed=len(prompts)))
    return prompts


def _joined(rows: Sequence[PromptRow], first: int, length: int, image_token_id: int | None) -> list[int]:
    token_ids: list[int] = []
    for number in itertools.count(first):
        if len(token_ids) >= length:
            return token_ids[:length]
        token_ids += [token for token in rows[number % len(rows)].token_ids if token != image_token_id]
    raise AssertionError("unreachable: a prompt has a token")


async def sample_probes(
    fleet: Fleet,
    prompts: Sequence[Prompt],
    config: CanaryConfig,
    *,
    session: int,
    version: int,
    temperature: float,
    image_token_id: int | None = None,
) -> list[Probe]:
    """Have every member sample every prompt. A member that does not answer gets no probe, and no more traffic.

    A member that answers that it ran out of time gets no probe but keeps its traffic: it may be busy with other
    requests.
    """
    request = RolloutRequest(
        request_id=f"canary-{session}-{version}",
        session=session,
        min_version=version,
        prompts=list(prompts),
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
            _segment(prompt_tokens(group, prompt.images, image_token_id), completion, version, tuple(prompt.images)),
        )
        for replica, answer in zip(members, answers, strict=True)
        if isinstance(answer, RolloutResponse)
        for prompt, group in zip(prompts, answer.groups, strict=True)
        for completion in group.completions
    ]


def _segment(prompt_token_ids: list[int], completion: Completion, version: int, images: tuple[str, ...]) -> Segment:
    token_ids = [*prompt_token_ids, *completion.token_ids]
    # The canary asks for one version, and nothing is pushed meanwhile: what spans the server reports does not matter.
    versions = [(version, len(completion.token_ids))]
    turn = Turn(len(prompt_token_ids), len(token_ids), versions, completion.finish_reason, completion.text)
    return Segment(token_ids, [turn], completion.logprobs, images)


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
    """Compute mean and largest absolute difference per token. Raises RunError when a server is beyond `rule`, in text
    or in what it samples behind images."""
    by_kind: dict[tuple[str, bool], list[float]] = {}
    for probe, own in zip(probes, own_logprobs, strict=True):
        differences = [abs(a - b) for a, b in zip(probe.segment.logprobs or [], own, strict=True)]
        by_kind.setdefault((probe.url, bool(probe.segment.images)), []).extend(differences)
    for (url, has_images), differences in by_kind.items():
        measured = rule.measure(differences)
        if not measured <= rule.bound:  # a NaN exceeds every bound
            of_images, same = (" behind images", ", image processor") if has_images else ("", "")
            raise RunError(
                f"{url} serves another policy than version {version} that was pushed to it: its logprobs{of_images} "
                f"differ by {measured:.4g} {rule} (at most {max(differences, default=0.0):.4g}); the bound is "
                f"{rule.bound:g}",
                hint=f"use the same dtype{same} and engine flags on both sides, or raise canary.max_logprob_difference",
            )
    everything = [difference for differences in by_kind.values() for difference in differences]
    if not everything:
        return {}
    return {
        "canary/logprob_difference_mean": sum(everything) / len(everything),
        "canary/logprob_difference_max": max(everything),
    }
