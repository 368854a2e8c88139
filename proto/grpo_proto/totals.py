"""A sample's total reward, and a retry of the scores that broke."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

from .messages.reward import RewardScore, RewardSpec, ScoreRequest, ScoreResponse, ScoreResult

BROKEN = ("timeout", "error")
"""Statuses without an answer: something broke."""
COLUMN_FAULT = "column "
"""Begins the detail of an `error` for a column whose value the reward does not take: each repeat meets it again."""
PAUSES_S = (0.0, 1.0, 4.0)
"""Pauses before the retries. There are three: a completion that breaks a reward every time must not delay a step by all
of `retry_for_s`."""


def total_score(rewards: Sequence[RewardSpec], scores: Mapping[str, RewardScore]) -> float | None:
    """Σ weight · score over the rewards with a weight and a score.

    None when no such reward exists, and when the sum is not finite. None also when a reward with a weight broke
    (`timeout`, `error`): the sum of the others would be a wrong answer's total.
    """
    weighted = [(spec.weight, scores[spec.name]) for spec in rewards if spec.weight]
    parts = [weight * score.score for weight, score in weighted if score.score is not None]
    total = sum(parts)
    broke = any(score.status in BROKEN for _, score in weighted)
    return total if parts and not broke and math.isfinite(total) else None


def missing_because(rewards: Sequence[RewardSpec], scores: Mapping[str, RewardScore]) -> tuple[str, RewardScore] | None:
    """Name and score of the reward that left a sample without a total; of several, the gravest status comes first.

    Looks at rewards with a weight only. None when each of them has a score: the sum is not finite, or there are none.
    """
    for status in ("error", "timeout", "unscorable"):
        for spec in rewards:
            if spec.weight and scores[spec.name].status == status:
                return spec.name, scores[spec.name]
    return None


def may_pass(score: RewardScore) -> bool:
    """Whether the reward broke and may have a score the next time: not for a fault of the sample's columns."""
    return score.status in BROKEN and not (score.detail or "").startswith(COLUMN_FAULT)


async def score_broken_again(
    request: ScoreRequest,
    response: ScoreResponse,
    score: Callable[[ScoreRequest], Awaitable[ScoreResponse]],
    *,
    retry_for_s: float,
) -> ScoreResponse:
    """Retry the rewards with a weight that ended in `timeout` or `error`; return the response with the new scores.

    Not those that a value of a column broke, which every repeat would meet again.

    Sends each such reward alone, with its broken samples only. (A reward that compares the samples of a request breaks
    for all of them.) Retries at most three times, and starts none after `retry_for_s`. Raises what `score` raises.
    """
    until_s = time.monotonic() + retry_for_s
    found = [dict(result.rewards) for result in response.results]
    for pause_s in PAUSES_S:
        broken = {
            number: positions
            for number, spec in enumerate(request.rewards)
            if spec.weight and (positions := [at for at, scores in enumerate(found) if may_pass(scores[spec.name])])
        }
        if not broken or time.monotonic() + pause_s >= until_s:
            break
        await asyncio.sleep(pause_s)
        for number, positions in broken.items():
            spec = request.rewards[number]
            samples = [request.samples[at] for at in positions]
            again = await score(request.model_copy(update={"rewards": [spec], "samples": samples}))
            for at, result in zip(positions, again.results, strict=True):
                found[at][spec.name] = result.rewards[spec.name]
    results = [
        ScoreResult(id=result.id, total=total_score(request.rewards, scores), rewards=scores)
        for result, scores in zip(response.results, found, strict=True)
    ]
    return ScoreResponse(results=results, elapsed_s=response.elapsed_s)
