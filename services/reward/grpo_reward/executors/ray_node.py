"""Ray's actors: on each node its worker processes behind calls of plain data; one that asks which nodes there are."""

import asyncio
import os
import tempfile
from pathlib import Path
from typing import Any

import ray

from grpo_proto import RewardSpec

from ..plugin import split_plugin
from .base import Chunk, ExecutorUnavailable, InvalidParams
from .separate import worker_processes
from .turns import num_spare


class Node:
    """The actor of one node. What it answers is plain data; a refusal, too, since exceptions change on their way."""

    def __init__(self, workers: int, plugins: list[tuple[str, str | None, bytes]], **limits: Any):
        self._folder = tempfile.TemporaryDirectory(prefix="grpo-reward-")
        paths = []
        for file_name, reward, source in plugins:
            path = Path(self._folder.name, file_name)
            path.write_bytes(source)
            paths.append(Path(f"{path}:{reward}") if reward else path)
        self._executor = worker_processes(workers=workers, spare=num_spare(workers), plugins=paths, **limits)
        self._started: asyncio.Task[None] | None = None

    async def rewards(self) -> dict[str, Any]:
        """`{"rewards": {name: LoadedReward}}` or `{"unavailable": reason}`."""
        try:
            await self._start()
        except ExecutorUnavailable as error:
            return {"unavailable": str(error)}
        return {"rewards": {name: reward.model_dump() for name, reward in self._executor.rewards.items()}}

    async def problem(self) -> str | None:
        """Why nothing can be scored here now. The server asks all the time, which also starts a restarted actor."""
        try:
            await self._start()
        except ExecutorUnavailable as error:
            return str(error)
        return self._executor.problem

    async def score(self, chunk: dict[str, Any]) -> dict[str, Any]:
        """`{"scores", "seconds", "taken_away"}`, `{"refused": (reward, message)}`, `{"unavailable": …, "problem": …}`.

        The problem is the whole node's; None when it can score other rewards.
        """
        rewards = [RewardSpec.model_validate(spec) for spec in chunk.pop("rewards")]
        work = Chunk(rewards=rewards, **chunk)
        try:
            await self._start()
            await self._executor.score(work)
        except InvalidParams as error:
            return {"refused": (error.reward, error.message)}
        except ExecutorUnavailable as error:
            return {"unavailable": str(error), "problem": self._executor.problem}
        scores = [score and score.model_dump() for score in work.scores]
        return {"scores": scores, "seconds": work.seconds, "taken_away": work.taken_away}

    async def leave(self) -> None:
        """Before the actor is killed, which would leave its folder behind."""
        await self._executor.stop()
        self._folder.cleanup()

    async def _start(self) -> None:
        """Also after Ray has restarted this actor, which it does with the arguments of the first start."""
        if self._started is None or (self._started.done() and not self._executor.rewards):
            self._started = asyncio.create_task(self._executor.start())
        await asyncio.shield(self._started)  # a call that is cancelled leaves the start to the next one
        if self._executor.failed:
            os._exit(1)  # Ray starts another


class Head:
    """Asks the cluster's head, in a process of its own: Ray hangs whoever asks a head that is gone, and aborts him when
    another has taken its place.
    """

    def nodes(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = ray.nodes()
        return found


def packed(plugin: Path) -> tuple[str, str | None, bytes]:
    """A plugin's file name, the one reward wanted of it or None, and its source, for a node that has not the file."""
    path, name = split_plugin(plugin)
    try:
        return path.name, name, path.read_bytes()
    except OSError as error:
        raise ExecutorUnavailable(f"there is no plugin file {path}: {error.strerror}") from error
