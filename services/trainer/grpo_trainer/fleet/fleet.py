"""The rollout servers of a run: which are up, which have our weights, which is the least busy.

A server gets traffic only while it is a member of the weight group of the current session, that is, after a push that
committed. A restarted server has another `server_id`; a failed server gets no traffic until the next push that it
commits. A watcher probes all servers meanwhile and expels members that no longer answer. When no member is left and a
server is up again, it sets `needs_push`: the loop must push the weights again. What a server samples while a push fails
beside it is not given up: it goes on under the next weights.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from grpo_proto import PROTOCOL_VERSION, InfrastructureError, RolloutClient, RolloutInfo, ServiceError, WeightsClient
from grpo_proto.messages.weights import Kind, KvCache

from ..errors import RunError, TrainerError, UnavailableError
from .adapters import AdapterNeeds, choose_push_kind
from .wrong_server import wrong_server

log = logging.getLogger(__name__)

PROBE_INTERVAL_S = 2.0
MAX_MISSED_PROBES = 3
WAITING_LOG_INTERVAL_S = 30.0
GRACE_S = 60.0
"""How long to wait for the remaining servers once `min_replicas` are live: servers that start together may come up so
far apart, and a minute is little beside loading a model. A later server misses a step or two; a server that never comes
up delays every start of the trainer by this long."""


@dataclass(frozen=True)
class Needs:
    """The requirements of this run on every server."""

    tokenizer: str
    max_tokens: int
    head_dtype: str
    """`model.head_dtype` of the run."""
    one_rope_context: int | None = None
    """Longest context in which the policy's rotary embedding does not depend on the length; None for any length."""
    kv_cache: KvCache = "recompute"
    """`weights.kv_cache` of the run."""
    adapter: AdapterNeeds | None = None
    """None when every push is `full`."""

    def misfit(self, url: str, info: RolloutInfo) -> TrainerError | None:
        """Why this server cannot be used; None when it fits."""
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
                f"{where} has a context of {info.max_model_len} tokens; prompt and completion need {self.max_tokens}",
                hint="raise its --max-model-len, or lower data.max_prompt_length or rollout.max_completion_length",
            )
        if self.one_rope_context is not None and info.max_model_len > self.one_rope_context:
            return UnavailableError(
                f"{where} has a context of {info.max_model_len} tokens; beyond {self.one_rope_context} the rotary "
                "embedding of this model depends on the length, in another way there than in the trainer",
                hint=f"start it with --max-model-len {self.one_rope_context}",
            )
        served = info.head_dtype or info.dtype
        if served != ("float32" if self.head_dtype == "float32" else info.dtype):
            return UnavailableError(
                f"{where} computes logits in {served}; model.head_dtype is {self.head_dtype}",
                hint=f"""start it with --hf-overrides '{{"head_dtype": "{self.head_dtype}"}}', or change """
                "model.head_dtype",
            )
        if self.kv_cache == "keep" and not info.keeps_kv_cache:
            return UnavailableError(
                f"{where}, version {info.version}, recomputes the KV cache at every push; weights.kv_cache is keep",
                hint="install the same release of grpo-services on both sides, or set weights.kv_cache to recompute",
            )
        return self.adapter.misfit(url, info) if self.adapter else None


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


class Fleet:
    """All replicas. Use it in the event loop's thread only."""

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

    async def wait_until_live(
        self, timeout_s: float, *, still_missing: Callable[[dict[str, str]], None] = lambda _: None
    ) -> None:
        """Wait until every server is live and has sent its /info; once `min_replicas` are, for `GRACE_S` at most.

        The watcher finds servers that come up later; they get weights with the next push. `still_missing` is called
        about every second with the missing servers, by URL, and the reason of each. Raises UnavailableError, naming a
        missing server, when fewer than `min_replicas` are live after `timeout_s`; at once where something else answers.
        """
        clock = asyncio.get_running_loop().time
        until_s, logged_s, in_grace = clock() + timeout_s, float("-inf"), False
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
            if clock() >= logged_s + WAITING_LOG_INTERVAL_S:
                logged_s = clock()
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
            "starting with %d of %d rollout servers; the others get weights with the next push once they are up: %s",
            len(self.replicas) - len(missing),
            len(self.replicas),
            "; ".join(f"{url} ({reason})" for url, reason in missing.items()),
        )

    def check_compatible(
        self,
        *,
        tokenizer: str,
        max_tokens: int,
        head_dtype: str,
        one_rope_context: int | None = None,
        kv_cache: KvCache = "recompute",
        adapter: AdapterNeeds | None = None,
    ) -> Kind:
        """Return what to push: the adapter, if the run has one and the servers take it, or every weight.

        Raises UnavailableError for a server of another protocol, tokenizer or dtype of the head, with too short a
        context or too long a one for `one_rope_context`, or too old for `kv_cache`, and UsageError for servers that
        cannot serve the adapter. A server that
        comes up later and does not fit gets neither weights nor traffic.
        """
        self._needs = Needs(tokenizer, max_tokens, head_dtype, one_rope_context)
        self._refuse_misfits()
        kind = choose_push_kind(self.infos, adapter)
        if kind == "lora":  # every version has keys of its own, whatever `kv_cache` is
            self._needs = replace(self._needs, adapter=adapter)
        else:
            self._needs = replace(self._needs, kv_cache=kv_cache)
            self._refuse_misfits()
        return kind

    def _refuse_misfits(self) -> None:
        for replica in self.replicas:
            misfit = self._needs.misfit(replica.url, replica.info) if self._needs and replica.info else None
            if misfit is not None:
                raise misfit

    async def check_token(self) -> None:
        """Read the weight state of every server that is up, which asks for the token, as /info does not.

        Raises UsageError when a server refuses the token; all else is left to the watcher and the pushes.
        """
        for replica in self.answered:
            try:
                await replica.weights.state()
            except ServiceError as error:
                if error.status == 401:
                    raise _wrong(replica, error) from error

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
        misfit = self._needs.misfit(replica.url, info) if self._needs else None
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


async def _ask(replica: Replica) -> str | None:
    """Read a server's /livez and /info. Returns why the server is not up yet; None when it is.

    Raises UnavailableError when something else answers there.
    """
    replica.live = False
    try:
        health = await replica.rollouts.livez()
        if not health.ok:
            return health.detail or "not live"
        replica.info = await replica.rollouts.info()
    except InfrastructureError as error:
        return error.detail.message
    except ServiceError as error:
        raise _wrong(replica, error) from error
    replica.live = True
    return None


def _wrong(replica: Replica, error: ServiceError) -> TrainerError:
    return wrong_server(error, role="rollout server", url=replica.url, setting="rollout.urls")
