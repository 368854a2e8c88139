"""Real worker processes, and rewards that do what they must not. What is asked for is in the completion."""

import asyncio
import contextlib
import operator
import os
import resource
import signal
from pathlib import Path

import pytest
import pytest_asyncio
from pydantic_core import PydanticSerializationError
from tests.reward.machinery import PATIENCE_S, Machinery, fork_server, gone, keeper, workers_of

from grpo_proto import RewardSpec
from grpo_reward.executors.base import Chunk, InvalidParams
from grpo_reward.executors.worker_handle import Ending, WorkerHandle

pytestmark = [pytest.mark.processes, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def started(misbehaving: Path):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRPO_API_TOKEN", "not for plugins")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "nor this")
        machinery = Machinery(misbehaving)
        await machinery.executor.start()
    yield machinery
    await machinery.executor.stop()


def peak_mib() -> float:
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


async def test_loads_the_plugin_and_no_other_reward(machinery):
    rewards = machinery.executor.rewards
    assert {"misbehave", "typed"} < set(rewards)
    assert all(reward.of_plugin for reward in rewards.values())
    assert rewards["typed"].description.columns == ["gold"]
    assert rewards["batch_misbehave"].batch
    assert machinery.executor.problem is None


@pytest.mark.parametrize("late", ["loop", "hold the interpreter", "stop", "ignore signals"])
async def test_a_late_item_is_cut_off_and_the_rest_is_scored(machinery, late):
    scores = await machinery.score("", late, "", "none", timeout_s=0.5)
    assert [score.score for score in scores] == [1.0, None, 1.0, None]
    assert scores[1].status == "timeout"
    assert "within" in scores[1].detail
    assert machinery.restarts == {"timeout": 1}


@pytest.mark.parametrize(
    ("end", "detail"),
    [("exit at once", "status 7"), ("segmentation fault", "signal 11"), ("kill", "signal 9")],
)
async def test_an_item_that_ends_the_worker_is_an_error_and_the_rest_is_scored(machinery, end, detail):
    scores = await machinery.score("", end, "", "")
    assert [score.status for score in scores] == ["ok", "error", "ok", "ok"]
    assert "twice" in scores[1].detail
    assert detail in scores[1].detail
    assert machinery.restarts == {"death": 2}


async def test_an_item_is_tried_again_when_its_worker_died(machinery, tmp_path):
    scores = await machinery.score("", "die the first time", "", folder=str(tmp_path))
    assert [score.status for score in scores] == ["ok", "ok", "ok"]
    assert machinery.restarts == {"death": 1}


async def test_a_worker_that_lasts_for_ten_items_costs_no_item_its_score(machinery):
    """What leaks until its process is killed: the items that it is killed at have done nothing."""
    scores = await machinery.score(*[f"the eleventh dies {number}" for number in range(60)])
    assert [score.score for score in scores] == [1.0] * 60
    assert machinery.restarts["death"] >= 5


@pytest.mark.parametrize(
    "what",
    [
        "exit",
        "import",
        "recurse",
        "raise",
        "raise without text",
        "surrogate",
        "nan",
        "infinity",
        "text",
        "huge",
        "too long",
        "many metrics",
        "a long metric",
    ],
)
async def test_failures_and_bad_values_are_errors_and_the_worker_lives(machinery, what):
    scores = await machinery.score("", what, "")
    assert [score.status for score in scores] == ["ok", "error", "ok"]
    assert scores[1].score is None
    assert scores[1].detail
    assert not machinery.restarts


async def test_an_alarm_that_one_item_set_costs_no_other_its_score(machinery):
    scores = await machinery.score("set an alarm", *["slow"] * 3)
    assert [score.status for score in scores] == ["ok"] * 4


async def test_none_is_unscorable(machinery):
    none, reason = await machinery.score("none", "reason")
    assert (none.status, none.score, none.detail) == ("unscorable", None, None)
    assert (reason.status, reason.score, reason.detail) == ("unscorable", None, "not my task")


async def test_log_and_metrics_come_back(machinery):
    (score,) = await machinery.score("log")
    assert (score.score, score.log, score.metrics) == (0.5, {"seen": "log"}, {"length": 3.0})
    assert await machinery.statuses("large log", "") == ["error", "ok"]
    no_log, no_metric, true = await machinery.score("bad log", "bad metric", "true")
    (part,) = await machinery.score("broken text")
    assert (part.score, part.log, part.metrics) == (0.5, {"good": 1}, {"good": 1.0})
    left_out = "log column bad left out: no valid Unicode text; metric \\udfff left out: no valid Unicode text"
    assert part.detail == f"why; {left_out}"
    assert (no_log.score, no_log.detail) == (0.5, "log column seen left out: a value of type object is no JSON")
    assert (no_metric.score, no_metric.detail) == (0.5, "metric length left out: it is nan, not a finite number")
    assert true.score == 1.0


async def test_memory_without_end_fails_and_costs_only_this_worker(machinery):
    scores = await machinery.score("", "allocate", "")
    assert [score.status for score in scores] == ["ok", "error", "ok"]
    assert scores[1].detail.startswith("MemoryError")
    # Those of the two workers that had scored before, where what that left could have been to blame, and a fresh one.
    assert machinery.restarts["leaving"] == machinery.restarts.total()
    assert 1 <= machinery.restarts["leaving"] <= 3


async def test_printing_and_reading_do_no_harm(machinery):
    assert await machinery.statuses("print", "read", "print") == ["ok", "ok", "ok"]
    assert not machinery.restarts


async def test_closing_every_file_costs_this_item_only(machinery):
    assert await machinery.statuses("", "close everything", "") == ["ok", "error", "ok"]


@pytest.mark.parametrize("what", ["leave a thread", "fork", "fork and stay"])
async def test_what_a_reward_leaves_behind_goes_with_its_worker(machinery, what):
    before = await machinery.processes()
    machinery.restarts.clear()
    assert await machinery.statuses("", what, what, "") == ["ok", "ok", "ok", "ok"]
    assert machinery.restarts == {"leaving": 2}
    assert len(await machinery.processes() - before) >= 1


async def test_a_daemon_of_a_reward_does_not_outlive_its_worker(machinery, tmp_path):
    assert await machinery.statuses("start a daemon", folder=str(tmp_path)) == ["error"]
    assert await gone(int((tmp_path / "daemon").read_text()))


async def test_of_the_environment_a_reward_sees_a_short_list_and_what_it_was_given(machinery):
    (score,) = await machinery.score("environment")
    environment = score.log["environment"]
    assert environment["PATH"] == os.environ["PATH"]
    assert environment["GIVEN_TO_REWARDS"] == "yes"
    assert not {"GRPO_API_TOKEN", "AWS_SECRET_ACCESS_KEY"} & set(environment)


@pytest.mark.faults
async def test_idle_workers_that_are_killed_are_replaced(machinery):
    before = await machinery.all_workers()
    assert len(before) == 2
    machinery.restarts.clear()
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    async with asyncio.timeout(PATIENCE_S):
        while machinery.restarts["death"] < 2:  # noqa: ASYNC110 - at once, not when the next request finds them dead
            await asyncio.sleep(0.01)
    assert await machinery.statuses("", "", "") == ["ok", "ok", "ok"]
    assert machinery.restarts == {"death": 2}
    after = await machinery.all_workers()
    assert len(after) == 2
    assert not before & after


@pytest.mark.faults
async def test_under_a_storm_of_kills_every_request_gets_its_scores(machinery):
    """The killed die while they are idle, before, at and after the moment in which they are given something. Each of
    three clients is answered between two waves: a sample whose worker dies of it twice has no score.
    """
    ended, answered = asyncio.Event(), [0, 0, 0]

    async def storm() -> None:
        while not ended.is_set():
            for pid in workers_of(machinery.executor):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            before = list(answered)
            while not ended.is_set() and any(map(operator.eq, before, answered)):  # noqa: ASYNC110 - looks at three
                await asyncio.sleep(0.01)

    async def client(number: int) -> list[str]:
        found: list[str] = []
        while machinery.restarts["death"] < 30:
            found += await machinery.statuses("")
            answered[number] += 1
        return found

    async with asyncio.timeout(PATIENCE_S):
        killing = asyncio.create_task(storm())
        found = await asyncio.gather(*(client(number) for number in range(3)))
        ended.set()
        await killing
    assert {status for statuses in found for status in statuses} == {"ok"}


@pytest.mark.faults
async def test_a_worker_that_was_dead_already_counts_for_nothing(machinery):
    """Nobody reports its death while the fork server is stopped; its keeper would let that one go on."""
    workers = await machinery.all_workers()
    stopped = keeper(machinery.executor), fork_server(machinery.executor)
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    for pid in workers:
        os.kill(pid, signal.SIGKILL)
    assert await gone(*workers)
    for _ in range(2):  # so that the event loop sees their connections end
        await asyncio.sleep(0)
    work = asyncio.create_task(machinery.statuses(""))
    async with asyncio.timeout(PATIENCE_S):
        while machinery.restarts["death"] < 2:  # noqa: ASYNC110
            await asyncio.sleep(0)
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)
    assert await work == ["ok"]
    assert machinery.restarts == {"death": 2}


