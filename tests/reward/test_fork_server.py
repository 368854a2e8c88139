"""The process that makes the workers: lost, stopped, starved, and plugins that it cannot load."""

import asyncio
import os
import resource
import signal
import time
from pathlib import Path

import pytest
import pytest_asyncio
from tests.reward.machinery import PATIENCE_S, Machinery, fork_server, gone, is_running, keeper, workers_of

pytestmark = [pytest.mark.faults, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def started(misbehaving: Path):
    machinery = Machinery(misbehaving)
    await machinery.executor.start()
    yield machinery
    await machinery.executor.stop()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_lost_fork_server_is_started_again_and_nothing_is_lost(misbehaving, number, monkeypatch):
    monkeypatch.setattr("grpo_reward.executors.process.PING_LIMIT_S", 2.0)
    machinery = Machinery(misbehaving)
    await machinery.executor.start()
    pids = await machinery.processes()
    work = asyncio.create_task(machinery.statuses("slow", "", "slow", timeout_s=20.0))
    await asyncio.sleep(0.05)
    former, lost = keeper(machinery.executor), fork_server(machinery.executor)
    if number == signal.SIGSTOP:
        os.kill(former, number)  # it would let its child go on
    os.kill(lost, number)
    assert await work == ["ok"] * 3
    assert await machinery.statuses("", "") == ["ok", "ok"]
    assert await gone(lost, *pids)
    assert len(await machinery.all_workers()) == 2
    assert keeper(machinery.executor) != former
    assert (machinery.executor.failed, machinery.executor.problem) == (None, None)
    await machinery.executor.stop()


async def test_a_worker_that_is_given_up_as_the_fork_server_is_lost_is_not_replaced_twice(misbehaving):
    machinery = Machinery(misbehaving)
    executor = machinery.executor
    await executor.start()
    pids = await machinery.processes()
    work = asyncio.create_task(machinery.statuses("loop"))
    await asyncio.sleep(0)  # it is at a worker
    lost = keeper(executor), fork_server(executor)
    os.kill(lost[0], signal.SIGKILL)
    until = time.monotonic() + PATIENCE_S
    while any(map(is_running, lost)):  # the loop must not see it before the chunk is cancelled
        assert time.monotonic() < until
    work.cancel()
    assert await machinery.statuses("", "") == ["ok", "ok"]
    assert machinery.restarts == {"lost": 2, "cancelled": 1}
    assert await machinery.all_workers() == set(workers_of(executor))
    assert await gone(*pids)
    await executor.stop()


async def test_a_server_that_was_stopped_itself_does_not_blame_its_fork_server(misbehaving, monkeypatch):
    machinery = Machinery(misbehaving)
    await machinery.executor.start()
    # Not before: what is forked while it starts may hold up its answers.
    monkeypatch.setattr("grpo_reward.executors.process.PING_INTERVAL_S", 0.1)
    monkeypatch.setattr("grpo_reward.executors.process.PING_LIMIT_S", 1.5)
    former = keeper(machinery.executor)
    time.sleep(2)  # noqa: ASYNC251 - for the event loop it is as if the process were stopped
    await asyncio.sleep(0.3)
    assert keeper(machinery.executor) == former
    assert await machinery.statuses("", "") == ["ok", "ok"]
    await machinery.executor.stop()


async def test_a_fork_server_that_comes_back_with_other_code_is_the_end(tmp_path):
    """Scores before and after would not mean the same, and nobody would know."""
    plugin = tmp_path / "edited.py"
    plugin.write_text("from grpo_reward import reward\n@reward\ndef misbehave(completion):\n    return 1.0\n")
    machinery = Machinery(plugin)
    await machinery.executor.start()
    assert await machinery.statuses("") == ["ok"]
    plugin.write_text(plugin.read_text().replace("1.0", "2.0"))
    os.kill(fork_server(machinery.executor), signal.SIGKILL)
    async with asyncio.timeout(PATIENCE_S):
        while machinery.executor.failed is None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert "file or model of misbehave is not what it was" in machinery.executor.failed
    await machinery.executor.stop()


async def test_a_fork_server_that_is_lost_again_while_it_loads_is_started_once_more(tmp_path):
    plugin = tmp_path / "slow.py"
    plugin.write_text(
        "import time\nfrom grpo_reward import reward\ntime.sleep(0.5)\n"
        "@reward\ndef misbehave(completion):\n    return 1.0\n"
    )
    machinery = Machinery(plugin)
    executor = machinery.executor
    await executor.start()
    for _ in range(2):
        lost = keeper(executor)
        os.kill(lost, signal.SIGKILL)
        await machinery.another_keeper(lost)
    assert await machinery.statuses("") == ["ok"]
    assert executor.failed is None
    await executor.stop()


async def test_processes_that_a_plugin_started_at_its_import_go_with_the_fork_server(tmp_path):
    plugin, pids = tmp_path / "pool.py", tmp_path / "pids"
    plugin.write_text(
        "import multiprocessing\nfrom grpo_reward import reward\npool = multiprocessing.Pool(2)\n"
        f"open({str(pids)!r}, 'w').write(' '.join(str(one.pid) for one in multiprocessing.active_children()))\n"
        "@reward\ndef misbehave(completion):\n    return 1.0\n"
    )
    machinery = Machinery(plugin)
    await machinery.executor.start()
    assert await machinery.statuses("") == ["ok"]
    started = [int(pid) for pid in pids.read_text().split()]
    assert all(map(is_running, started))
    await machinery.executor.stop()
    assert await gone(*started)


async def test_a_fork_server_that_is_lost_all_the_time_comes_back_later_and_later(misbehaving, caplog, monkeypatch):
    monkeypatch.setattr("grpo_reward.executors.process.LOSS_PAUSES_S", (0.0, 0.0, 0.0, 0.2, 0.4, 0.8))
    machinery = Machinery(misbehaving)
    await machinery.executor.start()
    pids: set[int] = set()
    for _ in range(5):
        pids |= await machinery.processes()
        lost = keeper(machinery.executor)
        os.kill(fork_server(machinery.executor), signal.SIGKILL)
        await machinery.another_keeper(lost)
    assert await machinery.statuses("", "kill the parent", "") == ["ok", "error", "ok"]
    assert machinery.executor.failed is None
    lines = [record.getMessage().partition("started again")[2] for record in caplog.records]
    assert lines[:4] == ["", "", "", " in 0.2 s; that was 4 times within 60 s"]
    assert await gone(*pids)
    await machinery.executor.stop()


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGHUP, signal.SIGTERM, signal.SIGRTMIN, signal.SIGTSTP])
async def test_a_signal_to_the_parent_does_nothing(machinery, number):
    before = fork_server(machinery.executor)
    assert await machinery.statuses(f"signal the parent {int(number)}", "", "") == ["ok"] * 3
    assert (fork_server(machinery.executor), machinery.restarts) == (before, {})


