"""Plugins that start processes while they are imported: on purpose (a manager, a helper), or by a fork that goes on."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.reward.machinery import PATIENCE_S, Machinery, fork_server, gone, is_running, keeper

from grpo_reward.executors.base import ExecutorUnavailable

pytestmark = [pytest.mark.processes, pytest.mark.asyncio]

MANAGER = """
import multiprocessing, os
from grpo_reward import reward
manager = multiprocessing.Manager()
seen = manager.dict()
PIDS.write_text(str(multiprocessing.active_children()[0].pid))

@reward
def misbehave(completion):
    if completion == "exit at once":
        os._exit(7)
    seen[completion] = True
    return float(len(seen))
"""
HELPERS = """
import subprocess, sys
from grpo_reward import reward
SLEEP = [sys.executable, "-c", "import time; time.sleep(1000)"]
# The last one's parent goes later, so that it is adopted while workers run.
STARTS = "import subprocess, sys, time; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(1000)']);"
STARTS += "print(p.pid, flush=True); sys.stdin.read()"
kept = [subprocess.Popen(SLEEP), subprocess.Popen(SLEEP, start_new_session=True)]
parent = subprocess.Popen([sys.executable, "-c", STARTS], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
orphan = int(parent.stdout.readline())
PIDS.write_text(" ".join(str(pid) for pid in [*(one.pid for one in kept), orphan]))

@reward
def misbehave(completion):
    if completion == "exit at once":
        import os
        os._exit(7)
    return 1.0
"""
FORKS = """
import os, sys, time
from pathlib import Path
from grpo_reward import reward
pid = os.fork()
if pid == 0:
    WHAT
    PIDS.with_name("child").touch()
else:
    PIDS.write_text(str(pid))

@reward
def misbehave(completion):
    return 1.0
"""
FORKS_ALL_THE_TIME = """
import os, time
from grpo_reward import reward
pids, until = [], time.monotonic() + 1.0
while time.monotonic() < until:
    pid = os.fork()
    if pid == 0:
        time.sleep(1000)
    pids.append(pid)
    time.sleep(0.004)
PIDS.write_text(" ".join(map(str, pids)))

@reward
def misbehave(completion):
    return 1.0
"""


def plugin(folder: Path, text: str, **others: str) -> tuple[Path, Path]:
    """The file of a plugin that writes process ids to a file, and that file."""
    path, pids = folder / "plugin.py", folder / "pids"
    for name, value in others.items():
        text = text.replace(name, value)
    path.write_text(f"import pathlib\nPIDS = pathlib.Path({str(pids)!r})\n{text}")
    return path, pids


async def replaced(machinery: Machinery) -> None:
    """A worker has died, and what is below the fork server has been looked through."""
    assert (await machinery.statuses("exit at once"))[0] == "error"
    async with asyncio.timeout(PATIENCE_S):
        while machinery.restarts["death"] < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert await machinery.statuses("a", "b", "c") == ["ok"] * 3  # after the fork server has heard and seen everything


NO_MORE_PROCESSES = """
import sys
from grpo_reward import reward

def fork():
    raise BlockingIOError(11, "no more processes")

sys.modules["__main__"].fork = fork  # the fork server's own: as with a limit that has been reached

@reward
def misbehave(completion):
    return 1.0
"""
GUARDED = """
import builtins, json, os, shutil, subprocess, sys, time
from grpo_reward import reward

for name in ("kill", "killpg", "fork", "forkpty", "system", "putenv", "remove", "unlink", "rmdir", "getcwd", "chdir"):
    setattr(os, name, None)
builtins.exit = builtins.quit = shutil.rmtree = subprocess.Popen = sys.modules["resource"] = None
json.dumps = lambda value, **options: b"{}"
time.monotonic = lambda: 0.0

@reward
def misbehave(completion):
    while completion == "hang":
        pass
    if completion == "exit at once":
        os._exit(7)
    return float(len(completion))
"""


async def test_a_guard_for_untrusted_code_at_the_import_does_not_stop_the_service(tmp_path):
    """HumanEval's `reliability_guard` sets these to None, for good, in the process that calls it."""
    path, _ = plugin(tmp_path, GUARDED)
    machinery = Machinery(path, start_limit_s=30.0)
    await machinery.executor.start()
    assert [one.status for one in await machinery.score("a", "hang", "abc", timeout_s=1.0)] == ["ok", "timeout", "ok"]
    await replaced(machinery)
    assert machinery.restarts == {"timeout": 1, "death": 2}
    forkserver = fork_server(machinery.executor)
    await machinery.executor.stop()
    assert await gone(forkserver)


async def test_a_library_that_resets_the_wake_up_in_every_child_stops_no_worker(tmp_path):
    """As asyncio does from Python 3.12 on."""
    path, _ = plugin(
        tmp_path,
        "import os, signal\nfrom grpo_reward import reward\n"
        "os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))\n"
        "@reward\ndef misbehave(completion):\n    return 1.0\n",
    )
    machinery = Machinery(path, start_limit_s=20.0)
    await machinery.executor.start()
    assert await machinery.statuses("a", "b") == ["ok", "ok"]
    await machinery.executor.stop()


async def test_a_start_without_workers_says_why(tmp_path):
    path, _ = plugin(tmp_path, NO_MORE_PROCESSES)
    with pytest.raises(ExecutorUnavailable, match=r"no worker could be started \(.*no more processes\) within 3 s"):
        await Machinery(path, start_limit_s=3.0).executor.start()


async def test_a_manager_made_at_the_import_serves_all_workers_until_the_end(tmp_path):
    path, pids = plugin(tmp_path, MANAGER)
    machinery = Machinery(path)
    await machinery.executor.start()
    assert (await machinery.score("first"))[0].score == 1.0
    await replaced(machinery)
    assert (await machinery.score("last"))[0].score == 5.0  # with what the first worker and the ones after it put there
    manager = int(pids.read_text())
    assert is_running(manager)
    await machinery.executor.stop()
    assert await gone(manager)


async def test_what_a_plugin_started_and_what_that_started_lives_until_the_end(tmp_path):
    path, pids = plugin(tmp_path, HELPERS)
    machinery = Machinery(path)
    await machinery.executor.start()
    await replaced(machinery)
    started = [int(pid) for pid in pids.read_text().split()]
    assert len(started) == 3
    assert all(map(is_running, started))
    await machinery.executor.stop()
    assert await gone(*started)


@pytest.mark.faults
async def test_what_a_plugin_started_ends_also_when_the_keeper_is_killed(tmp_path):
    path, pids = plugin(tmp_path, HELPERS)
    machinery = Machinery(path)
    await machinery.executor.start()
    started = [int(pid) for pid in pids.read_text().split()]
    os.kill(keeper(machinery.executor), signal.SIGKILL)
    assert await gone(*started)
    assert await machinery.statuses("x") == ["ok"]  # with a fork server and helpers that are new
    again = [int(pid) for pid in pids.read_text().split()]
    assert all(map(is_running, again))
    await machinery.executor.stop()
    assert await gone(*again)


@pytest.mark.faults
@pytest.mark.parametrize(
    "what",
    ["time.sleep(1000)", "pass", "sys.exit(3)", "raise LookupError", "os.setsid(); time.sleep(1000)"],
    ids=["sleeps", "goes on", "exits", "raises", "sleeps apart"],
)
async def test_a_fork_at_the_import_does_not_hold_up_the_start(tmp_path, what, caplog):
    path, pids = plugin(tmp_path, FORKS, WHAT=what)
    machinery = Machinery(path)
    await machinery.executor.start()
    child = int(pids.read_text())
    assert is_running(child) or "sleep" not in what
    assert await machinery.statuses("", "", "") == ["ok"] * 3
    lost = keeper(machinery.executor)
    os.kill(fork_server(machinery.executor), signal.SIGKILL)
    await machinery.another_keeper(lost)
    # The child does not hold the server's socket open, so the end is seen at once and not by a ping left unanswered.
    assert "the fork server is gone" in caplog.text
    assert await machinery.statuses("", "") == ["ok"] * 2
    second = int(pids.read_text())
    await machinery.executor.stop()
    assert await gone(second)
    assert await gone(child)


async def test_a_plugin_that_forks_all_the_time_does_not_hold_up_the_check_of_the_sandbox(tmp_path):
    path, pids = plugin(tmp_path, FORKS_ALL_THE_TIME)
    machinery = Machinery(path, start_limit_s=40.0)
    await machinery.executor.start()
    assert await machinery.statuses("") == ["ok"]
    await machinery.executor.stop()
    assert await gone(*map(int, pids.read_text().split()))


@pytest.mark.faults
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_a_server_that_is_killed_while_a_plugin_is_imported_leaves_no_process_behind(tmp_path, number):
    path, pids = plugin(
        tmp_path,
        "import subprocess, time\none = subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
        "PIDS.with_name('part').write_text(str(one.pid))\nPIDS.with_name('part').rename(PIDS)\ntime.sleep(1000)\n",
    )
    command = [sys.executable, "-m", "grpo_reward", "serve", "--port", "0", "--plugin", str(path)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:  # noqa: ASYNC220
        async with asyncio.timeout(PATIENCE_S):
            while not pids.exists():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        server.send_signal(number)
    assert await gone(int(pids.read_text()))


@pytest.mark.parametrize("end", ["raise LookupError", "os._exit(1)", "time.sleep(1000)"])
@pytest.mark.parametrize("apart", [False, True])
async def test_a_start_that_fails_leaves_no_process_behind(tmp_path, end, apart):
    text = f"import os, subprocess, time\none = subprocess.Popen(['sleep', '1000'], start_new_session={apart})\n"
    path, pids = plugin(tmp_path, f"{text}PIDS.write_text(str(one.pid))\n{end}\n")
    machinery = Machinery(path, start_limit_s=4.0 if "sleep" in end else 60.0)
    with pytest.raises(ExecutorUnavailable):
        await machinery.executor.start()
    with contextlib.suppress(FileNotFoundError):  # on a slow machine it did not even come to the plugin
        child = int(pids.read_text())
        assert await gone(child)
