"""Scoring samples for the checks of `grpo-reward test`, without waiting again and again for a reward that hangs.

A time-out costs as long as the limit of a score, and a reward that always loops has one for every sample. So samples
go out in waves: one at first, more as long as scores come back. After the first time-out of all a score is waited for
as long as one may take, and no longer; a check with MAX_HANGS of them is over, and what it has not scored is left out,
and counted; what has hung once is not scored again.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from pydantic_core import to_json

from grpo_proto import RewardScore, RewardSpec, ScoreRequest, ScoreSample

from ..scoring import UNSCORED
from .requests import AT_ONCE, BATCH, MAX_DEADLINE_S
from .scorers import KnownReward, Scorer

PATIENCE_S = 10.0
"""Least limit of a score in the checks that are not about time, before the first time-out."""
MAX_HANGS = 3
"""Time-outs after which a check is over."""
SLACK_S = 5.0
"""How much longer than a few scores a request may take: what has none then goes out again, with the shorter limit."""
WAVE_GROWTH = 4
LEFT_OUT = RewardScore(score=None, status="timeout", detail="left out")
"""Score of a sample that was not scored, because others hung before it."""


@dataclass
class Patience:
    """How long scores are waited for. The probes of a run share one, since they score the same samples.

    Args:
        limit_s: how long a score may take, by the author's own word.
    """

    limit_s: float
    wave: int = 1
    """Samples of the next request."""
    hangs: int = 0
    """Time-outs in this check."""
    hung: dict[bytes, RewardScore] = field(default_factory=dict)
    """Key of what hung, and is not scored again → its score."""
    _max_hangs: int = MAX_HANGS

    def begin(self, max_hangs: int = MAX_HANGS) -> None:
        """Begin another check."""
        self._max_hangs, self.hangs = max_hangs, 0
        if self.hung:
            # More may hang: in one large request they would use up what a check waits for before others are scored.
            self.wave = 1

    @property
    def is_over(self) -> bool:
        """Whether this check has waited often enough."""
        return self.hangs >= self._max_hangs

    def timeout_s(self, is_about_time: bool) -> float:
        """Time limit of a score in the next request, in seconds."""
        return self.limit_s if self.hung or is_about_time else max(self.limit_s, PATIENCE_S)

    def came_back(self, hung: bool) -> None:
        """A request, with or without time-outs in it."""
        self.wave = 1 if hung else min(self.wave * WAVE_GROWTH, BATCH)

    def note(self, key: bytes, score: RewardScore) -> None:
        self.hangs += 1
        self.hung[key] = score

    def told(self, scores: Sequence[RewardScore]) -> str:
        """How many samples were left out, in words for the end of a check's line."""
        left_out = sum(score is LEFT_OUT for score in scores)
        if not left_out:
            return ""
        return f"; {left_out} sample{'s' if left_out > 1 else ''} left out after {self.hangs} time-outs"


@dataclass(frozen=True)
class Seen:
    completion: str
    score: RewardScore


class Probe:
    """Scores samples with one reward, and remembers what came back."""

    def __init__(self, scorer: Scorer, spec: RewardSpec, known: KnownReward, patience: Patience):
        self.scorer, self.spec, self.known, self.patience = scorer, spec, known, patience
        self.seen: list[Seen] = []
        self._at_once = AT_ONCE if self.is_batch else 1  # samples are scored side by side as it is
        self._places, self._alone = asyncio.Semaphore(self._at_once), asyncio.Lock()

    @property
    def is_batch(self) -> bool:
        """Whether the reward is a batch reward: then every sample gets a company of its own."""
        return self.known.batch

    async def score(self, samples: Sequence[ScoreSample], *, is_about_time: bool = False) -> list[RewardScore]:
        """Scores, or LEFT_OUT; a batch reward gets all samples at once. Raises ConfigError and CommandFailed."""
        plain = [sample.model_copy(update={"id": None}) for sample in samples]
        # What is scored at once hangs at once.
        units = [list(range(len(plain)))] if self.is_batch else [[position] for position in range(len(plain))]
        keys = [to_json([plain[position] for position in unit]) for unit in units]
        scores: list[RewardScore] = [LEFT_OUT] * len(plain)
        pending = list(range(len(units)))
        while pending:
            async with self._places, self._alone if self.patience.wave == 1 else contextlib.nullcontext():
                pending = [number for number in pending if not self._recalled(units[number], keys[number], scores)]
                if self.patience.is_over or not pending:
                    break
                wave = pending[: self.patience.wave]
                chosen = [position for number in wave for position in units[number]]
                found = await self._ask([plain[position] for position in chosen], is_about_time)
            for position, score in zip(chosen, found, strict=True):
                scores[position] = score
            # What the deadline of the request cut off goes out again, unless it was all of it.
            cut = {number for number in wave if (scores[units[number][0]].detail or "").startswith(UNSCORED)}
            again = cut if len(cut) < len(wave) else set(wave[1:])
            hung = [number for number in wave if number not in again and scores[units[number][0]].status == "timeout"]
            for number in hung:
                self.patience.note(keys[number], scores[units[number][0]])
            for position in (position for number in again for position in units[number]):
                scores[position] = LEFT_OUT
            self.patience.came_back(bool(hung or again))
            pending = [number for number in pending if number not in wave or number in again]
        self.seen += [
            Seen(sample.completion, score)
            for sample, score in zip(samples, scores, strict=True)
            if score is not LEFT_OUT
        ]
        return scores

    def _recalled(self, unit: Sequence[int], key: bytes, scores: list[RewardScore]) -> bool:
        """Whether it is known to hang."""
        known = self.patience.hung.get(key)
        if known is None:
            return False
        for position in unit:
            scores[position] = known
        return True

    async def _ask(self, samples: list[ScoreSample], is_about_time: bool) -> list[RewardScore]:
        timeout_s = self.patience.timeout_s(is_about_time)
        deadline_s = min(self._at_once * timeout_s + SLACK_S, MAX_DEADLINE_S)
        request = ScoreRequest(rewards=[self.spec], samples=samples, timeout_s=timeout_s, deadline_s=deadline_s)
        response = await self.scorer.score(request)
        return [result.rewards[self.spec.name] for result in response.results]

    async def score_parts(
        self, parts: Sequence[Sequence[ScoreSample]], *, is_about_time: bool = False
    ) -> list[list[RewardScore]]:
        """Each part in requests of its own."""
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self.score(part, is_about_time=is_about_time)) for part in parts]
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return [task.result() for task in tasks]

    async def score_apart(self, samples: Sequence[ScoreSample], company: Sequence[ScoreSample]) -> list[RewardScore]:
        """Each as if it were alone, in the time a score may take: a batch reward gets it in a request with `company`,
        the others of its group."""
        if self.is_batch:
            together = await self.score_parts([[sample, *company] for sample in samples], is_about_time=True)
            return [scores[0] for scores in together]
        return await self.score(samples, is_about_time=True)
