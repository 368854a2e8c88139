"""The rollout servers of a run: which are up, which have our weights, which is the least busy.

A server gets traffic only while it is a member of the weight group of the current session, that is, after a push that
committed. A restarted server has another `server_id`; a failed server gets no traffic until the next push that it
commits. A watcher probes all servers meanwhile and expels members that no longer answer. When no member is left and a
server is up again, it sets `needs_push`: the loop must push the weights again. What a server samples while a push fails
beside it is not given up: it goes on under the next weights.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from grpo_proto import RolloutClient, RolloutInfo, ServiceError, WeightsClient
from grpo_proto.messages.weights import Kind

from ..errors import RunError
from .adapters import AdapterNeeds
from .needs import Needs, agreed

log = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")

PROBE_INTERVAL_S = 2.0
MAX_MISSED_PROBES = 3


@dataclass
class Replica:
    """One rollout server as the trainer sees it."""

    url: str
    rollouts: RolloutClient
    weights: WeightsClient
    info: RolloutInfo | None = None
    member: bool = False
    """Whether the server is in the current weight group, with committed weights."""
    live: bool = True
    """Whether the server answered the last probe."""
    misfit: str | None = None
    """Why the server cannot be used although it answered the last probe."""
    missed_probes: int = 0
    """In a row; from `MAX_MISSED_PROBES` on the server is away, and no push waits for it."""
    in_flight: int = 0
    alone: bool = False
    """Whether a request has the server to itself, or waits for that: no other is sent to it."""
    lost: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while nothing comes of what the server was asked: it should go to another one."""

    async def unless_lost(self, work: Coroutine[Any, Any, ResultT]) -> ResultT | None:
        """Return what `work` with the server returns; None as soon as nothing comes of it any more. Either way it has
        ended then."""
        working, losing = asyncio.create_task(work), asyncio.create_task(self.lost.wait())
        try:
            await asyncio.wait((working, losing), return_when=asyncio.FIRST_COMPLETED)
            return working.result() if working.done() else None
        finally:
            losing.cancel()
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)


