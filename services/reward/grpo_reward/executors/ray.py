"""Worker processes on every node of a Ray cluster.

Ray carries the chunks; on each node one actor (`ray_node.py`) runs a `ProcessExecutor`, so that time limits, kills and
retries are the same as on one machine. `RAY_ADDRESS` names the cluster; without it a local one is started. Plugin files
are sent to the nodes; what they import must be installed there.

Nodes come and go while the server runs. Every second each is asked whether it can score; one that does not say so gets
nothing until it does, and what it had goes to another. A node that joins the cluster later is taken up when it has
loaded the same rewards.

A cluster without its head is another matter: Ray ends every process that has not reached the head for a minute, and a
head that starts anew is another cluster. So the server then ends by itself, a little earlier and in good order, and
whoever started it starts it anew.
"""

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from grpo_proto import RewardScore

from .availability import refused, unavailable, without_reasons
from .base import Chunk, ExecutorUnavailable, InvalidParams, LoadedReward
from .ray_cluster import beside, join_cluster
from .ray_node import Head, Node, packed
from .turns import num_spare

LOAD_LIMIT_S = 150.0
"""How long a node may take to start its actor and load the rewards: more than `ProcessExecutor` allows for that. The
actor that asks the head has as long to start."""
PROBE_S = 1.0
PROBE_LIMIT_S = 3.0
SILENCE_S = 5.0
"""How long there may be no node that answers: Ray starts a dead actor anew in less."""
HEAD_LIMIT_S = 40.0
"""How long the head may be silent: by 60 s, when Ray ends this process, what runs must have been answered."""
LEAVE_LIMIT_S = 5.0
ATTEMPTS = 3
_log = logging.getLogger(__name__)


@dataclass(eq=False)
class Member:
    """A node as the server knows it."""

    name: str
    actor: Any
    workers: int
    silent: str | None = None
    """Why it gets nothing; None while it answers."""
    parked: int = 0
    """Number of its places that are kept back while it is silent."""
    asked: set[asyncio.Timeout] = field(default_factory=set)
    """What waits for it."""


