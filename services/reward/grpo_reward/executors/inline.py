"""Scoring in this process, one item after another: no time limits, no isolation. For tests, and to try a reward out."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from grpo_proto import RewardScore

from ..registry import load_rewards
from ..scorer import InvalidParamsError, checked_params, score_batch, score_sample
from .base import Chunk, InvalidParams, LoadedReward
from .forkserver import describe


class InlineExecutor:
    """An `Executor` that needs nothing started."""

    workers = 1
    spare = 0
    problem: str | None = None
    failed: str | None = None

    def __init__(self, plugins: Sequence[Path] = ()):
        self._code = load_rewards(plugins)
        self.rewards: Mapping[str, LoadedReward] = {
            name: LoadedReward.model_validate(describe(reward)) for name, reward in self._code.items()
        }

    def launch(self) -> None: ...

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def score(self, chunk: Chunk) -> None:
        # In a thread, where an `async` reward can have an event loop of its own.
        await asyncio.to_thread(self._score, chunk)

    def _score(self, chunk: Chunk) -> None:
        for position, spec in enumerate(chunk.rewards):
            reward = self._code[spec.name]
            started = time.monotonic()
            try:
                params = checked_params(reward, spec.params)
            except InvalidParamsError as error:
                raise InvalidParams(spec.name, str(error)) from None
            if reward.batch:
                outcomes = score_batch(reward, params, chunk.samples, chunk.step, chunk.timeout_s)
            else:
                outcomes = [score_sample(reward, params, sample, chunk.step) for sample in chunk.samples]
            for row, outcome in enumerate(outcomes):
                item = row * len(chunk.rewards) + position
                chunk.scores[item] = chunk.scores[item] or RewardScore.model_validate(outcome)
            chunk.seconds[spec.name] = time.monotonic() - started
