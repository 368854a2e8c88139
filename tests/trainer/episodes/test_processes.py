"""Processes of episodes against users' files that hang, fork, print a gigabyte and die."""

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio

from grpo_trainer.episodes import processes
from grpo_trainer.episodes.processes import (
    CallFailedError,
    EpisodeProcess,
    EpisodeProcessError,
    Exit,
    LateProcessError,
    Nursery,
)
from grpo_trainer.errors import UsageError

pytestmark = [pytest.mark.processes, pytest.mark.asyncio(loop_scope="module")]

HOSTILE = Path(__file__).with_name("hostile.py")
GAME, LATER = f"{HOSTILE}:Hostile", f"{HOSTILE}:Later"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def nursery() -> AsyncIterator[Nursery]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRPO_API_TOKEN", "a-secret")
        async with Nursery(environments=[GAME, LATER]) as nursery:
            yield nursery


class Game:
    """An episode's process that plays `Hostile`."""

    def __init__(self, process: EpisodeProcess):
        self.process = process

    async def step(self, content: str, timeout_s: float = 20.0) -> Any:
        message = {"role": "assistant", "content": content}
        return await self.process.call(
            "step", wait_s=timeout_s, message=message, choice={}, timeout_s=timeout_s, budget_s=timeout_s
        )

    async def said(self, content: str, timeout_s: float = 20.0) -> str:
        text: str = (await self.step(content, timeout_s))["messages"][0]["content"]
        return text


async def begun(nursery: Nursery, tmp_path: Path, *, name: str = GAME, seed: int = 5) -> Game:
    kind = {
        "environment": name,
        "scheduler": None,
        "factory": None,
        "by_name": False,
        "tools": [],
        "rewards": [],
        "max_turns": 9,
    }
    process = await nursery.fork(kind, seed=seed, log_file=tmp_path / "agents" / f"{seed}.log")
    found = await process.call("reset", wait_s=20, row={"task": 3}, prompt="", seed=seed, timeout_s=20)
    assert found == {"messages": [{"role": "user", "content": f"begin 3 {seed}"}], "tools": []}
    return Game(process)


async def until(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_each_episode_has_its_own_process_and_equal_seeds_the_same_numbers(nursery: Nursery, tmp_path: Path):
    first, second, other = [await begun(nursery, tmp_path, seed=seed) for seed in (5, 5, 6)]
    draws = [await game.said("draws") for game in (first, second, other)]
    assert draws[0] == draws[1] != draws[2]
    assert len({game.process.pid.result() for game in (first, second, other)}) == 3


async def test_a_step_ends_the_episode_with_its_reward(nursery: Nursery, tmp_path: Path):
    async with (await begun(nursery, tmp_path)).process as process:
        assert await Game(process).step("wins") == {"messages": [], "reward": 1.0, "done": True}
    exited = await process.exited
    assert exited.status in (0, -signal.SIGKILL)


async def test_the_answer_of_a_process_that_has_ended_meanwhile_is_read(nursery: Nursery, tmp_path: Path):
    """`close` is its last call: the nursery may tell of its end before the answer has come."""
    game = await begun(nursery, tmp_path)
    closing = asyncio.create_task(game.process.call("close", wait_s=20, timeout_s=20))
    await asyncio.sleep(0)
    await asyncio.sleep(0)  # the exchange has begun: it is asked, and from here on the loop reads nothing
    deadline = time.monotonic() + 20
    while psutil.pid_exists(pid := game.process.pid.result()):
        assert time.monotonic() < deadline, f"{pid} goes on"
        time.sleep(0.01)  # noqa: ASYNC251 - the loop is not to read
    game.process.ended(Exit(0))
    nursery._living.pop(game.process.number)
    assert await closing is None
    game.process.kill()


async def test_async_methods_are_awaited_and_interrupted(nursery: Nursery, tmp_path: Path):
    game = await begun(nursery, tmp_path, name=LATER)
    assert (await game.step("now"))["reward"] == 0.5
    with pytest.raises(CallFailedError, match=r"step did not return within 0\.3 s") as late:
        await game.step("sleeps", 0.3)
    assert late.value.late
    assert await game.said("now") == "later"


@pytest.mark.parametrize("how", ["sleeps", "computes"])
async def test_a_call_that_hangs_is_interrupted_and_the_process_goes_on(nursery: Nursery, tmp_path: Path, how: str):
    game = await begun(nursery, tmp_path)
    with pytest.raises(CallFailedError, match=r"did not return within 0\.3 s"):
        await game.step(how, 0.3)
    assert (await game.step("wins"))["done"]


async def test_a_call_that_cannot_be_interrupted_ends_its_process(nursery: Nursery, tmp_path: Path):
    game = await begun(nursery, tmp_path)
    with pytest.raises(LateProcessError, match="could not be interrupted"):
        await game.step("swallows", 0.3)
    assert (await game.process.exited).status == -signal.SIGKILL


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("raises", r"KeyError: 'no such room' \(hostile.py, line \d+\)"),
        ("exits", "SystemExit: done with it"),
        ("bad_reward", "the reward of step is nan"),
        ("bad_message", r"step returned \{'role': 'robot'.* as a message"),
        ("nothing", "neither a message nor done"),
    ],
)
async def test_what_a_step_does_wrong_is_named(nursery: Nursery, tmp_path: Path, how: str, says: str):
    game = await begun(nursery, tmp_path)
    with pytest.raises(CallFailedError, match=says):
        await game.step(how)