class Fleet:
    """All replicas. Use it in the event loop's thread only."""

    def __init__(self, urls: list[str], *, min_replicas: int):
        self.replicas = [Replica(url, RolloutClient(url), WeightsClient(url)) for url in urls]
        self.min_replicas = min_replicas
        self.session = 0
        self.needs: Needs | None = None
        """What a server has to meet to get weights and traffic; None until they are agreed on."""
        self.needs_push = asyncio.Event()
        self._changed = asyncio.Condition()

    async def close(self) -> None:
        for replica in self.replicas:
            await replica.rollouts.close()
            await replica.weights.close()

    @property
    def answered(self) -> list[Replica]:
        """The servers that have answered at least once."""
        return [replica for replica in self.replicas if replica.info]

    @property
    def infos(self) -> dict[str, RolloutInfo]:
        """What the servers that have answered told of themselves, by URL."""
        return {replica.url: replica.info for replica in self.replicas if replica.info}

    @property
    def members(self) -> list[Replica]:
        return [replica for replica in self.replicas if replica.member]

    def require(self, needs: Needs, adapter: AdapterNeeds | None = None) -> Kind:
        """Hold all servers to `needs` from now on. Returns what to push; raises what `agreed` raises."""
        self.needs, kind = agreed(needs, self.infos, adapter)
        return kind

    async def reachable(self) -> list[Replica]:
        """Return the servers that answer now; expel all others and all that restarted.

        Servers that are away are not asked: the watcher sees them come back. Raises RunError when fewer than
        `min_replicas` answer.
        """
        found: list[Replica] = []
        here = [replica for replica in self.replicas if replica.missed_probes < MAX_MISSED_PROBES]
        asked = here if len(here) >= self.min_replicas else self.replicas
        reasons = [f"{replica.url} is away" for replica in self.replicas if replica not in asked]
        answers = await asyncio.gather(*(self._probe(replica) for replica in asked))
        for replica, answer in zip(asked, answers, strict=True):
            if isinstance(answer, RolloutInfo):
                if replica.info is not None and replica.info.server_id != answer.server_id:
                    await self.expel(replica, "it restarted and needs the weights again")
                replica.info = answer
                found.append(replica)
            else:
                await (self.expel if replica.misfit else self.lose)(replica, answer)
                reasons.append(str(answer))
        if len(found) < self.min_replicas:
            raise RunError(
                f"{len(found)} of {len(self.replicas)} rollout servers answer; {self.min_replicas} are needed: "
                + "; ".join(reasons),
                hint="restart the servers: the push is retried until weights.push_deadline_s; after that, use --resume",
            )
        return found

    async def _probe(self, replica: Replica) -> RolloutInfo | Exception:
        """Return the server's /info, or why the server cannot be used: it does not answer, or does not fit this run."""
        try:
            health, info = await asyncio.gather(replica.rollouts.livez(), replica.rollouts.info())
        except ServiceError as error:
            return error
        if not health.ok:
            return RunError(f"{replica.url} is not live: {health.detail}")
        misfit = self.needs.misfit(replica.url, info) if self.needs else None
        if misfit is not None and replica.misfit != str(misfit):
            log.warning("%s; it gets no weights and no traffic", misfit)
        replica.misfit = str(misfit) if misfit else None
        return misfit or info

    async def watch(self) -> None:
        """Probe all servers for ever; see the module's docstring."""
        while True:
            await asyncio.sleep(PROBE_INTERVAL_S)
            await self.look()

    async def look(self) -> None:
        """Probe all servers once."""
        session = self.session
        answers = await asyncio.gather(*(self._probe(replica) for replica in self.replicas))
        if self.session != session:  # a push happened meanwhile: the answers are outdated
            return
        for replica, answer in zip(self.replicas, answers, strict=True):
            await self._take_in(replica, answer)
        if not self.members and any(replica.live for replica in self.replicas):
            self.needs_push.set()

    async def _take_in(self, replica: Replica, answer: RolloutInfo | Exception) -> None:
        replica.live = isinstance(answer, RolloutInfo)
        if not isinstance(answer, RolloutInfo):
            replica.missed_probes += 1
            if replica.missed_probes >= MAX_MISSED_PROBES:
                await self.expel(replica, answer)
            return
        replica.missed_probes = 0
        if replica.info is not None and replica.info.server_id != answer.server_id:
            await self.expel(replica, "it restarted and needs the weights again")
        elif answer.weights.state == "stale":
            # Keep what it was asked: that goes on after the next push, or the server ends it.
            await self.suspend(replica, f"its weights are stale: {answer.weights.reason}")
        replica.info = answer

    async def admit(self, members: list[Replica], *, session: int) -> None:
        """Send traffic to `members` only, in the weight session `session`: they alone have the current weights.

        Members and session change together: a request that waited for a member must not reach it with the old session.
        """
        async with self._changed:
            self.session = session
            for replica in self.replicas:
                replica.member = replica in members
                if replica.member:
                    replica.lost.clear()
                else:
                    replica.lost.set()
            self.needs_push.clear()
            self._changed.notify_all()

    async def expel(self, replica: Replica, reason: object, *, session: int | None = None) -> None:
        """Send `replica` no more traffic until it commits a push, and give up what it was asked before.

        `session`: the session of the request that failed. Does nothing when another session is open: the server has
        committed a push since, and the watcher tells what it is worth now.
        """
        if session in (None, self.session):
            replica.lost.set()
            await self.suspend(replica, reason)

    async def suspend(self, replica: Replica, reason: object) -> None:
        """Send `replica` no more traffic until it commits a push. What it was asked before goes on meanwhile, in the
        session that continues this one."""
        async with self._changed:
            if replica.member:
                log.warning("rollout server %s gets no more traffic until the next push: %s", replica.url, reason)
            replica.member = False
            self._changed.notify_all()

    async def lose(self, replica: Replica, reason: object) -> None:
        """Expel `replica`, and let nothing wait for it until it answers the watcher again."""
        replica.missed_probes = max(replica.missed_probes, MAX_MISSED_PROBES)
        await self.expel(replica, reason)

    async def until(self, holds: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Wait until `holds`, which reads the members and what they have in flight; False after `timeout_s`."""
        async with self._changed:
            try:
                async with asyncio.timeout(timeout_s):
                    return await self._changed.wait_for(holds)
            except TimeoutError:
                return False

    async def wake(self) -> None:
        """Have `until` look again: less is in flight."""
        async with self._changed:
            self._changed.notify_all()
