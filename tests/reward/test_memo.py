"""What is remembered, and what tells two scores apart."""

import pytest
from pydantic_core import to_json

from grpo_proto import RewardScore, RewardSpec, ScoreRequest
from grpo_reward import memo
from grpo_reward.executors.base import Chunk
from grpo_reward.executors.inline import InlineExecutor
from grpo_reward.memo import Memo
from grpo_reward.metrics import Metrics
from grpo_reward.scoring import Scoring


class Counting(InlineExecutor):
    def __init__(self) -> None:
        super().__init__()
        self.scored: list[str] = []

    async def score(self, chunk: Chunk) -> None:
        for item in chunk.open_items():
            sample, reward = divmod(item, len(chunk.rewards))
            self.scored.append(f"{chunk.rewards[reward].name} {chunk.samples[sample]['completion']}")
        await super().score(chunk)


def request(*completions: str, nums: list[int] | None = None, **more: object) -> ScoreRequest:
    columns = {"nums": nums or [1, 2], "target": 3, "unread": object.__name__}
    return ScoreRequest.model_validate(
        {
            "rewards": more.pop("rewards", [{"name": "countdown"}]),
            "samples": [{"completion": text, "columns": columns, "id": text} for text in completions],
            **more,
        }
    )


@pytest.fixture
def executor() -> Counting:
    return Counting()


@pytest.fixture
def scoring(executor: Counting) -> Scoring:
    return Scoring(executor, Metrics(), memo=Memo(100))


RIGHT, WRONG = "<answer>1+2</answer>", "<answer>1-2</answer>"


async def test_the_same_sample_is_scored_once(scoring, executor):
    first = await scoring.score(request(RIGHT, WRONG))
    second = await scoring.score(request(WRONG, RIGHT, "", step=7))
    assert executor.scored == [f"countdown {RIGHT}", f"countdown {WRONG}", "countdown "]
    assert [result.total for result in second.results] == [0.0, 1.0, 0.0]
    assert first.results[0].rewards == second.results[1].rewards


@pytest.mark.parametrize(
    "other",
    [
        {"nums": [1, 2, 0]},
        {"rewards": [{"name": "format"}]},
        {"rewards": [{"name": "format", "params": {"require_think": False}}]},
    ],
)
async def test_other_columns_rewards_and_params_are_another_score(scoring, executor, other):
    await scoring.score(request(RIGHT))
    await scoring.score(request(RIGHT, rewards=[{"name": "format", "params": {"prefix": "<think>"}}]))
    await scoring.score(request(RIGHT, **other))
    assert len(executor.scored) == 3


async def test_several_rewards_of_one_sample(scoring, executor):
    both = [{"name": "countdown"}, {"name": "format", "weight": 0.5, "params": {"require_think": False}}]
    await scoring.score(request(RIGHT, rewards=both[:1]))
    answer = await scoring.score(request(RIGHT, WRONG, rewards=both))
    assert [result.total for result in answer.results] == [1.5, 0.5]
    again = await scoring.score(request(RIGHT, WRONG, rewards=both))
    assert [result.total for result in again.results] == [1.5, 0.5]
    assert len(executor.scored) == 1 + 3


async def test_a_batch_reward_is_scored_every_time(scoring, executor):
    spec = [{"name": "length", "params": {"unit": "characters"}}]
    sample = {"completion": "\\boxed{1}", "columns": {"solution": "1"}}
    for _ in range(2):
        await scoring.score(ScoreRequest.model_validate({"rewards": spec, "samples": [sample]}))
    assert len(executor.scored) == 2


@pytest.mark.parametrize(("status", "kept"), [("ok", True), ("unscorable", True), ("timeout", False), ("error", False)])
def test_time_outs_and_errors_are_not_remembered(executor, status, kept):
    memo = Memo(10)

    def chunk() -> Chunk:
        return Chunk([RewardSpec(name="min_length")], [{"completion": "a", "columns": {}}], None, 1.0)

    first, second = chunk(), chunk()
    keys = memo.recall(first, executor.rewards)
    first.scores = [RewardScore(score=1.0 if status == "ok" else None, status=status)]
    memo.remember(first, keys)
    memo.recall(second, executor.rewards)
    assert (second.scores == first.scores) is kept


def test_it_forgets_the_oldest(executor):
    memo = Memo(2)
    for text in ("a", "b", "c", "a"):
        chunk = Chunk([RewardSpec(name="min_length")], [{"completion": text, "columns": {}}], None, 1.0)
        keys = memo.recall(chunk, executor.rewards)
        assert chunk.scores == [None]
        chunk.scores = [RewardScore(score=1.0, status="ok")]
        memo.remember(chunk, keys)


async def test_params_are_read_once_for_a_request(scoring, monkeypatch):
    """They may be megabytes, and there may be thousands of samples: the event loop would stand still."""
    read = []
    monkeypatch.setattr(memo, "to_json", lambda value: read.append(value) or to_json(value))
    texts = [f"<answer>{number}</answer>" for number in range(200)]
    rewards = [{"name": "format", "params": {"prefix": "x" * 100}}, {"name": "countdown"}]
    await scoring.score(request(*texts, rewards=rewards))
    assert len([value for value in read if value[1] == "format"]) == 1