async def test_a_process_that_dies_leaves_its_last_words(nursery: Nursery, tmp_path: Path):
    game = await begun(nursery, tmp_path)
    with pytest.raises(EpisodeProcessError, match="status 3; its last words: last words"):
        await game.step("dies")


async def test_a_gigabyte_of_output_is_cut_and_the_episode_goes_on(nursery: Nursery, tmp_path: Path):
    game = await begun(nursery, tmp_path)
    assert await game.said("prints", 60.0) == "printed"
    flood = await game.said("floods", 60.0)
    assert 2**20 < len(flood) < 2**20 + 100
    assert "[cut: 66,060,288 more characters]" in flood
    log = tmp_path / "agents" / "5.log"
    assert 2**20 <= log.stat().st_size < 2**20 + 100


async def test_what_a_policy_forks_cannot_answer_in_its_place(nursery: Nursery, tmp_path: Path):
    game = await begun(nursery, tmp_path)
    assert await game.said("forks") == "from the parent"
    assert (await game.step("wins"))["done"]


async def test_what_an_episode_leaves_behind_ends_with_it(nursery: Nursery, tmp_path: Path):
    game, other = [await begun(nursery, tmp_path, seed=seed) for seed in (5, 6)]
    left, kept = int(await game.said("daemon")), int(await other.said("daemon"))
    game.process.kill()
    await game.process.exited
    await until(lambda: not psutil.pid_exists(left))
    assert psutil.pid_exists(kept)
    other.process.kill()
    await until(lambda: not psutil.pid_exists(kept))


async def test_a_chain_of_forks_that_flees_is_caught(nursery: Nursery, tmp_path: Path):
    game = await begun(nursery, tmp_path)
    assert await game.said("flees") == str(game.process.pid.result())
    game.process.kill()
    await game.process.exited
    assert nursery._process is not None
    process = psutil.Process(nursery._process.pid)
    others = {child.pid.result() for child in nursery._living.values()}
    await until(lambda: not {child.pid for child in process.children()} - others)


async def test_the_servers_token_is_kept_from_environments(nursery: Nursery, tmp_path: Path):
    assert await (await begun(nursery, tmp_path)).said("token") == "None"


async def test_the_end_of_the_nursery_is_that_of_its_episodes_and_the_next_starts_another(
    nursery: Nursery, tmp_path: Path
):
    game = await begun(nursery, tmp_path)
    assert nursery._process is not None
    os.kill(nursery._process.pid, signal.SIGKILL)
    with pytest.raises(EpisodeProcessError, match="with the process that forked it"):
        await game.step("sleeps", 20)
    await until(lambda: not psutil.pid_exists(game.process.pid.result()))
    assert (await (await begun(nursery, tmp_path)).step("wins"))["done"]


