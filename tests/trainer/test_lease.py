"""The lease on the servers is kept while the loop lives, and who takes a server over is named."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from grpo_proto import ConflictError, ErrorDetail, RenewRequest
from grpo_trainer.fleet.lease import Lease
from grpo_trainer.fleet.weight_session import WeightSession


class Server:
    """Counts renewals; refuses them as `refusal` once that is set."""

    url, missed_probes = "http://a", 0

    def __init__(self) -> None:
        self.renewals, self.refusal, self.weights = 0, "", self

    async def renew(self, request: RenewRequest) -> None:
        self.renewals += 1
        if self.refusal:
            detail = ErrorDetail(type=self.refusal, message=f"session {request.session} is over", retryable=False)
            raise ConflictError(detail, url=self.url, status=409)


@pytest.fixture
def server() -> Server:
    return Server()


def lease_on(server: Any, *, has_heartbeat: bool) -> Lease:
    crew: Any = SimpleNamespace(session=7)
    session = WeightSession([server], crew, asyncio.Event(), SimpleNamespace())  # type: ignore[arg-type]
    return Lease(lambda: session, lambda: has_heartbeat, lease_s=0.04)


async def keep_for(lease: Lease, seconds: float) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(lease.keep(), seconds)


async def test_it_is_renewed_while_the_loop_lives_and_no_longer(server: Server):
    await keep_for(lease_on(server, has_heartbeat=True), 0.5)
    assert server.renewals > 4
    server.renewals = 0
    await keep_for(lease_on(server, has_heartbeat=False), 0.5)
    assert server.renewals == 0


async def test_who_took_a_server_over_is_named_and_a_restart_is_no_takeover(server: Server):
    lease = lease_on(server, has_heartbeat=True)
    server.refusal = "no_session"
    await keep_for(lease, 0.3)
    assert lease.taken_over is None
    server.refusal = "fenced"
    async with asyncio.timeout(30.0):
        await lease.keep()
    assert "another trainer has taken over: http://a: 409 fenced: session 7 is over" in (lease.taken_over or "")
