"""Difficulty memory: which prompts are passed over, and that a resumed run passes over the same."""

import json
from collections import Counter
from dataclasses import asdict, dataclass, field

import pytest
from tests.trainer.made_episodes import completion
from tests.trainer.test_pipeline import FakeRollout, make, positions

from grpo_trainer.algorithm.sequences import Group
from grpo_trainer.config.data import DifficultyConfig
from grpo_trainer.data.difficulty import DifficultyMemory
from grpo_trainer.data.order import PromptOrder
from grpo_trainer.data.prompt_row import PromptRow
from grpo_trainer.sampling.pipeline import Cursor, Pipeline


def memory(**config: float) -> DifficultyMemory:
    return DifficultyMemory(DifficultyConfig(**config), seed=1)  # type: ignore[arg-type]


def order(num_rows: int, difficulty: DifficultyMemory | None) -> PromptOrder:
    rows = [PromptRow(number, [1], "p", {}) for number in range(num_rows)]
    return PromptOrder(rows, seed=3, shuffle=True, difficulty=difficulty)


def test_the_weight_is_the_variance_of_the_reward_and_earlier_epochs_fade():
    known = memory(min_weight=0.1, memory=0.5)
    assert known.weight(0, epoch=0) == 1.0, "nothing is known"
    known.learn(0, epoch=0, solved=0.25, teaches=True)
    assert known.weight(0, epoch=1) == 4 * 0.25 * 0.75
    known.learn(0, epoch=1, solved=0.75, teaches=True)
    assert known.weight(0, epoch=2) == 1.0
    known.learn(1, epoch=0, solved=0.0, teaches=True)  # never solved, and another reward differs all the same
    assert known.weight(1, epoch=1) == 0.1


@pytest.mark.parametrize("solved", [0.0, 1.0])
def test_what_is_always_or_never_solved_rests_for_a_while(solved: float):
    known = memory(rest_epochs=2, min_weight=0.5)
    known.learn(0, epoch=3, solved=solved, teaches=False)
    assert [known.weight(0, epoch=epoch) for epoch in (4, 5, 6)] == [0.0, 0.0, 0.5]
    expected = {"difficulty/known": 1, "difficulty/resting": 1, "difficulty/solve_rate": solved}
    assert known.metrics(epoch_of=lambda row: 4) == expected
    assert known.metrics(epoch_of=lambda row: 6)["difficulty/resting"] == 0


def test_nothing_rests_where_a_run_learns_from_equal_rewards():
    known = DifficultyMemory.of(DifficultyConfig(), seed=1, rests=False)
    assert known is not None
    known.learn(0, epoch=3, solved=0.0, teaches=False)
    assert known.weight(0, epoch=4) == DifficultyConfig().min_weight


def drawn(prompts: PromptOrder, count: int) -> list[int]:
    found, position = [], 0
    while len(found) < count:
        found.append(prompts.next_from(position))
        position = found[-1] + 1
    return found


def test_prompts_are_drawn_by_their_weight_and_each_position_keeps_its_row():
    known = memory(min_weight=0.25)
    for row in range(10):  # half of them are solved half of the time, half hardly ever
        known.learn(row, epoch=0, solved=0.5 if row < 5 else 0.01, teaches=True)
    prompts, plain = order(10, known), order(10, None)
    found = drawn(prompts, 5000)
    assert all(prompts.row_at(position) == plain.row_at(position) for position in found)
    assert found == drawn(prompts, 5000)
    counts = Counter(prompts.row_at(position).index for position in found)
    assert sum(counts[row] for row in range(5, 10)) / sum(counts[row] for row in range(5)) == pytest.approx(0.25, 0.1)


def test_when_everything_rests_the_rest_ends(caplog: pytest.LogCaptureFixture):
    known = memory(rest_epochs=100)
    for row in range(4):
        known.learn(row, epoch=0, solved=1.0, teaches=False)
    assert order(4, known).next_from(4) == 4
    assert "all prompts of an epoch rest" in caplog.text
    assert not known.rests_until


@dataclass
class Solved:
    """The policy solves even rows always, and the first of two samples of odd rows."""

    by_row: Counter[int] = field(default_factory=Counter)

    async def score(self, groups: list[Group], *, step: int) -> None:
        for group in groups:
            self.by_row[group.row.index] += 1
            for k, episode in enumerate(group.episodes):
                episode.correct = group.row.index % 2 == 0 or k == 0
                episode.total = float(episode.correct)


def remembering(cursor: Cursor | None = None) -> tuple[Pipeline, Solved]:
    pipeline, reward = make(FakeRollout(), cursor=cursor), Solved()
    pipeline.reward = reward  # type: ignore[assignment]
    config = DifficultyConfig(rest_epochs=2)
    pipeline.prompts.difficulty = DifficultyMemory.of(config, seed=1, known=cursor.difficulty if cursor else ())
    return pipeline, reward


async def steps_of(pipeline: Pipeline, versions: range) -> list[list[int]]:
    found = []
    for version in versions:
        await pipeline.policy_updated(version)
        found.append(positions((await pipeline.next_batch()).groups))
        pipeline.batch_used()
    return found


async def test_a_resumed_run_passes_over_the_same_prompts():
    """Five rows, four groups a step: the three rows that are always solved rest for two epochs, and more."""
    whole, reward = remembering()
    expected = await steps_of(whole, range(1, 9))
    assert min(reward.by_row[row] for row in (1, 3)) > 2 * max(reward.by_row[row] for row in (0, 2, 4))

    first, _ = remembering()
    found = await steps_of(first, range(1, 4))
    # A stop between sampling and training: the batch is not learnt from.
    await first.policy_updated(4)
    await first.next_batch()
    cursor = Cursor(**json.loads(json.dumps(asdict(first.cursor()))))
    resumed, _ = remembering(cursor)
    assert found + await steps_of(resumed, range(4, 9)) == expected
    assert asdict(resumed.cursor()) == asdict(whole.cursor())


async def test_an_episode_without_a_score_teaches_the_memory_nothing():
    pipeline, _ = remembering()
    await pipeline.policy_updated(1)
    batch = await pipeline.next_batch()
    for group in batch.groups[1:]:
        group.episodes = [completion("e", [1], [-0.5], "x", "stop", [(1, 1)]) for _ in group.episodes]
    pipeline.batch_used()
    assert len(pipeline.cursor().difficulty) == 1
