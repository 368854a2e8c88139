"""Workers that are stopped, as by a debugger, before they begin: no sample is the cause of that."""

import contextlib
import os
import signal

import pytest
import pytest_asyncio
from tests.reward.machinery import Machinery, gone, workers_of

from grpo_reward.executors import worker_handle

pytestmark = [pytest.mark.faults, pytest.mark.asyncio(loop_scope="module")]

SLOW_TO_BEGIN = """
import os
import time
from pathlib import Path
from pydantic import AfterValidator
from typing import Annotated
from grpo_reward import Score, reward

def hang(value: str) -> str:
    if value == "for ever" or value.startswith("once ") and not Path(value[5:]).exists():
        if value != "for ever":
            Path(value[5:]).touch()
        time.sleep(1000)
    return value

@reward
def misbehave(completion: str, *, begin: Annotated[str, AfterValidator(hang)] = "") -> float | Score:
    if completion == "slow":
        time.sleep(0.02)
    return Score(1.0, log={"pid": os.getpid()}) if completion == "process" else 1.0

@reward
def batch_misbehave(completions: list[str], *, begin: Annotated[str, AfterValidator(hang)] = "") -> list[float]:
    return [1.0] * len(completions)
"""


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def started(tmp_path_factory: pytest.TempPathFactory):
    plugin = tmp_path_factory.mktemp("plugin") / "slow_to_begin.py"
    plugin.write_text(SLOW_TO_BEGIN)
    machinery = Machinery(plugin)
    await machinery.executor.start()
    yield machinery
    await machinery.executor.stop()


@pytest.fixture
def machinery(started: Machinery, monkeypatch: pytest.MonkeyPatch) -> Machinery:
    monkeypatch.setattr(worker_handle, "START_LIMIT_S", 1.0)
    started.restarts.clear()
    return started


@pytest.mark.parametrize("reward", ["misbehave", "batch_misbehave"])
async def test_idle_workers_that_are_stopped_cost_no_sample_its_score(machinery, reward):
    stopped = await machinery.all_workers()
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    assert await machinery.statuses("", "", "", reward=reward, timeout_s=20.0) == ["ok"] * 3
    assert set(machinery.restarts) <= {"unread"}
    assert machinery.restarts["unread"] >= 1
    for pid in stopped:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)  # one may be idle still
    assert await gone(*stopped)


async def test_when_no_worker_ever_begins_that_ends_too(started, misbehaving, monkeypatch):
    await started.all_workers()  # no other says hello meanwhile
    machinery = Machinery(misbehaving, workers=1)
    hello = worker_handle.WorkerHandle.hello

    async def hello_and_stop(handle: worker_handle.WorkerHandle) -> bool:
        said = await hello(handle)
        for pid in workers_of(machinery.executor):
            os.kill(pid, signal.SIGSTOP)
        return said

    monkeypatch.setattr(worker_handle, "START_LIMIT_S", 0.1)
    monkeypatch.setattr(worker_handle.WorkerHandle, "hello", hello_and_stop)
    await machinery.executor.start()
    scores = await machinery.score("", "")
    await machinery.executor.stop()
    assert [score.status for score in scores] == ["error", "error"]
    assert "no worker took this up, 7 of them" in scores[0].detail


@pytest.mark.parametrize("reward", ["misbehave", "batch_misbehave"])
async def test_params_that_hang_cost_two_workers_however_many_samples_there_are(machinery, reward):
    scores = await machinery.score(*[""] * 40, reward=reward, timeout_s=0.3, begin="for ever")
    assert [score.status for score in scores] == ["timeout"] * 40
    assert "before the first sample" in scores[0].detail
    assert machinery.restarts == {"timeout": 2}
    assert await machinery.statuses("", "", timeout_s=20.0) == ["ok", "ok"]


async def test_params_that_hang_once_cost_no_sample_its_score(machinery, tmp_path):
    assert await machinery.statuses("", "", timeout_s=0.3, begin=f"once {tmp_path}/mark") == ["ok", "ok"]
    assert machinery.restarts == {"timeout": 1}
