"""Wait at the start of a run: for its rollout servers, and for each other server until it is up and fits."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from grpo_proto import InfrastructureError, ServiceError

from ..errors import TrainerError, UnavailableError
from .fleet import Fleet, Replica
from .wrong_server import wrong_rollout_server, wrong_server

log = logging.getLogger(__name__)

POLL_INTERVAL_S = 1.0
WAITING_LOG_INTERVAL_S = 30.0
GRACE_S = 60.0
"""How long to wait for the remaining servers once `min_replicas` are live: servers that start together may come up so
far apart, and a minute is little beside loading a model. A later server misses a step or two; a server that never comes
up delays every start of the trainer by this long."""


@dataclass(frozen=True)
class Awaited:
    """A server by its `name`, the `setting` that holds its URL, and the `command` that starts it."""

    name: str
    url: str
    setting: str
    command: str

    @property
    def phase(self) -> str:
        return f"waiting for {self.name} at {self.url}"

    async def until_fit(
        self, check: Callable[[], Awaitable[object]], *, timeout_s: float, still_waiting: Callable[[str, str], None]
    ) -> None:
        """Call `check` until the server answers it; tell `still_waiting` the phase and the reason.

        Raises UnavailableError when it does not answer within `timeout_s`, or is another kind of server, UsageError
        when it asks for another token, and what `check` raises for a server that does not fit.
        """
        loop = asyncio.get_running_loop()
        deadline, logged = loop.time() + timeout_s, False
        while True:
            try:
                await check()
                return
            except InfrastructureError as error:
                if loop.time() >= deadline:
                    raise UnavailableError(
                        f"{self.name} {self.url} did not come up within {timeout_s:g} s: {error}",
                        hint=f"start it with `{self.command}`, or change {self.setting}",
                    ) from error
                if not logged:
                    log.info("waiting for %s %s: %s", self.name, self.url, error)
                still_waiting(self.phase, error.detail.message)
                logged = True
            except ServiceError as error:
                raise self._wrong(error) from error
            await asyncio.sleep(POLL_INTERVAL_S)

    async def refuse_another(self, ask: Callable[[], Awaitable[object]]) -> None:
        """Call `ask` once. Raises what `until_fit` raises for another kind of server; waits for none that is away."""
        try:
            await ask()
        except InfrastructureError:
            pass
        except ServiceError as error:
            raise self._wrong(error) from error

    def _wrong(self, error: ServiceError) -> TrainerError:
        return wrong_server(error, role=self.name.removeprefix("the "), url=self.url, setting=self.setting)


async def wait_for_rollout_servers(
    fleet: Fleet, timeout_s: float, *, still_missing: Callable[[dict[str, str]], None] = lambda _: None
) -> None:
    """Wait until every server is live and has sent its /info; once `min_replicas` are, for `GRACE_S` at most.

    The watcher finds servers that come up later; they get weights with the next push. `still_missing` is called
    about every second with the missing servers, by URL, and the reason of each. Raises UnavailableError, naming a
    missing server, when fewer than `min_replicas` are live after `timeout_s`; at once where something else answers.
    """
    clock = asyncio.get_running_loop().time
    until_s, logged_s, in_grace = clock() + timeout_s, float("-inf"), False
    missing = dict.fromkeys((replica.url for replica in fleet.replicas), "no answer yet")
    while True:
        waited_for = [replica for replica in fleet.replicas if replica.url in missing]
        reasons = await asyncio.gather(*(_ask(replica) for replica in waited_for))
        missing = {r.url: reason for r, reason in zip(waited_for, reasons, strict=True) if reason is not None}
        if not missing:
            return
        still_missing(missing)
        enough = len(fleet.replicas) - len(missing) >= fleet.min_replicas
        if enough and not in_grace:
            until_s, in_grace = min(until_s, clock() + GRACE_S), True
        if clock() >= until_s:
            break
        if clock() >= logged_s + WAITING_LOG_INTERVAL_S:
            logged_s = clock()
            for url, reason in missing.items():
                log.info("waiting for the rollout server %s: %s", url, reason)
        await asyncio.sleep(POLL_INTERVAL_S)
    if not enough:
        url, reason = next(iter(missing.items()))
        raise UnavailableError(
            f"the rollout server {url} did not come up within {timeout_s:g} s: {reason}",
            hint="start it with `grpo-rollout serve MODEL`, or change rollout.urls",
        )
    log.warning(
        "starting with %d of %d rollout servers; the others get weights with the next push once they are up: %s",
        len(fleet.replicas) - len(missing),
        len(fleet.replicas),
        "; ".join(f"{url} ({reason})" for url, reason in missing.items()),
    )


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
        raise wrong_rollout_server(replica.url, error) from error
    replica.live = True
    return None
