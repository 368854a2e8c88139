"""A server's threads, ports and descriptors after many weight sessions, however those ended."""

import asyncio
import itertools
import time

import psutil
import pytest

from grpo_proto import ConflictError, InfrastructureError
from grpo_proto.messages.weights import CloseRequest, Rendezvous, SessionRequest
from tests.rollout.conftest import Server
from tests.rollout.pushing import Trainer, manifest_of

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300), pytest.mark.xdist_group("engine")]

SESSIONS = 50


async def closed(server: Server) -> None:
    async with server.trainer() as trainer:
        await trainer.join(take_over=True)
        await trainer.clients[0].close_session(CloseRequest(session=trainer.session))


async def left_by_a_trainer_that_dies(server: Server) -> None:
    async with server.trainer() as trainer:
        await trainer.join(take_over=True)


async def left_in_the_middle_of_a_push(server: Server) -> None:
    async with server.trainer() as trainer:
        await trainer.join(take_over=True)
        model = server.model(1)
        await trainer.begin(1, manifest_of(model))
        await trainer.send(model, manifest_of(model), buckets=range(2))


async def with_a_wrong_secret(server: Server) -> None:
    async with server.trainer() as trainer:
        trainer.host.crew(trainer.session, 2)
        with pytest.raises(InfrastructureError, match="another secret"):
            await trainer.clients[0].session(request_of(trainer, secret="0" * 64, world_size=2))


async def without_its_other_members(server: Server) -> None:
    async with server.trainer() as trainer:
        secret = trainer.host.crew(trainer.session, 3).secret
        with pytest.raises(InfrastructureError, match="group_not_formed"):
            await trainer.clients[0].session(request_of(trainer, secret=secret, world_size=3, deadline_s=0.2))


async def replaced_while_it_forms(server: Server) -> None:
    async with server.trainer() as trainer:
        secret = trainer.host.crew(trainer.session, 3).secret
        joining = asyncio.create_task(trainer.clients[0].session(request_of(trainer, secret=secret, world_size=3)))
        await asyncio.sleep(0.1)
        await closed(server)
        with pytest.raises(ConflictError, match="is over"):
            await joining


ENDS = (
    left_by_a_trainer_that_dies,
    left_in_the_middle_of_a_push,
    with_a_wrong_secret,
    without_its_other_members,
    replaced_while_it_forms,
    closed,
)


def request_of(trainer: Trainer, *, secret: str, world_size: int, deadline_s: float = 30.0) -> SessionRequest:
    return SessionRequest(
        session=trainer.session,
        trainer_id=trainer.trainer_id,
        rendezvous=Rendezvous(host="127.0.0.1", port=trainer.host.port),
        secret=secret,
        rank_offset=1,
        world_size=world_size,
        backend="gloo",
        take_over=True,
        lease_s=600.0,
        deadline_s=deadline_s,
    )


def held(server: Server) -> list[tuple[int, int, int]]:
    """Threads, descriptors and listening ports of the server's front and of its engine."""
    processes = [psutil.Process(server.running.process.pid), *server.running.children()]
    ports = [sum(one.status == psutil.CONN_LISTEN for one in process.net_connections()) for process in processes]
    return [(p.num_threads(), p.num_fds(), n) for p, n in zip(processes, ports, strict=True)]


def gained(before: list[tuple[int, int, int]], after: list[tuple[int, int, int]]) -> list[tuple[int, ...]]:
    return [tuple(now - then for then, now in zip(*both, strict=True)) for both in zip(before, after, strict=True)]


async def settled(server: Server) -> list[tuple[int, int, int]]:
    """What the server holds once that stands still for a second: it leaves its groups in threads."""
    until_s, before, still = time.monotonic() + 15.0, held(server), 0
    while still < 4:
        assert time.monotonic() < until_s, before
        await asyncio.sleep(0.25)
        before, now = held(server), before
        still = still + 1 if now == before else 0
    return before


async def test_fifty_sessions_leave_no_thread_no_port_and_no_descriptor(server: Server):
    for end in ENDS:
        await end(server)
    first = await settled(server)
    for end in itertools.islice(itertools.cycle(ENDS), SESSIONS):
        await end(server)
    await closed(server)
    of_front_and_engine = gained(first, await settled(server))
    assert all(max(gains) <= 0 for gains in of_front_and_engine), of_front_and_engine