class RayExecutor:
    """An `Executor` on a Ray cluster.

    Waits for: a free place on a node that answers (`_places`). Unblocked by: a chunk that has come back, a node that
    answers again, and `_judge` when none does.

    Args:
        workers: worker processes on each node; 0 is one for each CPU that Ray counts there.
        plugins: `FILE.py` or `FILE.py:NAME`; no two files with the same name.
        memory_bytes: address space of each worker; 0 for no limit.
        environment: variables for the workers, beside what `worker_environment` takes of the node's own.
    """

    def __init__(
        self,
        *,
        workers: int,
        plugins: Sequence[Path] = (),
        memory_bytes: int = 0,
        environment: Mapping[str, str] = MappingProxyType({}),
    ):
        self.failed: str | None = None
        self._workers = workers
        self._problem: str | None = "the nodes are not started"
        self._rewards: dict[str, LoadedReward] = {}
        self._plugins = list(plugins)
        self._plugins_sent: list[tuple[str, str | None, bytes]] = []
        """Packed at the start: a node that joins later gets the same files."""
        self._limits = {"memory_bytes": memory_bytes, "environment": dict(environment)}
        self._members: dict[str, Member] = {}
        self._known: set[str] = set()
        """Ids of nodes that have been asked to join, those that could not included; Ray gives none twice."""
        self._places: asyncio.Queue[Member] = asyncio.Queue()
        self._waiting: set[asyncio.Timeout] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._head: Any = None
        self._answered = self._listed = 0.0
        """When a node, and when the head, last answered."""

    @property
    def rewards(self) -> Mapping[str, LoadedReward]:
        return self._rewards

    def _answering(self) -> list[Member]:
        return [member for member in self._members.values() if not member.silent]

    @property
    def workers(self) -> int:
        return max(sum(member.workers for member in self._answering()), 1)

    @property
    def spare(self) -> int:
        return sum(num_spare(member.workers) for member in self._answering())

    @property
    def problem(self) -> str | None:
        return self.failed or self._problem

    def launch(self) -> None:
        """Nothing: the actors of `start` need Ray's cluster."""

    async def start(self) -> None:
        """Raises ExecutorUnavailable when there is no cluster, or a node cannot load the rewards."""
        self._plugins_sent = [packed(plugin) for plugin in self._plugins]
        await join_cluster()
        nodes = [node for node in ray.nodes() if _cores(node)]
        if not nodes:
            raise ExecutorUnavailable("the Ray cluster has no node with a CPU")
        self._known = {node["NodeID"] for node in nodes}
        await asyncio.gather(*(self._add(node) for node in nodes))
        loop = asyncio.get_running_loop()
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self._head = ray.remote(Head).options(num_cpus=0, max_restarts=-1, scheduling_strategy=here).remote()
        try:
            async with asyncio.timeout(LOAD_LIMIT_S):
                await self._head.nodes.remote()  # its process has started: from here on silence is the head's
        except (RayError, TimeoutError) as error:
            raise ExecutorUnavailable(f"the head of the Ray cluster does not list its nodes: {error!r}") from error
        self._problem, self._answered, self._listed = None, loop.time(), loop.time()
        self._begin(self._tend())
        self._begin(self._follow_head())

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        if not ray.is_initialized():
            return
        members = list(self._members.values())
        with contextlib.suppress(TimeoutError, RayError):
            async with asyncio.timeout(LEAVE_LIMIT_S):
                await asyncio.gather(*(member.actor.leave.remote() for member in members), return_exceptions=True)
        for actor in [*(member.actor for member in members), *filter(None, [self._head])]:
            ray.kill(actor)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_LIMIT_S):
                await beside(ray.shutdown)

    async def score(self, chunk: Chunk) -> None:
        rows = chunk.open_rows()
        message = {
            "rewards": [spec.model_dump() for spec in chunk.rewards],
            "samples": [chunk.samples[row] for row in rows],
            "step": chunk.step,
            "timeout_s": chunk.timeout_s,
            "batch": chunk.batch,
            "together": chunk.together,
            "turn_s": chunk.turn_s,
            "limit_s": chunk.limit_s,
        }
        cause = ""
        for _ in range(ATTEMPTS):
            member = await self._place()
            try:
                answer = await self._ask(member, member.actor.score.remote(message), None)
            except (RayError, TimeoutError) as error:
                cause = type(error).__name__
                if not isinstance(error, RayTaskError):  # which is what the actor itself raised
                    self._lose(member, cause)
                continue
            finally:
                self._places.put_nowait(member)
            if "unavailable" in answer:
                cause = answer["unavailable"]
                if answer["problem"]:
                    self._lose(member, cause)
                continue
            if "refused" in answer:
                raise InvalidParams(*answer["refused"])
            chunk.fill(rows, [score and RewardScore.model_validate(score) for score in answer["scores"]])
            chunk.spend(answer["seconds"])
            chunk.taken_away = answer["taken_away"]
            return
        raise ExecutorUnavailable(f"Ray nodes failed {ATTEMPTS} times with this, the last one with {cause}")

    async def _place(self) -> Member:
        """Raises ExecutorUnavailable when no node answers."""
        if self.problem:
            raise ExecutorUnavailable(self.problem)
        try:
            async with asyncio.timeout(None) as patience:
                self._waiting.add(patience)
                while (member := await self._places.get()).silent:
                    member.parked += 1
                return member
        except TimeoutError:
            raise ExecutorUnavailable(self.problem or "no node of the Ray cluster answered") from None
        finally:
            self._waiting.discard(patience)

    async def _ask(self, member: Member, answer: Any, limit_s: float | None) -> Any:
        """What a node answers. Raises RayError, and TimeoutError after `limit_s` or when the node falls silent."""
        try:
            async with asyncio.timeout(limit_s) as patience:
                member.asked.add(patience)
                return await answer
        except (asyncio.CancelledError, TimeoutError):
            with contextlib.suppress(RayError):
                ray.cancel(answer)  # frees the worker there
            raise
        finally:
            member.asked.discard(patience)

    def _lose(self, member: Member, cause: str) -> None:
        """It gets nothing more, and what it had goes to others."""
        if member.silent:
            return
        member.silent = cause
        _log.warning("the Ray node %s is left out: %s", member.name, cause)
        _expire(member.asked)

    def _begin(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            self.failed = f"the Ray nodes cannot be looked after: {error!r}"

    async def _tend(self) -> None:
        """Ask all nodes, draw the conclusion, again and again."""
        while True:
            await asyncio.sleep(PROBE_S)
            await asyncio.gather(*(self._probe(member) for member in self._members.values()))
            self._judge(asyncio.get_running_loop().time())

    async def _follow_head(self) -> None:
        """Beside `_tend`: a head that is silent does not delay what is concluded about the nodes."""
        while True:
            await asyncio.sleep(PROBE_S)
            await self._list_nodes()

    async def _probe(self, member: Member) -> None:
        try:
            problem = await self._ask(member, member.actor.problem.remote(), PROBE_LIMIT_S)
        except (RayError, TimeoutError) as error:
            problem = type(error).__name__
        if problem:
            self._lose(member, problem)
        elif member.silent:
            _log.warning("the Ray node %s answers again", member.name)
            member.silent = None
            for _ in range(member.parked):
                self._places.put_nowait(member)
            member.parked = 0

    def _judge(self, now: float) -> None:
        silent = [f"{member.name} ({member.silent})" for member in self._members.values() if member.silent]
        if len(silent) < len(self._members):
            self._answered, self._problem = now, None
        elif now - self._answered > SILENCE_S:
            self._problem = f"no node of the Ray cluster answers: {', '.join(silent[:3]) or 'none is left'}"
            _expire(self._waiting)
        if now - self._listed > HEAD_LIMIT_S:
            self.failed = (
                f"the head of the Ray cluster has not answered for {HEAD_LIMIT_S:g} s: a server that has lost it cannot"
                " go on; start it again when the cluster is back"
            )

    async def _list_nodes(self) -> None:
        asked = self._head.nodes.remote()
        try:
            async with asyncio.timeout(PROBE_LIMIT_S):
                self._follow(await asked)
        except (RayError, TimeoutError):  # `_judge` sees for how long
            with contextlib.suppress(RayError):
                ray.cancel(asked)  # they would wait behind each other

    def _follow(self, nodes: Sequence[Mapping[str, Any]]) -> None:
        """Forget the nodes that are gone for good, take up new ones."""
        self._listed = asyncio.get_running_loop().time()
        there = {node["NodeID"]: node for node in nodes if _cores(node)}
        for gone in self._members.keys() - there.keys():
            self._lose(self._members.pop(gone), "it has left the cluster")
        for new in there.keys() - self._known:
            self._known.add(new)
            self._begin(self._add_late(there[new]))

    async def _add_late(self, node: Mapping[str, Any]) -> None:
        name = node["NodeManagerAddress"]
        try:
            await self._add(node)
            _log.warning("the Ray node %s has joined", name)
        except ExecutorUnavailable as error:
            _log.warning("the Ray node %s is not used: %s", name, error)

    async def _add(self, node: Mapping[str, Any]) -> None:
        """Raises ExecutorUnavailable when it cannot load the rewards, or has others."""
        count, name = self._workers or _cores(node), node["NodeManagerAddress"]
        actor = (
            ray.remote(Node)
            .options(
                num_cpus=min(count, _cores(node)),
                max_restarts=-1,
                max_concurrency=1000,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False),
            )
            .remote(count, self._plugins_sent, **self._limits)
        )
        member = Member(name, actor, count)
        try:
            answer = await self._ask(member, actor.rewards.remote(), LOAD_LIMIT_S)
            if "unavailable" in answer:
                raise ExecutorUnavailable(answer["unavailable"])
            try:
                loaded = {key: LoadedReward.model_validate(reward) for key, reward in answer["rewards"].items()}
            except ValueError:
                loaded = {}  # another version describes them otherwise
            if not loaded or (self._rewards and without_reasons(loaded) != without_reasons(self._rewards)):
                raise ExecutorUnavailable("the nodes have different rewards: install the same version everywhere")
            refusals = refused(name, loaded)
            if refusals and self._problem is None and not refusals.keys() <= refused(name, self._rewards).keys():
                # What runs must not lose a reward because a node has joined.
                raise ExecutorUnavailable("; ".join(refusals.values()))
        except (RayError, TimeoutError) as error:
            ray.kill(actor)
            raise ExecutorUnavailable(
                f"the Ray node {name} did not load the rewards: {error!r}; are its CPUs taken by others?"
            ) from error
        except ExecutorUnavailable:
            ray.kill(actor)
            raise
        self._rewards = {
            key: unavailable(reward, refusals.get(key)) for key, reward in (self._rewards or loaded).items()
        }
        self._members[node["NodeID"]] = member
        for _ in range(count + num_spare(count)):
            self._places.put_nowait(member)


def _cores(node: Mapping[str, Any]) -> int:
    return int(node["Resources"].get("CPU", 0)) if node["Alive"] else 0


def _expire(timeouts: set[asyncio.Timeout]) -> None:
    now = asyncio.get_running_loop().time()
    for timeout in timeouts:
        if not timeout.expired():
            timeout.reschedule(now)