async def test_a_sample_is_not_blamed_for_another_that_kills_the_fork_server(machinery):
    slow = asyncio.create_task(machinery.statuses("slow"))
    await asyncio.sleep(0.02)  # it is in work
    assert await machinery.statuses("kill the parent") == ["error"]
    assert await slow == ["ok"]
    assert machinery.restarts == {"lost": 4}


async def test_a_late_keeper_does_not_change_who_is_blamed(misbehaving):
    machinery = Machinery(misbehaving)  # its own: the shared one may be coming back from the test before
    await machinery.executor.start()
    parent, victim = keeper(machinery.executor), fork_server(machinery.executor)
    os.kill(parent, signal.SIGSTOP)
    work = asyncio.create_task(machinery.statuses("kill the parent", ""))
    assert await gone(victim)
    await asyncio.sleep(1.5)  # longer than the wait for a worker's own status
    os.kill(parent, signal.SIGCONT)
    assert await work == ["error", "ok"]
    assert machinery.restarts == {"lost": 4}
    await machinery.executor.stop()


def links_of(pid: int) -> set[str]:
    """What the descriptors of a process lead to, the standard streams left aside."""
    return {os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir() if int(link.name) > 2}


async def test_a_worker_has_nothing_open_that_is_its_fork_servers(machinery):
    """A reward may close, shut down or write to all there is."""
    shared = {link for pid in await machinery.processes() for link in links_of(pid)}
    assert shared & links_of(fork_server(machinery.executor)) <= {"/dev/null"}


async def test_a_fork_server_that_is_stopped_goes_on(machinery):
    before = fork_server(machinery.executor)
    os.kill(before, signal.SIGSTOP)
    assert await machinery.statuses("exit at once", "") == ["error", "ok"]  # both workers are replaced
    assert fork_server(machinery.executor) == before


async def test_a_fork_server_without_memory_for_workers_is_replaced(misbehaving, caplog):
    machinery = Machinery(misbehaving)
    await machinery.executor.start()
    before = fork_server(machinery.executor)
    resource.prlimit(before, resource.RLIMIT_AS, (2**20, 2**20))
    assert await machinery.statuses("exit at once", "", "") == ["error", "ok", "ok"]
    assert fork_server(machinery.executor) != before
    # It may lack the memory itself, before its workers do.
    assert "6 workers ended before they had begun" in caplog.text or "the fork server is gone" in caplog.text
    await machinery.executor.stop()


async def test_signals_mean_to_a_worker_what_they_mean_to_others(machinery):
    (score,) = await machinery.score(f"signal itself {int(signal.SIGUSR1)}")
    assert score.detail == "the worker process died of it twice: it was killed by signal 10"