@pytest.mark.parametrize("full", [False, True])
async def test_a_nursery_that_stands_still_is_ended_and_the_next_episode_starts_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: bool
):
    """`full`: so many are asked for at once that its socket has no room for more."""
    holds_its_socket = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(15)\n    os._exit(0)\n"
    file = tmp_path / "forks.py"
    file.write_text(holds_its_socket + HOSTILE.read_text())
    name = f"{file}:Hostile"
    async with Nursery(environments=[name]) as nursery:
        monkeypatch.setattr(processes, "STARTED_S", 2.0)
        game = await begun(nursery, tmp_path, name=name)
        assert nursery._process is not None
        assert nursery._control is not None
        nursery._control.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        os.kill(nursery._process.pid, signal.SIGSTOP)
        asked = [begun(nursery, tmp_path, name=name) for _ in range(50 if full else 1)]
        async with asyncio.timeout(60):
            found = await asyncio.gather(*asked, return_exceptions=True)
        assert {type(one) for one in found} == {EpisodeProcessError}
        assert {str(one) for one in found} == {
            "the process of the episode could not be started: the process ended with the process that forked it"
        }
        await until(lambda: not psutil.pid_exists(game.process.pid.result()))
        monkeypatch.undo()
        assert (await (await begun(nursery, tmp_path, name=name)).step("wins"))["done"]


async def test_who_tries_again_after_a_nursery_stood_still_among_many_starts_has_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """An episode has two attempts: the first must end the one that stands still, also when it has answered others."""

    async def in_two_attempts(nursery: Nursery) -> Game:
        try:
            return await begun(nursery, tmp_path)
        except EpisodeProcessError:
            return await begun(nursery, tmp_path)

    async with Nursery(environments=[GAME]) as nursery:
        monkeypatch.setattr(processes, "STARTED_S", 2.0)
        assert nursery._control is not None
        nursery._control.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
        playing = [asyncio.create_task(in_two_attempts(nursery)) for _ in range(60)]
        await until(lambda: any(child.pid.done() for child in nursery._living.values()))
        assert nursery._process is not None
        os.kill(nursery._process.pid, signal.SIGSTOP)
        assert not all(child.pid.done() for child in nursery._living.values())
        async with asyncio.timeout(60):
            games = await asyncio.gather(*playing)
        playing_on = [game for game in games if not game.process.exited.done()]
        assert 0 < len(playing_on) < len(games)
        assert (await playing_on[0].step("wins"))["done"]


async def test_everything_ends_with_the_trainer(tmp_path: Path):
    code = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from grpo_trainer.episodes.processes import Nursery\n"
        "async def main():\n"
        f"    nursery = Nursery(environments=[{GAME!r}])\n"
        "    await nursery.start()\n"
        f"    child = await nursery.fork({{}}, seed=1, log_file=Path({str(tmp_path)!r}, 'log'))\n"
        "    print(nursery._process.pid, child.pid.result(), flush=True)\n"
        "    await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    trainer = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
    assert trainer.stdout is not None
    pids = [int(pid) for pid in (await trainer.stdout.readline()).split()]
    assert len(pids) == 2
    trainer.kill()
    await trainer.wait()
    await until(lambda: not any(psutil.pid_exists(pid) for pid in pids))


@pytest.mark.parametrize(
    ("names", "says"),
    [
        ({"environments": ["/nowhere.py:Game"]}, "there is no file /nowhere.py"),
        ({"environments": [f"{HOSTILE}:NoStep"]}, "NoStep has no method step"),
        ({"tools": [f"{HOSTILE}:schemaless"]}, "no schema can be made of the tool schemaless"),
        ({"factories": [f"{HOSTILE}:Helpful"]}, "environment_factory: no schema can be made of the tool helper"),
    ],
)
async def test_what_cannot_play_is_named_at_the_start(names: dict[str, list[str]], says: str):
    with pytest.raises(UsageError, match=says):
        await Nursery(**names).start()  # type: ignore[arg-type]


async def test_a_static_method_of_a_class_for_trl_is_a_tool():
    async with Nursery(factories=[f"{HOSTILE}:WithStaticTool"]):
        pass
