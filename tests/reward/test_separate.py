"""Built-in rewards beside plugins that leave their workers, or their fork server, in a bad state."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from tests.reward.machinery import PATIENCE_S, fork_server, is_running, keeper

from grpo_proto import RewardSpec, ScoreRequest, ScoreSample
from grpo_reward.executors.base import Chunk, Executor, ExecutorUnavailable
from grpo_reward.executors.process import ProcessExecutor
from grpo_reward.executors.separate import SeparateExecutor, each_part, worker_processes
from grpo_reward.executors.wrapped import WrappedExecutor
from grpo_reward.metrics import Metrics
from grpo_reward.scoring import Scoring

pytestmark = [pytest.mark.processes, pytest.mark.asyncio(loop_scope="module")]

PLUGIN = """
import decimal
import functools

from grpo_reward import reward
from grpo_reward.rewards.exact_match import exact_match


@reward
def spoils(completion: str) -> float:
    import sympy
    sympy.Basic.__eq__ = lambda self, other: True
    sympy.Integer.__eq__ = lambda self, other: True
    from grpo_reward.rewards import countdown
    countdown.countdown = None
    return 1.0


@reward(name="half")
@functools.wraps(exact_match)
def half(completion: str, **others: object) -> float:
    return 0.5 * exact_match(completion, **others)


@reward
def quick(completion: str) -> float:
    return 0.25


@reward
def rounds(completion: str) -> float:
    decimal.getcontext().prec = 3
    return 1.0


@reward
def exact(completion: str) -> float:
    return float(decimal.Decimal("1.23456") + 0 == decimal.Decimal("1.23456"))
"""
RESTARTS: list[str] = []
"""Causes, of the workers of both parts."""


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def executor(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SeparateExecutor]:
    plugin = tmp_path_factory.mktemp("separate") / "spoils.py"
    plugin.write_text(PLUGIN)
    executor = worker_processes(workers=1, plugins=[plugin], on_restart=RESTARTS.append)
    assert isinstance(executor, SeparateExecutor)
    await executor.start()
    yield executor
    await executor.stop()


async def score(executor: SeparateExecutor, reward: str, completion: str = "<answer>$6$</answer>") -> float | None:
    sample = {"completion": completion, "columns": {"solution": "$5$"}}
    chunk = Chunk([RewardSpec(name=reward)], [sample], None, 30.0)
    async with asyncio.timeout(PATIENCE_S):
        await executor.score(chunk)
    [found] = chunk.scores
    assert found is not None
    return found.score


async def test_there_is_one_part_without_plugins():
    assert isinstance(worker_processes(workers=1, plugins=[]), ProcessExecutor)


async def test_the_rewards_of_both_are_there(executor):
    rewards = executor.rewards
    assert {"accuracy", "countdown", "spoils", "half"} < set(rewards)
    assert {name for name, reward in rewards.items() if reward.of_plugin} == {
        "spoils", "half", "quick", "rounds", "exact"
    }  # fmt: skip
    assert (executor.workers, executor.spare, executor.problem, executor.failed) == (1, 0, None, None)


async def test_what_a_plugin_does_to_libraries_reaches_no_built_in_reward(executor):
    assert await score(executor, "accuracy") == 0.0
    assert await score(executor, "spoils") == 1.0
    assert await score(executor, "accuracy") == 0.0
    assert await score(executor, "accuracy", "<answer>$5$</answer>") == 1.0


async def test_cheap_rewards_of_both_in_one_request(executor):
    scoring = Scoring(executor, Metrics())
    rewards = [RewardSpec(name=name) for name in ("quick", "tag_count", "half", "exact_match")]
    samples = [ScoreSample(completion="<answer>$5$</answer>", columns={"solution": "$5$"})] * 20
    for _ in range(3):  # from the second on, they are known to be cheap
        answer = await scoring.score(ScoreRequest(rewards=rewards, samples=samples, timeout_s=30.0))
        for result in answer.results:
            assert {name: found.status for name, found in result.rewards.items()} == dict.fromkeys(result.rewards, "ok")
            assert (result.rewards["quick"].score, result.rewards["half"].score) == (0.25, 0.5)


async def test_what_one_plugin_leaves_behind_reaches_no_other_of_the_same_request(executor):
    scoring = Scoring(executor, Metrics())
    request = ScoreRequest(
        rewards=[RewardSpec(name="rounds"), RewardSpec(name="exact")], samples=[ScoreSample(completion="")] * 3
    )
    for _ in range(4):  # from the second on, they are known to be cheap
        answer = await scoring.score(request)
        assert [result.rewards["exact"].score for result in answer.results] == [1.0] * 3


@pytest.mark.faults
async def test_a_lost_fork_server_of_plugins_stops_no_built_in_reward(executor, monkeypatch):
    monkeypatch.setattr("grpo_reward.executors.process.LOSS_PAUSES_S", (4.0,))
    _, plugins = executor.parts
    RESTARTS.clear()
    os.kill(fork_server(plugins), signal.SIGKILL)
    async with asyncio.timeout(PATIENCE_S):
        while not RESTARTS:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert await score(executor, "exact_match", "$5$") == 1.0
        while plugins.problem is None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        with pytest.raises(ExecutorUnavailable, match="no worker process is running"):
            await score(executor, "quick")
        assert (executor.problem, executor.failed) == (None, None)
        while plugins.problem is not None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert await score(executor, "quick") == 0.25
    assert RESTARTS == ["lost"]  # of the one worker of plugins


async def test_a_wrapper_is_around_each_part(executor):
    inside: list[Executor] = []

    def wrap(part: Executor) -> WrappedExecutor:
        inside.append(part)
        return WrappedExecutor(part)

    wrapped = each_part(executor, wrap)
    assert inside == list(executor.parts)
    assert await score(wrapped, "quick") == 0.25
    inside.clear()
    single = ProcessExecutor(workers=1)
    assert isinstance(each_part(single, wrap), WrappedExecutor)
    assert inside == [single]


async def test_a_part_that_cannot_start_stops_the_other(tmp_path: Path):
    plugin = tmp_path / "plugin.py"
    plugin.write_text("x = 1")
    executor = worker_processes(workers=1, plugins=[plugin])
    with pytest.raises(ExecutorUnavailable, match="defines no reward"):
        await executor.start()
    assert not any(is_running(keeper(part)) for part in executor.parts)
