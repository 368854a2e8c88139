"""An executor around another: everything passes through until a subclass says otherwise."""

from collections.abc import Mapping

from .base import Chunk, Executor, LoadedReward


class WrappedExecutor:
    """An `Executor` that does what the one inside does."""

    def __init__(self, executor: Executor):
        self._executor = executor

    @property
    def rewards(self) -> Mapping[str, LoadedReward]:
        return self._executor.rewards

    @property
    def workers(self) -> int:
        return self._executor.workers

    @property
    def spare(self) -> int:
        return self._executor.spare

    @property
    def problem(self) -> str | None:
        return self._executor.problem

    @property
    def failed(self) -> str | None:
        return self._executor.failed

    def launch(self) -> None:
        self._executor.launch()

    async def start(self) -> None:
        await self._executor.start()

    async def stop(self) -> None:
        await self._executor.stop()

    async def score(self, chunk: Chunk) -> None:
        await self._executor.score(chunk)
