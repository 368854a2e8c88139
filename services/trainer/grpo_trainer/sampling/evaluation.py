"""Held-out evaluation: greedy, and sampled at temperature 1, on the same servers as the training."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from grpo_proto import Sampling

from ..algorithm.at_k import at_k_metrics
from ..algorithm.scores import accuracy, mean
from ..algorithm.sequences import Group
from ..config.run_config import RunConfig
from ..data.prompt_row import PromptRow
from .reward import RewardStage
from .sampler import Asked, Sampler

ROWS_PER_JOB = 64
OF_EACH_SET = {"greedy": "eval_greedy", "reward": "eval_reward", "mean_length": "eval_completions/mean_length"}
"""What each set has of its own as `eval/<set>/…`, beside avg@k and pass@k → the mean over the sets."""


@dataclass(frozen=True)
class EvalSet:
    """Held-out rows, how often each is sampled, and each k of pass@k; none for rows without a name."""

    rows: Sequence[PromptRow]
    num_generations: int
    pass_at: Sequence[int] = ()


def eval_sets(config: RunConfig, eval_rows: Mapping[str, Sequence[PromptRow]]) -> dict[str, EvalSet]:
    """The sets of a run file by name, with the rows of each; those of `data.eval_dataset` have the empty name."""
    sets = {}
    for name, held_out in eval_rows.items():
        chosen = config.data.eval_datasets.get(name)
        if chosen is None:
            sets[name] = EvalSet(list(held_out[: config.eval.max_rows]), config.eval.num_generations_eval)
        else:
            n = chosen.num_generations or config.eval.num_generations_eval
            limit = chosen.max_rows or config.eval.max_rows
            rows = [replace(row, dataset=f"eval/{name}") for row in held_out[:limit]]
            sets[name] = EvalSet(rows, n, chosen.pass_at or [n])
    return sets


def mean_over_sets(results: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Each metric's mean over the sets that have it: a set counts the same however many rows it has."""
    names = dict.fromkeys(name for result in results.values() for name in result)
    means = {name: mean(result[name] for result in results.values() if name in result) for name in names}
    return {name: value for name, value in means.items() if value is not None}


@dataclass(frozen=True)
class Evaluated:
    """One evaluation: its metrics, and the groups behind them by decoding, `sampled` and `greedy`, set after set."""

    metrics: dict[str, float]
    groups: dict[str, list[Group]]


@dataclass(frozen=True)
class _OfSet:
    """What one set gave: the metrics that are averaged over the sets, and those at k."""

    means: dict[str, float]
    at_k: dict[str, float]
    sampled: list[Group]
    greedy: list[Group]


class Evaluation:
    """Sample and score the held-out rows. Seeds depend on the row alone, so that evaluations are comparable.

    `sampling` is the training's. Temperature 1 replaces its temperature, so that runs compare, or greedy does.
    """

    def __init__(
        self,
        sampler: Sampler,
        reward: RewardStage,
        sets: Mapping[str, EvalSet],
        sampling: Sampling,
    ):
        self.sampler, self.reward, self.sets, self.sampling = sampler, reward, sets, sampling
        self._num_dropped = self._num_unscored = 0

    async def run(self, *, version: int | None, step: int) -> Evaluated:
        """Measure `eval_accuracy` (sampled), `eval_greedy`, `eval_reward` and mean length; omits unscored metrics.

        They are means over the sets. Each set with a name adds `eval/<set>/avg@k`, `eval/<set>/pass@k` and those of
        `OF_EACH_SET`. `eval_dropped_crash` counts the groups that are in none of them, because their prompts kill
        servers, and `eval_unscored` the samples that are in none, because their rewards have no score; both are absent
        without any.
        """
        self._num_dropped = self._num_unscored = 0
        runs = (self._run(chosen, version, step, of=f"eval{name and '-'}{name}") for name, chosen in self.sets.items())
        found = await asyncio.gather(*runs)
        results = dict(zip(self.sets, found, strict=True))
        metrics = mean_over_sets({name: of_set.means for name, of_set in results.items()})
        if self._num_dropped:
            metrics["eval_dropped_crash"] = self._num_dropped
        if self._num_unscored:
            metrics["eval_unscored"] = self._num_unscored
        for name, of_set in results.items():
            if name:
                own = {key: of_set.means[mean] for key, mean in OF_EACH_SET.items() if mean in of_set.means}
                metrics |= {f"eval/{name}/{key}": value for key, value in (of_set.at_k | own).items()}
        return Evaluated(
            metrics,
            {
                "sampled": [group for of_set in found for group in of_set.sampled],
                "greedy": [group for of_set in found for group in of_set.greedy],
            },
        )

    async def _run(self, chosen: EvalSet, version: int | None, step: int, *, of: str) -> _OfSet:
        sampled, greedy = (
            self.sampling.model_copy(update={"temperature": temperature, "logprobs": False})
            for temperature in (1.0, 0.0)
        )
        sampled_groups, greedy_groups = await asyncio.gather(
            self._groups(chosen.rows, sampled, chosen.num_generations, version, step, of=f"{of}-sampled"),
            self._groups(chosen.rows, greedy, 1, version, step, of=f"{of}-greedy"),
        )
        episodes = [episode for group in sampled_groups for episode in group.episodes]
        metrics = {
            "eval_accuracy": accuracy(sampled_groups),
            "eval_greedy": accuracy(greedy_groups),
            "eval_reward": mean(s.total for s in episodes if s.total is not None),
            "eval_completions/mean_length": mean(s.num_sampled for s in episodes),
        }
        at_k = at_k_metrics(sampled_groups, num_generations=chosen.num_generations, pass_at=chosen.pass_at)
        means = {name: value for name, value in metrics.items() if value is not None}
        return _OfSet(means, at_k, sampled_groups, greedy_groups)

    async def _groups(
        self, rows: Sequence[PromptRow], sampling: Sampling, n: int, version: int | None, step: int, *, of: str
    ) -> list[Group]:
        jobs = [
            self._job(range(first, min(first + ROWS_PER_JOB, len(rows))), rows, sampling, n, version, step, of)
            for first in range(0, len(rows), ROWS_PER_JOB)
        ]
        return [group for groups in await asyncio.gather(*jobs) for group in groups]

    async def _job(
        self,
        numbers: range,
        rows: Sequence[PromptRow],
        sampling: Sampling,
        n: int,
        version: int | None,
        step: int,
        of: str,
    ) -> list[Group]:
        asked = [Asked(position=number, row=rows[number], seed=number, of=of) for number in numbers]
        groups = await self.sampler.sample(asked, min_version=version, n=n, sampling=sampling)
        self._num_dropped += len(asked) - len(groups)
        await self.reward.score(groups, step=step)
        self._num_unscored += sum(one.unscored_because is not None for group in groups for one in group.episodes)
        return groups
