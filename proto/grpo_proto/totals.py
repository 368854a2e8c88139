"""What a sample is paid, and scoring again what broke."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

from .messages.reward import RewardScore, RewardSpec, ScoreRequest, ScoreResponse, ScoreResult

BROKEN = ("timeout", "error")
"""Statuses that are no answer: something broke."""
PAUSES_S = (0.0, 1.0, 4.0)
"""Before each further try. What a completion breaks every time is not to hold up a step for all of `retry_for_s`."""


def total_score(rewards: Sequence[RewardSpec], scores: Mapping[str, RewardScore]) -> float | None:
    """Σ weight · score over the rewards with a weight that have a score.

    None when none has, when one of them broke (`timeout`, `error`): the rest would be a wrong answer's total; and when
    the sum is not finite.
    """
    weighted = [(spec.weight, scores[spec.name]) for spec in rewards if spec.weight]
    parts = [weight * score.score for weight, score in weighted if score.score is not None]
    total = sum(parts)
    broke = any(score.status in BROKEN for _, score in weighted)
    return total if parts and not broke and math.isfinite(total) else None


def missing_because(rewards: Sequence[RewardSpec], scores: Mapping[str, RewardScore]) -> tuple[str, RewardScore] | None:
    """The name and the score of the reward with a weight that left the sample without a total; the gravest of several.

    None when there is none: no reward has a weight, or the sum is not finite.
    """
    for status in ("error", "timeout", "unscorable"):
        for spec in rewards:
            if spec.weight and scores[spec.name].status == status:
                return spec.name, scores[spec.name]
    return None


async def score_broken_again(
    request: ScoreRequest,
    response: ScoreResponse,
    score: Callable[[ScoreRequest], Awaitable[ScoreResponse]],
    *,
    retry_for_s: float,
) -> ScoreResponse:
    """The answer, with what a reward with a weight ended in `timeout` or `error` for scored again.

    Those samples only, with that reward only: one that compares the samples of a request breaks for all of them. At
    most three times, begun within `retry_for_s`. Raises what `score` raises.
    """
    until_s = time.monotonic() + retry_for_s
    found = [dict(result.rewards) for result in response.results]
    for pause_s in PAUSES_S:
        broken = {
            number: positions
            for number, spec in enumerate(request.rewards)
            if spec.weight
            and (positions := [at for at, scores in enumerate(found) if scores[spec.name].status in BROKEN])
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
