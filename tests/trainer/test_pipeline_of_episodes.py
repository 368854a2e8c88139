"""Groups of episodes in the pipeline: too few totals, turns that grow stale, and where each sampled token went."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.trainer.made_episodes import conversation

from grpo_proto import RewardScore, Sampling
from grpo_trainer.algorithm.sequences import Episode, Group
from grpo_trainer.algorithm.staleness import is_stale, mask_stale_turns
from grpo_trainer.data.order import PromptOrder
from grpo_trainer.data.prompt_row import PromptRow
from grpo_trainer.errors import RunError
from grpo_trainer.observe.episode_metrics import episode_metrics
from grpo_trainer.sampling.pipeline import Cursor, Pipeline, PipelineLimits
from grpo_trainer.sampling.sampler import Asked
from grpo_trainer.sampling.tracing import Tracing

FAILED = RewardScore(score=None, status="error", detail="it broke")


class Sampler:
    """Groups of two; `fails` are the positions whose second episode has no total."""

    lost_requests = 0
    failing_since_s = None

    def __init__(self, fails: Sequence[int] = ()):
        self.fails, self.positions = fails, list[int]()

    async def sample(self, asked: Sequence[Asked], *, min_version: int, n: int, sampling: Sampling) -> list[Group]:
        self.positions += [one.position for one in asked]
        return [self._group(one, min_version) for one in asked]

    def _group(self, one: Asked, version: int) -> Group:
        episodes = [conversation(f"{one.position}-{index}", version=version) for index in range(2)]
        if one.position in self.fails:
            failed = {"status": "failed", "cause": "infrastructure", "rewards": {"environment": FAILED}}
            episodes[1] = replace(episodes[1], unscored_because=("environment", FAILED), **failed)
        return Group(one.position, one.row, episodes, one.trace)


class Reward:
    async def score(self, groups: list[Group], *, step: int) -> None:
        for episode in (one for group in groups for one in group.episodes if not one.is_judged):
            episode.total, episode.rewards = 1.0, {"environment": RewardScore(score=1.0, status="ok")}


def pipeline_of(sampler: Sampler, *, max_staleness: int = 0, min_scored_share: float = 0.0) -> Pipeline:
    prompts = PromptOrder([PromptRow(number, [], "", {}) for number in range(9)], seed=1, shuffle=False)
    limits = PipelineLimits(
        groups_per_batch=2,
        max_staleness=max_staleness,
        groups_per_job=1,
        num_generations=2,
        min_scored_share=min_scored_share,
        max_steps=9,
        min_group_size=2,
        stale_tokens="mask",
    )
    return Pipeline(sampler, Reward(), prompts, Sampling(), limits, Cursor(), Tracing(None, run=""))  # type: ignore[arg-type]


async def test_a_group_with_too_few_totals_is_dropped_counted_and_not_repeated():
    pipeline = pipeline_of(sampler := Sampler(fails=[0, 3]))
    await pipeline.policy_updated(1)
    first = await pipeline.next_batch()
    pipeline.batch_used()
    await pipeline.policy_updated(2)
    second = await pipeline.next_batch()
    assert [[group.position for group in batch.groups] for batch in (first, second)] == [[1, 2], [4, 5]]
    assert sampler.positions == [0, 1, 2, 3, 4, 5]
    assert pipeline.counts.dropped_small == 2
    assert first.dropped_tokens == {"dropped": 8, "undelivered": 4}
    assert [[group.position for group in batch.too_small] for batch in (first, second)] == [[0], [3]]
    scored, failed = first.too_small[0].episodes
    reasons = [episode.left_out_because(mask_truncated=False) for episode in (scored, failed)]
    assert reasons == ["small_group", "error"]
    assert [turn.masked for turn in scored.turns] == ["dropped", "dropped", "undelivered"]
    pipeline.batch_used()
    assert pipeline.cursor() == Cursor(6, [])


async def test_a_run_in_which_that_is_the_rule_ends():
    pipeline = pipeline_of(Sampler(fails=range(100)), min_scored_share=0.6)
    await pipeline.policy_updated(1)
    with pytest.raises(RunError, match=r"samples could be scored; .*environment error: it broke"):
        await pipeline.next_batch()
    pipeline = pipeline_of(Sampler(fails=range(100)))
    await pipeline.policy_updated(1)
    with pytest.raises(RunError, match=r"groups were dropped for a batch of 2, because fewer than 2"):
        await pipeline.next_batch()


def grown_old(episode: Episode, *versions: int) -> Episode:
    """The same with the versions of its turns, one each."""
    found = iter(versions)
    segments = [
        replace(segment, turns=[replace(turn, versions=[(next(found), turn.num_tokens)]) for turn in segment.turns])
        for segment in episode.segments
    ]
    return replace(episode, segments=segments)


def test_turns_beyond_the_bound_are_masked_and_the_others_trained():
    group = Group(0, PromptRow(0, [], "", {}), [grown_old(conversation(), 3, 5, 3), grown_old(conversation(), 5, 5, 5)])
    assert group.is_older_than(4)
    mask_stale_turns(group, 4)
    assert not group.is_older_than(4)
    assert [turn.masked for turn in group.episodes[0].turns] == ["stale", None, "undelivered"]
    assert not is_stale(group)
    mask_stale_turns(group, 6)
    assert is_stale(group)
    group.episodes[0].total, group.episodes[0].advantage = 1.0, 0.5
    assert group.episodes[0].left_out_because(mask_truncated=False) == "stale"


def test_every_sampled_token_is_accounted_for():
    trained, stale, cut, failed = (conversation(name, version=5) for name in "abcd")
    for episode in (trained, stale, cut):
        episode.advantage = 0.0
    stale = grown_old(stale, 3, 5, 5)
    trained.status = stale.status = "completed"
    failed = replace(failed, status="failed", cause="infrastructure", unscored_because=("environment", FAILED))
    group, replaced = (
        Group(number, PromptRow(0, [], "", {}), episodes)
        for number, episodes in enumerate([[trained, stale, cut, failed], [conversation("r")]])
    )
    mask_stale_turns(group, 4)
    small = Group(2, PromptRow(0, [], "", {}), [replace(failed, attempt=1), conversation("s")])
    metrics = episode_metrics(
        [group], [replaced], too_small=[small], dropped_tokens={"dropped": 7}, mask_truncated=True
    )
    tokens = {name.removeprefix("tokens/"): count for name, count in metrics.items() if name.startswith("tokens/")}
    assert tokens == {
        "sampled": 37, "trained": 6, "masked_stale": 2, "masked_truncated": 4, "masked_failed": 4,
        "masked_replaced": 4, "masked_dropped": 7, "masked_undelivered": 10,
    }  # fmt: skip
    assert tokens["sampled"] == sum(count for name, count in tokens.items() if name != "sampled")
    counted = {
        name: metrics[f"episodes/{name}"] for name in ("completed", "failed", "truncated", "cause_infrastructure")
    }
    assert counted == {"completed": 2, "failed": 2, "truncated": 3, "cause_infrastructure": 2}, (
        "of all that were played"
    )
    assert (metrics["episodes/run_again"], metrics["episodes/groups_dropped"], metrics["episodes/mean_turns"]) == (
        1,
        1,
        3,
    )
