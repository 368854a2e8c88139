"""The rollout servers a run uses: who is there, who has our weights, who is the least busy.

A server gets traffic only while it is a member of the weight group of the current session, that is, after it took part
in a push that committed. One that restarted has another `server_id`; one that failed is left out until a push has
brought it back. A watcher probes all servers meanwhile: one that no longer answers loses its traffic, and when no
member is left but a server is back, `needs_push` tells the loop that the servers want the weights again.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from grpo_proto import PROTOCOL_VERSION, InfrastructureError, RolloutClient, RolloutInfo, ServiceError, WeightsClient

from ..errors import RunError, UnavailableError

log = logging.getLogger(__name__)

PROBE_INTERVAL_S = 2.0
MAX_MISSED_PROBES = 3
WAITING_TOLD_AGAIN_S = 30.0
GRACE_S = 60.0
"""How long the others are waited for once `min_replicas` are live: servers that start together may be so far apart, and
it is little beside loading a model. One that is later misses a step or two; one whose node is lost costs every start of
the trainer as much."""


@dataclass(frozen=True)
class Needs:
    """What this run needs of every server."""

    tokenizer: str
    max_tokens: int

    def misfit(self, url: str, info: RolloutInfo) -> UnavailableError | None:
        """Why this server cannot be used; None when it can."""
        where = f"the rollout server {url}"
        if info.protocol_version != PROTOCOL_VERSION:
            return UnavailableError(
                f"{where} speaks protocol {info.protocol_version}, this trainer {PROTOCOL_VERSION}",
                hint="install the same release of grpo-services on both sides",
            )
        if info.tokenizer_fingerprint != self.tokenizer:
            return UnavailableError(
                f"{where} has another tokenizer ({info.tokenizer_fingerprint}) than the policy ({self.tokenizer})",
                hint=f"it serves {info.model}; start it with the model of model.name_or_path",
            )
        if info.max_model_len < self.max_tokens:
            return UnavailableError(
                f"{where} has a context of {info.max_model_len} tokens, prompt and completion need {self.max_tokens}",
                hint="raise its --max-model-len, or lower data.max_prompt_length or rollout.max_completion_length",
            )
        return None


@dataclass
class Replica:
    """One rollout server as the trainer sees it."""

    url: str
    rollouts: RolloutClient
    weights: WeightsClient
    info: RolloutInfo | None = None
    member: bool = False
    """Whether it is in the current weight group, with weights that committed."""
    live: bool = True
    """Whether it answered the last probe."""
    misfit: str | None = None
    """Why it cannot be used although it answered the last probe."""
    missed_probes: int = 0
    in_flight: int = 0
    lost: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while it is no member: whoever waits for its answer should ask another one."""


