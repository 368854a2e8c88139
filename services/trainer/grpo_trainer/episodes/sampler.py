"""The `Sampler` of episodes: a group is n episodes of one row, played side by side on one rollout server.

A group is complete when all its episodes have ended, never earlier: that would favour short ones. An episode whose
server is lost runs again on another one, with the same seeds, within `rollout.retry_for_s`. One whose environment or
program fails runs again once; the second failure leaves it without a total. Nothing else is played twice: what the
policy caused is part of the game.

Waits for: a place among `episodes.max_concurrent_episodes`, first come first by group; a member of the fleet; the end
of each episode, which has a deadline. Unblocked by: those, and the loss of a server.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from grpo_proto import RewardScore, Sampling
from grpo_proto.client.sessions import SessionsClient

from ..algorithm.sequences import Episode, Group, was_broken
from ..config.episodes import EpisodesConfig
from ..config.run_config import RunConfig
from ..data.sent_images import ImagesOfPrompts
from ..errors import RunError
from ..fleet.fleet import Fleet, Replica
from ..sampling.sampler import Asked, Sampler
from ..sampling.single_turn import SingleTurn
from .identity import EpisodeAsked
from .played import Played
from .recording import Place, all_forgotten
from .runner import EpisodeRunner

log = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")

MAX_FAILURES = 2
"""So often an environment or a program may fail the same episode; the last time leaves it without a total."""
MAX_LOSSES = 20
"""So often an episode may be lost with its server, whatever time is left: the time in which it was played is none of
`retry_for_s`, or a long episode could not be lost twice."""
CALL_RETRY_S = 10.0
"""How long a call of a session is tried again before its server counts as lost; the fleet's watcher is as quick."""
PAUSE_S = 1.0
POOLS = 8
"""Pools of connections to a server."""


class Player(Protocol):
    """Plays one episode on one server, and nothing twice; `EpisodeRunner` is the real one."""

    async def run_episode(self, asked: EpisodeAsked, place: Place) -> Played: ...


def new_sampler(
    config: RunConfig, fleet: Fleet, *, run: str, log_dir: Path, images: ImagesOfPrompts
) -> tuple[Sampler, AbstractAsyncContextManager[None]]:
    """Make the sampler of a run file, and what it needs open while it samples: for episodes the users' files.

    `run` and `log_dir` as for `EpisodeRunner`. Opening raises UsageError for a file that cannot be imported.
    """
    retry_for_s = config.rollout.retry_for_s
    if config.episodes is None:
        deadline_s = config.rollout.request_deadline_s
        stage = SingleTurn(fleet, run_id=run, deadline_s=deadline_s, retry_for_s=retry_for_s, images=images)
        return stage, nullcontext()
    runner = EpisodeRunner(config.episodes, run=run, log_dir=log_dir, images=images)
    sampler = Episodes(fleet, runner, config.episodes, retry_for_s)
    return sampler, _players(sampler, runner)


@asynccontextmanager
async def _players(sampler: "Episodes", runner: EpisodeRunner) -> AsyncIterator[None]:
    try:
        async with runner:
            yield
    finally:
        await sampler.close()


@dataclass
class _Home:
    """The server of a group. Its episodes share a prompt, so they share a server's prefix cache."""

    replica: Replica | None = None


