"""The checks of `grpo-reward test` that need no imagination; `fuzzing.py` has the others."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from grpo_proto import RewardScore, RewardSpec, ScoreRequest, ScoreSample

from .output import shortened
from .requests import AT_ONCE, BATCH, MAX_DEADLINE_S
from .rows import Row
from .scorers import KnownReward, Scorer

EQUAL_WITHIN = 1e-9
PATIENCE_S = 10.0
"""Limit of a score in the checks that are not about time."""
SHOWN = 3
"""Counter-examples of a check."""


@dataclass(frozen=True)
class Check:
    name: str
    status: Literal["pass", "fail", "skip"]
    detail: str
    examples: list[dict[str, Any]] = field(default_factory=list)
    """Counter-examples: the completion, its score, and what was expected."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Seen:
    completion: str
    score: RewardScore


class Probe:
    """Scores samples with one reward, and remembers what came back."""

    def __init__(self, scorer: Scorer, spec: RewardSpec, known: KnownReward, step: int | None = None):
        self.scorer, self.spec, self.known, self._step = scorer, spec, known, step
        self.seen: list[Seen] = []
        self._places = asyncio.Semaphore(AT_ONCE)

    @property
    def is_batch(self) -> bool:
        """Then every sample gets a company of its own."""
        return self.known.batch

    async def score(self, samples: Sequence[ScoreSample], timeout_s: float = PATIENCE_S) -> list[RewardScore]:
        """All in one request. Raises ConfigError and CommandFailed."""
        request = ScoreRequest(
            rewards=[self.spec],
            samples=[sample.model_copy(update={"id": None}) for sample in samples],
            step=self._step,
            timeout_s=timeout_s,
            deadline_s=MAX_DEADLINE_S,
        )
        async with self._places:
            response = await self.scorer.score(request)
        scores = [result.rewards[self.spec.name] for result in response.results]
        self.seen += [Seen(sample.completion, score) for sample, score in zip(samples, scores, strict=True)]
        return scores

    async def score_parts(
        self, parts: Sequence[Sequence[ScoreSample]], timeout_s: float = PATIENCE_S
    ) -> list[list[RewardScore]]:
        """Each part in a request of its own."""
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self.score(part, timeout_s)) for part in parts]
        except* Exception as errors:
            raise errors.exceptions[0] from None
        return [task.result() for task in tasks]

    async def score_apart(
        self, samples: Sequence[ScoreSample], company: Sequence[ScoreSample], timeout_s: float = PATIENCE_S
    ) -> list[RewardScore]:
        """Each as if it were alone: a batch reward gets it in a request with `company`, the others of its group."""
        if self.is_batch:
            return [part[0] for part in await self.score_parts([[sample, *company] for sample in samples], timeout_s)]
        parts = [samples[start : start + BATCH] for start in range(0, len(samples), BATCH)]
        return [score for part in await self.score_parts(parts, timeout_s) for score in part]


async def gold_check(probe: Probe, rows: Sequence[Row], full: float) -> tuple[Check, list[Row]]:
    """Every row scores full, or what it expects. Also gives the rows that do score full."""
    groups = groups_of(rows)
    right: list[Row] = []
    wrong: list[dict[str, Any]] = []
    for group, scores in zip(
        groups, await probe.score_parts([[row.sample for row in group] for group in groups]), strict=True
    ):
        for row, score in zip(group, scores, strict=True):
            expected = row.expect if row.expects else full
            if score.score is not None and score.score >= full - EQUAL_WITHIN:
                right.append(row)
            if not _is(score, expected):
                wrong.append(example(row.sample.completion, score, row=row.where, expected=expected))
    good = len(rows) - len(wrong)
    return _check("gold answers", wrong, f"{good} of {len(rows)} rows score {full:g}, or what they expect"), right