async def test_what_a_worker_cannot_read_is_an_error_and_costs_no_worker(machinery):
    deep: list = []
    for _ in range(210):
        deep = [deep]
    chunk = Chunk([RewardSpec(name="typed")], [{"completion": "", "columns": {"gold": deep}}], None, 30.0)
    await machinery.executor.score(chunk)
    assert [score.status for score in chunk.scores] == ["error"]
    assert "cannot read" in chunk.scores[0].detail
    assert await machinery.statuses("") == ["ok"]
    assert not machinery.restarts


@pytest.mark.parametrize("how", ["stop the clock", "turn the clock back"])
async def test_a_reward_that_changes_the_clock_harms_no_other(machinery, how):
    assert await machinery.statuses("", how, "", "", timeout_s=20.0) == ["ok"] * 4
    chunks = [Chunk([RewardSpec(name="misbehave")], [{"completion": "", "columns": {}}], None, 20.0) for _ in range(6)]
    await asyncio.gather(*map(machinery.executor.score, chunks))
    assert all(chunk.scores[0].status == "ok" and chunk.seconds["misbehave"] >= 0 for chunk in chunks)
    assert machinery.restarts == {"leaving": 1}


async def test_a_reward_that_talks_to_the_server_fills_no_memory(machinery):
    before = peak_mib()
    assert await machinery.statuses("", "say endlessly much", "", timeout_s=20.0) == ["ok", "error", "ok"]
    assert peak_mib() - before < 100


