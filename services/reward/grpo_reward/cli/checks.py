"""The checks of `grpo-reward test` that need no imagination; `fuzzing.py` has the others."""

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from grpo_proto import RewardScore, ScoreSample

from .output import shortened
from .probe import LEFT_OUT, Probe, Seen
from .rows import Row

EQUAL_WITHIN = 1e-9
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


async def gold_check(probe: Probe, rows: Sequence[Row], full: float) -> tuple[Check, list[Row]]:
    """Every row scores full, or what it expects. Also gives the rows that do score full."""
    probe.patience.begin()
    groups = groups_of(rows)
    right: list[Row] = []
    wrong: list[dict[str, Any]] = []
    parts = await probe.score_parts([[row.sample for row in group] for group in groups])
    for group, scores in zip(groups, parts, strict=True):
        for row, score in zip(group, scores, strict=True):
            expected = row.expect if row.expects else full
            if score.score is not None and score.score >= full - EQUAL_WITHIN:
                right.append(row)
            if score is not LEFT_OUT and not _is(score, expected):
                wrong.append(example(row.sample.completion, score, row=row.where, expected=expected))
    scores = [score for part in parts for score in part]
    good = len(rows) - len(wrong) - sum(score is LEFT_OUT for score in scores)
    text = f"{good} of {len(rows)} rows score {full:g}, or what they expect{probe.patience.told(scores)}"
    return _check("gold answers", wrong, text), right


def groups_of(rows: Sequence[Row]) -> list[list[Row]]:
    """Rows of one prompt; those without one are a group of their own."""
    groups: dict[str | None, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
    return list(groups.values())


async def determinism_checks(
    probe: Probe, fresh: Probe | None, samples: Sequence[ScoreSample]
) -> tuple[list[Check], list[ScoreSample], list[RewardScore]]:
    """The same request again, and in processes started anew (`fresh`).

    Also gives the samples that had a score in time, and the scores of the first time.
    """
    probe.patience.begin()
    all_scores = await probe.score(samples)
    told = probe.patience.told(all_scores)
    in_time = [position for position, score in enumerate(all_scores) if score.status != "timeout"]
    if hung := sum(score.status == "timeout" and score is not LEFT_OUT for score in all_scores):
        told = f"; {hung} more had none in time{told}"
    samples, scores = [samples[position] for position in in_time], [all_scores[position] for position in in_time]
    probe.patience.begin()
    checks = [_compared("same again", samples, scores, await probe.score(samples), f"the second time{told}")]
    if fresh is None:
        checks.append(Check("same in a new process", "skip", "the processes of a running server are not ours to start"))
    else:
        fresh.patience.begin()
        checks.append(
            _compared("same in a new process", samples, scores, await fresh.score(samples), "in new processes")
        )
    return checks, samples, scores


async def order_checks(
    probe: Probe, samples: Sequence[ScoreSample], scores: Sequence[RewardScore], chance: random.Random
) -> list[Check]:
    """The order of a request does not matter; neither, for a reward of single samples, does what else is in it."""
    order = list(range(len(samples)))
    chance.shuffle(order)
    shuffled = [samples[position] for position in order]
    expected = [scores[position] for position in order]
    tolerance = EQUAL_WITHIN if probe.is_batch else 0.0  # sums in another order
    probe.patience.begin()
    checks = [_compared("any order", shuffled, expected, await probe.score(shuffled), "in another order", tolerance)]
    if probe.is_batch:
        checks.append(Check("any batch", "skip", "a reward of `completions` compares the samples of a request"))
        return checks
    sizes: list[int] = []
    while sum(sizes) < len(shuffled):
        sizes.append(min(chance.randint(1, 5), len(shuffled) - sum(sizes)))
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    probe.patience.begin()
    parts = await probe.score_parts([shuffled[start : start + size] for start, size in zip(starts, sizes, strict=True)])
    found = [score for part in parts for score in part]
    checks.append(_compared("any batch", shuffled, expected, found, f"in {len(sizes)} requests", tolerance))
    return checks


async def time_check(probe: Probe, rows: Sequence[Row]) -> Check:
    """No row takes longer than the limit; those of a group together for a batch reward."""
    probe.patience.begin()
    samples = [row.sample for row in rows]
    if probe.is_batch:
        groups = [[row.sample for row in group] for group in groups_of(rows)]
        parts = await probe.score_parts(groups, is_about_time=True)
        samples = [sample for group in groups for sample in group]
        scores = [score for part in parts for score in part]
    else:
        scores = await probe.score_apart(samples, [])
    late = [
        example(sample.completion, score)
        for sample, score in zip(samples, scores, strict=True)
        if score.status == "timeout" and score is not LEFT_OUT
    ]
    good = sum(score.status != "timeout" for score in scores)
    text = f"{good} of {len(samples)} rows within {probe.patience.limit_s:g} s{probe.patience.told(scores)}"
    return _check("time limit", late, text)


def range_check(seen: Sequence[Seen], low: float | None, high: float) -> Check:
    """Over everything that was scored. Numbers that are not finite never come: they are errors."""
    scores = [found.score.score for found in seen if found.score.score is not None]
    if not scores:
        return Check("range", "skip", "no sample has a score")
    outside = {
        found.completion: example(found.completion, found.score)
        for found in seen
        if found.score.score is not None
        and (found.score.score > high + EQUAL_WITHIN or (low is not None and found.score.score < low - EQUAL_WITHIN))
    }
    limits = f"at most {high:g}" if low is None else f"from {low:g} to {high:g}"
    span = f"they go from {min(scores):g} to {max(scores):g}"
    return _check("range", list(outside.values()), f"{len(scores)} scores should be {limits}; {span}")


def _check(name: str, wrong: list[dict[str, Any]], detail: str) -> Check:
    return Check(name, "fail" if wrong else "pass", detail, wrong[:SHOWN])


def _is(score: RewardScore, expected: float | None) -> bool:
    """Whether the score is the expected one; with None expected, whether the reward says that it is not its task."""
    if expected is None:
        return score.status == "unscorable"
    return score.score is not None and abs(score.score - expected) <= EQUAL_WITHIN


def _compared(
    name: str,
    samples: Sequence[ScoreSample],
    expected: Sequence[RewardScore],
    found: Sequence[RewardScore],
    how: str,
    tolerance: float = 0.0,
) -> Check:
    """`expected` are scores that came in time."""
    if not samples:
        return Check(name, "skip", f"left out: no sample had a score in time {how}")
    late = sum(score.status == "timeout" for score in found)
    text = f"{len(samples) - late} samples have the same scores {how}{f'; {late} had none in time' if late else ''}"
    return _check(name, _differences(samples, expected, found, tolerance), text)


def _differences(
    samples: Sequence[ScoreSample],
    expected: Sequence[RewardScore],
    found: Sequence[RewardScore],
    tolerance: float,
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