class Fleet:
    """All replicas. Used by the event loop's thread only."""

    def __init__(self, urls: list[str], *, min_replicas: int):
        self.replicas = [Replica(url, RolloutClient(url), WeightsClient(url)) for url in urls]
        self.min_replicas = min_replicas
        self.session = 0
        self._needs: Needs | None = None
        self.needs_push = asyncio.Event()
        self._changed = asyncio.Condition()

    async def close(self) -> None:
        for replica in self.replicas:
            await replica.rollouts.close()
            await replica.weights.close()

    @property
    def members(self) -> list[Replica]:
        return [replica for replica in self.replicas if replica.member]

    async def wait_until_live(
        self, timeout_s: float, *, still_missing: Callable[[dict[str, str]], None] = lambda _: None
    ) -> None:
        """Wait until every server is there and has told its /info; once `min_replicas` are, for `GRACE_S` at most.

        Who comes later is found by the watcher, and gets weights with the next push. Raises UnavailableError naming one
        that did not come when there are fewer after `timeout_s`. `still_missing` hears every second or so of the
        servers that are not there, by URL, and why.
        """
        clock = asyncio.get_running_loop().time
        until_s, told_s, in_grace = clock() + timeout_s, float("-inf"), False
        missing = dict.fromkeys((replica.url for replica in self.replicas), "no answer yet")
        while True:
            waited_for = [replica for replica in self.replicas if replica.url in missing]
            reasons = await asyncio.gather(*(_ask(replica) for replica in waited_for))
            missing = {r.url: reason for r, reason in zip(waited_for, reasons, strict=True) if reason is not None}
            if not missing:
                return
            still_missing(missing)
            enough = len(self.replicas) - len(missing) >= self.min_replicas
            if enough and not in_grace:
                until_s, in_grace = min(until_s, clock() + GRACE_S), True
            if clock() >= until_s:
                break
            if clock() >= told_s + WAITING_TOLD_AGAIN_S:
                told_s = clock()
                for url, reason in missing.items():
                    log.info("waiting for the rollout server %s: %s", url, reason)
            await asyncio.sleep(1.0)
        if not enough:
            url, reason = next(iter(missing.items()))
            raise UnavailableError(
                f"the rollout server {url} did not come up within {timeout_s:g} s: {reason}",
                hint="start it with `grpo-rollout serve MODEL`, or change rollout.urls",
            )
        log.warning(
            "going on with %d of %d rollout servers; when they come, these get weights with the next push: %s",
            len(self.replicas) - len(missing),
            len(self.replicas),
            "; ".join(f"{url} ({reason})" for url, reason in missing.items()),
        )

    def check_compatible(self, *, tokenizer: str, max_tokens: int) -> None:
        """Raise UnavailableError for a server of another protocol or tokenizer, or with too short a context.

        One that does not fit and comes later gets neither weights nor traffic.
        """
        self._needs = Needs(tokenizer, max_tokens)
        for replica in self.replicas:
            misfit = self._needs.misfit(replica.url, replica.info) if replica.info else None
            if misfit is not None:
                raise misfit

    async def reachable(self) -> list[Replica]:
        """The servers that answer now. A restarted one is no member any more. Raises RunError below the minimum."""
        found: list[Replica] = []
        reasons: list[str] = []
        answers = await asyncio.gather(*(self._probe(replica) for replica in self.replicas))
        for replica, answer in zip(self.replicas, answers, strict=True):
            if isinstance(answer, RolloutInfo):
                if replica.info is not None and replica.info.server_id != answer.server_id:
                    await self.expel(replica, "it restarted: it gets weights before it gets traffic")
                replica.info = answer
                found.append(replica)
            else:
                await self.expel(replica, answer)
                reasons.append(str(answer))
        if len(found) < self.min_replicas:
            raise RunError(
                f"{len(found)} of {len(self.replicas)} rollout servers answer, {self.min_replicas} are needed: "
                + "; ".join(reasons),
                hint="bring them back: the push is tried again until weights.push_deadline_s; after that, --resume",
            )
        return found

    async def _probe(self, replica: Replica) -> RolloutInfo | Exception:
        """What it says of itself; why it cannot be used when it does not answer, or does not fit this run."""
        try:
            health, info = await asyncio.gather(replica.rollouts.livez(), replica.rollouts.info())
        except ServiceError as error:
            return error
        if not health.ok:
            return RunError(f"{replica.url} is not live: {health.detail}")
        misfit = self._needs.misfit(replica.url, info) if self._needs else None
        if misfit is not None and replica.misfit != str(misfit):
            log.warning("%s: it gets no weights and no traffic", misfit)
        replica.misfit = str(misfit) if misfit else None
        return misfit or info

    async def watch(self) -> None:
        """Probe all servers for ever; see the module's text."""
        while True:
            await asyncio.sleep(PROBE_INTERVAL_S)
            session = self.session
            answers = await asyncio.gather(*(self._probe(replica) for replica in self.replicas))
            if self.session != session:  # pushed to meanwhile: what they said is of before
                continue
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
            await self.expel(replica, "it restarted: it gets weights before it gets traffic")
        elif answer.weights.state == "stale":
            await self.expel(replica, f"its weights are stale: {answer.weights.reason}")
        replica.info = answer

    async def admit(self, members: list[Replica], *, session: int) -> None:
        """These, and only these, have the current weights: they get traffic, in the weight session `session`.

        Both change together: a request that waited for a member must not reach it with the session before.
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
        """No more traffic until a push has brought it back.

        `session`: the one whose request gave the reason. Nothing is done when another is open: it was pushed to again
        meanwhile, and that ends the requests of the session before.
        """
        async with self._changed:
            if session not in (None, self.session):
                return
            if replica.member:
                log.warning("rollout server %s gets no more traffic until the next push: %s", replica.url, reason)
            replica.member = False
            replica.lost.set()
            self._changed.notify_all()

    async def least_busy(self, timeout_s: float) -> Replica | None:
        """The member with the fewest requests in flight; None when none appears within `timeout_s`."""
        async with self._changed:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._changed.wait_for(lambda: bool(self.members))
            except TimeoutError:
                return None
            return min(self.members, key=lambda replica: replica.in_flight)


async def _ask(replica: Replica) -> str | None:
    """Read a server's /livez and /info; why it is not there yet, None when it is.

    Raises ServiceError when it is live, and refuses to say what it is.
    """
    replica.live = False
    try:
        health = await replica.rollouts.livez()
    except ServiceError as error:
        return error.detail.message
    if not health.ok:
        return health.detail or "not live"
    try:
        replica.info = await replica.rollouts.info()
    except InfrastructureError as error:
        return error.detail.message
    replica.live = True
    return None
