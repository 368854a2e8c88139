"""Real worker processes for tests, and what became of processes."""

import asyncio
import time
from collections import Counter
from pathlib import Path

from grpo_proto import RewardSpec
from grpo_reward.executors.base import Chunk
from grpo_reward.executors.descendants import processes
from grpo_reward.executors.process import ProcessExecutor

PATIENCE_S = 60.0
SLEEPING = {
    "rewards": [{"name": "code", "params": {"test_timeout_s": 600, "total_timeout_s": 600}}],
    "samples": [{"completion": "```python\nimport time; time.sleep(600)\n```", "columns": {"tests": ["assert time"]}}],
    "timeout_s": 600,
    "deadline_s": 600,
}
"""A request that holds a worker for ten minutes and takes no processor time."""


class Machinery:
    """An executor and the restarts it has reported."""

    def __init__(self, plugin: Path | None, *, workers: int = 2, start_limit_s: float = 120.0):
        self.restarts: Counter[str] = Counter()
        self.executor = ProcessExecutor(
            workers=workers,
            plugins=plugin and [plugin],
            memory_bytes=4 << 30,
            environment={"GIVEN_TO_REWARDS": "yes"},
            start_limit_s=start_limit_s,
            on_restart=lambda cause: self.restarts.update([cause]),
        )

    async def score(self, *completions: str, reward: str = "misbehave", timeout_s: float = 30.0, **params: object):
        """Scores of one chunk."""
        samples = [{"completion": text, "columns": {"gold": 1.0}, "prompt": None} for text in completions]
        chunk = Chunk([RewardSpec(name=reward, params=params)], samples, None, timeout_s, reward == "batch_misbehave")
        async with asyncio.timeout(PATIENCE_S):
            await self.executor.score(chunk)
        assert None not in chunk.scores
        return chunk.scores

    async def statuses(self, *completions: str, **options: object) -> list[str]:
        return [score.status for score in await self.score(*completions, **options)]

    async def processes(self) -> set[int]:
        """Process ids of both workers."""
        found = await asyncio.gather(*(self.score("slow", "process") for _ in range(4)))
        return {scores[1].log["pid"] for scores in found}

    async def all_workers(self) -> set[int]:
        """Process ids of the workers, once all are there: those of the test before may still be replaced."""
        async with asyncio.timeout(PATIENCE_S):
            while len(found := await self.processes()) < self.executor.workers:
                pass
        return found

    async def another_keeper(self, lost: int) -> None:
        """Wait until the fork server is started again, below another keeper than `lost`."""
        async with asyncio.timeout(PATIENCE_S):
            while keeper(self.executor) == lost:  # noqa: ASYNC110 - it is a process
                await asyncio.sleep(0.01)


def keeper(executor: ProcessExecutor) -> int:
    """Process id of the fork server's parent."""
    assert executor.keeper is not None
    return executor.keeper.pid


def fork_server(executor: ProcessExecutor) -> int:
    """Its process id: it is the only child of its keeper."""
    [found] = [process.pid for process in processes() if process.parent == keeper(executor)]
    return found


def workers_of(executor: ProcessExecutor) -> list[int]:
    """Process ids of the workers: the children of the fork server that lead a session."""
    server = fork_server(executor)
    return [process.pid for process in processes() if process.parent == server and process.session == process.pid]


def is_running(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def gone(*pids: int) -> bool:
    """Whether all have ended, waiting a while."""
    until = time.monotonic() + PATIENCE_S
    while any(map(is_running, pids)) and time.monotonic() < until:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    return not any(map(is_running, pids))
