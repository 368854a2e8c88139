"""Built-in rewards and those of plugins in processes of their own.

A plugin can leave anything behind where it runs: another class of SymPy, a broken fork server. There only plugins meet
it. Each of the two has its workers, its fork server and its turns, so that neither waits for the other.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ..plugin import any_installed
from .base import Chunk, Executor, ExecutorUnavailable, LoadedReward
from .environment import KEYS_OF_BUILT_IN
from .process import ProcessExecutor


def worker_processes(
    *, plugins: Sequence[Path], environment: Mapping[str, str] = MappingProxyType({}), **options: Any
) -> Executor:
    """A `ProcessExecutor` with `options` for the built-in rewards and, where there are others, one for those.

    The keys of `judge` and `reward_model` are for the built-in ones alone.
    """
    built_in = ProcessExecutor(environment=environment, **options)
    if not plugins and not any_installed():
        return built_in
    for_plugins = {name: value for name, value in environment.items() if name not in KEYS_OF_BUILT_IN}
    return SeparateExecutor(built_in, ProcessExecutor(plugins=plugins, environment=for_plugins, **options))


def each_part(executor: Executor, wrap: Callable[[Executor], Executor]) -> Executor:
    """`wrap` around an executor, or around each part of a separate one."""
    if isinstance(executor, SeparateExecutor):
        return SeparateExecutor(*(wrap(part) for part in executor.parts))
    return wrap(executor)


class SeparateExecutor:
    """An `Executor` whose chunks go to the part that has their rewards; all of a chunk are in one (`of_plugin`)."""

    def __init__(self, *parts: Executor):
        self.parts = parts

    @property
    def rewards(self) -> Mapping[str, LoadedReward]:
        return {name: reward for part in self.parts for name, reward in part.rewards.items()}

    @property
    def workers(self) -> int:
        """Most workers that a part has: a chunk goes to one part."""
        return max(part.workers for part in self.parts)

    @property
    def spare(self) -> int:
        return max(part.spare for part in self.parts)

    @property
    def problem(self) -> str | None:
        """None while one part can score: it serves those who need only that."""
        problems = [part.problem for part in self.parts]
        return None if None in problems else problems[0]

    @property
    def failed(self) -> str | None:
        return next((part.failed for part in self.parts if part.failed), None)

    def launch(self) -> None:
        for part in self.parts:
            part.launch()

    async def start(self) -> None:
        """Raises ExecutorUnavailable of the part that fails first; none goes on then."""
        try:
            async with asyncio.TaskGroup() as starts:
                for part in self.parts:
                    starts.create_task(part.start())
        except ExceptionGroup as group:
            await self.stop()
            raise group.exceptions[0] from None
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        await asyncio.gather(*(part.stop() for part in self.parts))

    async def score(self, chunk: Chunk) -> None:
        part = next(part for part in self.parts if chunk.rewards[0].name in part.rewards)
        if part.problem:
            raise ExecutorUnavailable(part.problem)
        await part.score(chunk)