@dataclass
class Episodes:
    """Sample groups of episodes. `run`: a name of the run that a resume keeps.

    `lost_requests` counts the episodes that were lost with their server.
    """

    fleet: Fleet
    player: Player
    config: EpisodesConfig
    retry_for_s: float
    lost_requests: int = 0
    _clients: dict[tuple[str, int], SessionsClient] = field(default_factory=dict)
    _failing_since_s: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._places = asyncio.Semaphore(self.config.max_concurrent)

    @property
    def failing_since_s(self) -> float | None:
        return min(self._failing_since_s.values(), default=None)

    async def sample(
        self, asked: Sequence[Asked], *, min_version: int | None, n: int, sampling: Sampling
    ) -> list[Group]:
        """Play `n` episodes of each row. `sampling.max_tokens` limits the sampled tokens of one episode.

        Raises RunError when no server could play an episode within `retry_for_s` after its first loss, ServiceError for
        servers that refuse the run.
        """
        groups = [self._group(one, min_version=min_version, n=n, sampling=sampling) for one in asked]
        return await all_of(groups)

    async def close(self) -> None:
        await all_forgotten()
        for client in self._clients.values():
            await client.close()

    async def _group(self, one: Asked, *, min_version: int | None, n: int, sampling: Sampling) -> Group:
        home = _Home()
        asked = [EpisodeAsked(one.position, index, one.row, one.seed, of=one.of) for index in range(n)]
        playing = [self._episode(each, home, min_version=min_version, sampling=sampling) for each in asked]
        episodes = await all_of(playing)
        return Group(one.position, one.row, episodes, one.trace, time.monotonic())

    async def _episode(
        self, asked: EpisodeAsked, home: _Home, *, min_version: int | None, sampling: Sampling
    ) -> Episode:
        async with self._places:
            try:
                return await self._until_ended(asked, home, min_version=min_version, sampling=sampling)
            finally:
                self._failing_since_s.pop(asked.session_id(""), None)

    async def _until_ended(
        self, asked: EpisodeAsked, home: _Home, *, min_version: int | None, sampling: Sampling
    ) -> Episode:
        loop = asyncio.get_running_loop()
        give_up_at: float | None = None
        failures, losses, why = 0, 0, "no server has the weights"
        while (
            losses < MAX_LOSSES and (left_s := self.retry_for_s if give_up_at is None else give_up_at - loop.time()) > 0
        ):
            if not await self.fleet.until(lambda: bool(self.fleet.members), left_s):
                break
            if home.replica is None or not home.replica.member:
                home.replica = min(self.fleet.members, key=lambda replica: replica.in_flight, default=None)
            if home.replica is None:
                continue
            place = Place(
                server=self._client(home.replica, asked),
                sampling=sampling,
                # The current one: a push may have opened another.
                weights_session=None if min_version is None else self.fleet.session,
                min_version=min_version,
                retry_for_s=min(CALL_RETRY_S, self.retry_for_s),
            )
            began_at = loop.time()
            found = await self._unless_lost(home.replica, asked, place)
            if give_up_at is not None:
                give_up_at += loop.time() - began_at
            lost = "server" if found is None else found.ending.lost
            if found is not None and lost is None:
                return _ended(found)
            if found is not None and lost != "server":
                failures += 1
                if failures == MAX_FAILURES:
                    log.warning("episode %s has failed %d times: %s", asked.id, failures, found.ending.detail)
                    return _ended(found)
                log.warning("episode %s runs again: %s", asked.id, found.ending.detail)
            else:
                why = (found and found.ending.detail) or "its server stopped answering"
                losses += 1
                self.lost_requests += 1
                give_up_at = give_up_at or loop.time() + self.retry_for_s
                self._failing_since_s.setdefault(asked.session_id(""), time.time())
                log.warning("episode %s runs again, it was lost with %s: %s", asked.id, home.replica.url, why)
                await asyncio.sleep(PAUSE_S)
            asked = replace(asked, attempt=asked.attempt + 1)
        raise RunError(
            f"no rollout server could play an episode within {self.retry_for_s:g} s, after {losses} losses; the last "
            f"error: {why}",
            hint="check the rollout servers' logs, then start the run again with --resume",
        )

    async def _unless_lost(self, replica: Replica, asked: EpisodeAsked, place: Place) -> Played | None:
        """Play one episode; None at once when the fleet's watcher expels the server meanwhile."""
        replica.in_flight += 1
        try:
            return await replica.unless_lost(self.player.run_episode(asked, place))
        finally:
            replica.in_flight -= 1
            await self.fleet.wake()

    def _client(self, replica: Replica, asked: EpisodeAsked) -> SessionsClient:
        """One of several clients of a server: at each request httpcore looks at all connections of its pool, and at
        all once more for each idle one (encode/httpcore#1035)."""
        key = replica.url, (asked.position + asked.index) % POOLS
        if key not in self._clients:
            self._clients[key] = SessionsClient(replica.url)
        return self._clients[key]


def _ended(found: Played) -> Episode:
    """The episode; one that the policy did not end has no total, and no reward is asked for."""
    episode = replace(found.episode, metrics=dict(found.metrics))
    if was_broken(episode.status, episode.cause):
        broken = RewardScore(score=None, status="error", detail=found.ending.detail)
        episode.rewards = episode.rewards or {"episode": broken}
        episode.unscored_because = next(iter(episode.rewards.items()))
    return episode


async def all_of(parts: Sequence[Coroutine[Any, Any, ResultT]]) -> list[ResultT]:
    """The results of `parts`, which run side by side. The first that fails ends the others."""
    tasks = [asyncio.create_task(part) for part in parts]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