@pytest.mark.faults
async def test_workers_killed_at_work_lose_nothing(machinery):
    before = await machinery.all_workers()
    work = [asyncio.create_task(machinery.statuses(*["slow"] * 4)) for _ in range(2)]
    await asyncio.sleep(0.3)
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    assert await asyncio.gather(*work) == [["ok"] * 4] * 2
    assert await gone(*before)


async def test_cancelling_frees_the_worker(machinery):
    await machinery.all_workers()
    work = [asyncio.create_task(machinery.statuses("loop")) for _ in range(2)]
    await asyncio.sleep(0.2)
    for task in work:
        task.cancel()
    await asyncio.gather(*work, return_exceptions=True)
    assert await machinery.statuses("", "") == ["ok", "ok"]
    assert machinery.restarts == {"cancelled": 2}


@pytest.mark.parametrize("turns", range(5))
async def test_cancelling_beside_an_answer_is_not_forgotten(machinery, turns, monkeypatch):
    """Whatever has just come from a worker: a deadline that falls together with it cuts all the same."""
    cut: list[bool] = []
    run = WorkerHandle.run

    async def run_and_cut(handle: WorkerHandle, chunk: Chunk, items: list[int]) -> Ending:
        receive = handle.data_received

        def receive_and_cut(data: bytes) -> None:
            receive(data)
            cut_after(turns)

        monkeypatch.setattr(handle, "data_received", receive_and_cut)
        return await run(handle, chunk, items)

    def cut_after(turns: int) -> None:
        if turns:
            asyncio.get_running_loop().call_soon(cut_after, turns - 1)
        else:
            cut.append(task.cancel())

    monkeypatch.setattr(WorkerHandle, "run", run_and_cut)
    task = asyncio.create_task(machinery.statuses("", ""))
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert cut[:1] in ([], [task.cancelled()])  # a task that has ended cannot be cut


async def test_text_that_cannot_be_sent_costs_no_worker(machinery):
    with pytest.raises(PydanticSerializationError):
        await machinery.score("\ud800")
    assert await machinery.statuses("") == ["ok"]
    assert not machinery.restarts


async def test_a_deadline_cuts_many_cheap_samples(machinery):
    samples = [{"completion": "", "columns": {}} for _ in range(20)]
    specs = [RewardSpec(name="misbehave")]
    for _ in range(20):
        chunks = [Chunk(specs, samples, None, 30.0) for _ in range(200)]

        async def all_of(chunks: list[Chunk]) -> None:
            for chunk in chunks:
                await machinery.executor.score(chunk)

        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await all_of(chunks)
        assert any(None in chunk.scores for chunk in chunks)


async def test_wrong_params_are_refused_and_the_worker_lives(machinery):
    with pytest.raises(InvalidParams, match="misbehave: folder: "):
        await machinery.score("", folder=7)
    assert not machinery.restarts


async def test_a_batch_is_one_item(machinery):
    scores = await machinery.score("", "none", "", reward="batch_misbehave")
    assert [score.status for score in scores] == ["ok", "unscorable", "ok"]
    assert await machinery.statuses("", "loop", reward="batch_misbehave", timeout_s=0.5) == ["timeout", "timeout"]
    assert await machinery.statuses("", "too few", reward="batch_misbehave") == ["error", "error"]
    assert await machinery.statuses("", "raise", reward="batch_misbehave") == ["error", "error"]


async def test_the_event_loop_is_free_while_workers_are_busy(machinery):
    work = asyncio.create_task(machinery.statuses("hold the interpreter", timeout_s=1.0))
    turns = 0
    while not work.done():
        await asyncio.sleep(0.01)
        turns += 1
    assert await work == ["timeout"]
    assert turns > 20


async def test_what_a_worker_cannot_read_of_several_requests_is_no_outcome_for_all_of_them(machinery):
    deep: list = []
    for _ in range(250):
        deep = [deep]
    samples = [{"completion": "", "columns": {"gold": gold}, "prompt": None} for gold in (1.0, deep, 1.0)]
    chunk = Chunk([RewardSpec(name="misbehave")], samples, None, 10.0, together=True)
    await machinery.executor.score(chunk)
    assert (chunk.ended, chunk.scores) == (True, [None] * 3)
