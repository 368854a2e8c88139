"""What a score may say beside its number has a bound for each answer, and one for all of them."""

from pathlib import Path

import pytest
from tests.reward.app_server import Server, error_of
from tests.reward.gated import GatedExecutor

from grpo_proto import RewardScore, RewardSpec, ScoreRequest, ScoreSample
from grpo_reward.extras import MAX_KEPT_DETAIL_CHARS, MAX_REMEMBERED_BYTES, Extras, extra_bytes
from grpo_reward.memo import Memo
from grpo_reward.metrics import Metrics
from grpo_reward.scoring import MAX_CHUNK_SCORES, Scoring

PLUGIN = """
from grpo_reward import Score, reward

@reward
def talkative(completion: str) -> Score:
    if completion == "raise":
        raise ValueError("x" * 900)
    return Score(1.0, log={"text": "x" * int(completion)}, metrics={"length": float(completion)})
"""


@pytest.fixture
def executor(tmp_path: Path, fresh_modules: None) -> GatedExecutor:
    path = tmp_path / "talkative_plugin.py"
    path.write_text(PLUGIN)
    return GatedExecutor([path])


def request(*completions: str) -> ScoreRequest:
    samples = [ScoreSample(completion=text) for text in completions]
    return ScoreRequest(rewards=[RewardSpec(name="talkative")], samples=samples)


async def scores_of(scoring: Scoring, *completions: str) -> list[RewardScore]:
    return [result.rewards["talkative"] for result in (await scoring.score(request(*completions))).results]


async def test_beyond_the_bound_of_an_answer_a_score_comes_without_what_it_has_to_log(executor, caplog):
    extras = Extras(max_answer_bytes=10_000)
    scoring = Scoring(executor, Metrics(), extras=extras)
    scores = await scores_of(scoring, *["3000"] * 6, "10")
    assert [score.score for score in scores] == [1.0] * 7
    kept = [score for score in scores if score.log]
    cut = [score for score in scores if not score.log]
    assert len(kept) == 3
    assert sum(extra_bytes(score) for score in kept) <= 10_000
    assert kept[-1].log == {"text": "x" * 10}, "what is small has a place when what is large has none"
    for score in cut:
        assert (score.status, score.metrics) == ("ok", None)
        assert score.detail == "log and metrics left out: those of one answer may have 10000 bytes"
    assert f"without what {len(cut)} of its scores had to log" in caplog.text
    assert extras.held_bytes == 0


async def test_beyond_it_details_are_short(executor):
    scores = await scores_of(Scoring(executor, Metrics(), extras=Extras(max_answer_bytes=1000)), "raise", "raise")
    told = f"ValueError: {'x' * 900} (talkative_plugin.py, line 7)"
    assert [len(score.detail or "") for score in scores] == [len(told), MAX_KEPT_DETAIL_CHARS + 1]
    assert scores[0].detail == told
    assert [score.status for score in scores] == ["error", "error"]


def test_answers_at_once_have_a_bound_together():
    extras = Extras(max_held_bytes=11_000)
    score = RewardScore(score=1.0, status="ok", log={"text": "x" * 3000})
    with extras.answer() as first:
        with extras.answer() as second:
            mine, others = [score, None, score], [score, score]
            first.bound(mine)
            second.bound(others)
            assert mine == [score, None, score]
            assert [found.log is not None for found in others] == [True, False]
            assert others[1].detail == "log and metrics left out: those of all answers at once may have 11000 bytes"
            assert extras.held_bytes == first.held_bytes + second.held_bytes <= 11_000
        assert extras.held_bytes == first.held_bytes
    assert extras.held_bytes == 0


async def test_what_was_left_out_is_not_remembered_and_neither_is_what_is_large(executor):
    scoring = Scoring(executor, Metrics(), memo=Memo(100), extras=Extras(max_answer_bytes=5000))
    small, large = "1000", str(MAX_REMEMBERED_BYTES)
    first = await scores_of(scoring, large, small)
    assert [bool(score.log) for score in first] == [True, False]
    again = await scores_of(scoring, small, large)
    assert [bool(score.log) for score in again] == [True, False]
    open_items = [len(chunk.samples) for chunk in executor.chunks]
    assert sum(open_items) == 4, "chunks that are known come by, too"
    assert (await scores_of(scoring, small))[0].log == {"text": "x" * 1000}
    assert len(executor.chunks) == len(open_items)


async def test_a_chunk_of_the_cheapest_reward_has_an_end(executor):
    scoring = Scoring(executor, Metrics())
    for _ in range(20):  # until it is known to be cheap
        await scores_of(scoring, *["1"] * 100)
    executor.chunks.clear()
    await scores_of(scoring, *["1"] * 4000)
    assert max(len(chunk.samples) for chunk in executor.chunks) <= MAX_CHUNK_SCORES


async def test_samples_times_rewards_have_a_limit():
    server = Server(max_samples=1)
    rewards = [{"name": name} for name in server.executor.rewards]
    assert len(rewards) < 64
    async with server.http:
        twice = [{"name": f"{number}"} for number in range(65)]
        kind, message, hint = error_of(await server.score(twice, [{"completion": ""}]), 413)
    assert kind == "too_many_scores"
    assert message == "1 samples with 65 rewards are 65 scores; the limit is 64"
    assert "--max-samples" in hint


def test_many_small_values_weigh_more_than_their_text():
    def size(log: dict) -> int:
        return extra_bytes(RewardScore(score=1.0, status="ok", log=log))

    assert extra_bytes(RewardScore(score=1.0, status="ok")) == 0
    assert size({"a": "x" * 10_000}) < 11_000
    assert size({"a": [[]] * 10_000}) > 1_000_000
    assert size({"a": [{}] * 10_000}) > 2_000_000
