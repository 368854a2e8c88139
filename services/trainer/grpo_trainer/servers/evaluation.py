"""Held-out evaluation: greedy, and sampled at temperature 1, on the same servers as the training."""

import asyncio
from collections.abc import Sequence

from grpo_proto import Sampling

from ..algorithm.scores import accuracy, mean
from ..algorithm.sequences import Group
from ..config.run_config import EvalConfig
from ..data.prompt_row import PromptRow
from .reward import RewardStage
from .rollout import Asked, RolloutStage

ROWS_PER_JOB = 64


class Evaluation:
    """Sample and score the held-out rows. Seeds depend on the row alone, so that evaluations are comparable."""

    def __init__(
        self,
        rollout: RolloutStage,
        reward: RewardStage,
        rows: Sequence[PromptRow],
        config: EvalConfig,
        *,
        max_tokens: int,
    ):
        self.rollout, self.reward = rollout, reward
        self.rows = list(rows[: config.max_rows])
        self.max_tokens, self.num_generations = max_tokens, config.num_generations_eval

    async def run(self, *, version: int, step: int) -> dict[str, float]:
        """Return `eval_accuracy` (sampled), `eval_greedy`, `eval_reward` and mean length; omits unscored metrics."""
        sampled = Sampling(temperature=1.0, max_tokens=self.max_tokens, logprobs=False)
        greedy = Sampling(temperature=0.0, max_tokens=self.max_tokens, logprobs=False)
        sampled_groups, greedy_groups = await asyncio.gather(
            self._groups(sampled, self.num_generations, version, step),
            self._groups(greedy, 1, version, step),
        )
        episodes = [episode for group in sampled_groups for episode in group.episodes]
        metrics = {
            "eval_accuracy": accuracy(sampled_groups),
            "eval_greedy": accuracy(greedy_groups),
            "eval_reward": mean(s.total for s in episodes if s.total is not None),
            "eval_completions/mean_length": mean(s.num_sampled for s in episodes),
        }
        return {name: value for name, value in metrics.items() if value is not None}

    async def _groups(self, sampling: Sampling, n: int, version: int, step: int) -> list[Group]:
        jobs = [
            self._job(range(first, min(first + ROWS_PER_JOB, len(self.rows))), sampling, n, version, step)
            for first in range(0, len(self.rows), ROWS_PER_JOB)
        ]
        return [group for groups in await asyncio.gather(*jobs) for group in groups]

    async def _job(self, numbers: range, sampling: Sampling, n: int, version: int, step: int) -> list[Group]:
        asked = [Asked(position=number, row=self.rows[number], seed=number) for number in numbers]
        groups = await self.rollout.sample(asked, min_version=version, n=n, sampling=sampling)
        await self.reward.score(groups, step=step)
        return groups