def groups_of(rows: Sequence[Row]) -> list[list[Row]]:
    """Rows of one prompt; those without one are a group of their own."""
    groups: dict[str | None, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
    return list(groups.values())


async def determinism_checks(
    probe: Probe, fresh: Probe | None, samples: Sequence[ScoreSample]
) -> tuple[list[Check], list[RewardScore]]:
    """The same request again, and in processes started anew (`fresh`). Also gives the scores of the first time."""
    first, second = await probe.score(samples), await probe.score(samples)
    text = f"{len(samples)} samples have the same scores"
    checks = [_check("same again", _differences(samples, first, second), f"{text} the second time")]
    if fresh is None:
        checks.append(Check("same in a new process", "skip", "the processes of a running server are not ours to start"))
    else:
        third = await fresh.score(samples)
        checks.append(_check("same in a new process", _differences(samples, first, third), f"{text} in new processes"))
    return checks, first


async def order_checks(
    probe: Probe, samples: Sequence[ScoreSample], scores: Sequence[RewardScore], chance: random.Random
) -> list[Check]:
    """The order of a request does not matter; neither, for a reward of single samples, does what else is in it."""
    order = list(range(len(samples)))
    chance.shuffle(order)
    shuffled = [samples[position] for position in order]
    expected = [scores[position] for position in order]
    tolerance = EQUAL_WITHIN if probe.is_batch else 0.0  # sums in another order
    wrong = _differences(shuffled, expected, await probe.score(shuffled), tolerance)
    checks = [_check("any order", wrong, f"{len(samples)} samples in another order have the same scores")]
    if probe.is_batch:
        checks.append(Check("any batch", "skip", "a reward of `completions` compares the samples of a request"))
        return checks
    sizes: list[int] = []
    while sum(sizes) < len(shuffled):
        sizes.append(min(chance.randint(1, 5), len(shuffled) - sum(sizes)))
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    parts = await probe.score_parts([shuffled[start : start + size] for start, size in zip(starts, sizes, strict=True)])
    wrong = _differences(shuffled, expected, [score for part in parts for score in part], tolerance)
    checks.append(_check("any batch", wrong, f"{len(samples)} samples in {len(sizes)} requests have the same scores"))
    return checks


async def time_check(probe: Probe, rows: Sequence[Row], limit_s: float) -> Check:
    """No row takes longer than `limit_s`; those of a group together for a batch reward."""
    samples = [row.sample for row in rows]
    if probe.is_batch:
        parts = await probe.score_parts([[row.sample for row in group] for group in groups_of(rows)], limit_s)
        samples = [row.sample for group in groups_of(rows) for row in group]
        scores = [score for part in parts for score in part]
    else:
        scores = await probe.score_apart(samples, [], limit_s)
    late = [
        example(sample.completion, score)
        for sample, score in zip(samples, scores, strict=True)
        if score.status == "timeout"
    ]
    return _check("time limit", late, f"{len(samples) - len(late)} of {len(samples)} rows within {limit_s:g} s")


def range_check(seen: Sequence[Seen], low: float | None, high: float) -> Check:
    """Over everything that was scored. Numbers that are not finite never come: they are errors."""
    scores = [found.score.score for found in seen if found.score.score is not None]
    outside = {
        found.completion: example(found.completion, found.score)
        for found in seen
        if found.score.score is not None
        and (found.score.score > high + EQUAL_WITHIN or (low is not None and found.score.score < low - EQUAL_WITHIN))
    }
    limits = f"at most {high:g}" if low is None else f"from {low:g} to {high:g}"
    span = f"; they go from {min(scores):g} to {max(scores):g}" if scores else ""
    return _check("range", list(outside.values()), f"{len(scores)} scores should be {limits}{span}")


def _check(name: str, wrong: list[dict[str, Any]], detail: str) -> Check:
    return Check(name, "fail" if wrong else "pass", detail, wrong[:SHOWN])


def _is(score: RewardScore, expected: float | None) -> bool:
    """With None expected: the reward has said that it is not its task."""
    if expected is None:
        return score.status == "unscorable"
    return score.score is not None and abs(score.score - expected) <= EQUAL_WITHIN


def _differences(
    samples: Sequence[ScoreSample],
    expected: Sequence[RewardScore],
    found: Sequence[RewardScore],
    tolerance: float = 0.0,
) -> list[dict[str, Any]]:
    """Samples with another score or status. A time limit may be met or missed by chance: it is no difference."""
    return [
        example(sample.completion, b, expected=a.score if a.status == "ok" else a.status)
        for sample, a, b in zip(samples, expected, found, strict=True)
        if "timeout" not in (a.status, b.status)
        and (a.status != b.status or (a.score is not None and abs(a.score - (b.score or 0.0)) > tolerance))
    ]


def example(completion: str, score: RewardScore, **more: Any) -> dict[str, Any]:
    """A counter-example, as JSON."""
    found: dict[str, Any] = {**more, "score": score.score, "status": score.status}
    if score.detail:
        found["detail"] = score.detail[:300]
    return {**found, "completion": shortened(completion)}
