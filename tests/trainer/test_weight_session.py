"""Meeting the rollout servers: what a meeting that fails leaves behind."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from grpo_proto import (
    BeginRequest,
    ConflictError,
    ErrorDetail,
    InfrastructureError,
    Rendezvous,
    RenewRequest,
    SessionRequest,
)
from grpo_proto.lifeline import Crew, Host, Member
from grpo_proto.server.listening import listening_socket
from grpo_proto.transport import WeightGroup, plan_manifest
from grpo_trainer.fleet import weight_session
from grpo_trainer.fleet.attendance import MemberFailed
from grpo_trainer.fleet.weight_session import WeightSession


def member(answer: Callable[[SessionRequest], Any], url: str = "http://rollout:8000", *, continues: bool = True) -> Any:
    async def session(request: SessionRequest) -> Any:
        return await asyncio.to_thread(answer, request)

    state = SimpleNamespace(session=None, newest_session=None)
    info = SimpleNamespace(world_size=1, weights=state, continues_sessions=continues)
    return SimpleNamespace(url=url, info=info, weights=SimpleNamespace(session=session))


@pytest.fixture
def host() -> Iterator[Host]:
    opened = Host(listening_socket("127.0.0.1", 0), silence_s=2.0)
    yield opened
    opened.close()


async def meet(
    host: Host, *members: Any, timeout_s: float = 10.0, trial_bytes: int = 0, **options: Any
) -> WeightSession:
    crew = host.crew(7, 1 + len(members))
    request = request_of(host, crew, 1 + len(members), deadline_s=timeout_s, trial_bytes=trial_bytes)
    return await WeightSession.open(crew, members, request, **options)


def request_of(host: Host, crew: Crew, world_size: int, **options: Any) -> SessionRequest:
    """To the first member."""
    return SessionRequest(
        session=crew.session,
        trainer_id="trainer",
        rendezvous=Rendezvous(host="127.0.0.1", port=host.port),
        secret=crew.secret,
        rank_offset=1,
        world_size=world_size,
        backend="gloo",
        **options,
    )


def join(request: SessionRequest) -> Member:
    return Member(
        "127.0.0.1", request.rendezvous.port,
        session=request.session, rank=request.rank_offset, secret=request.secret, timeout_s=5.0, silence_s=2.0,
    )  # fmt: skip


def group_of(request: SessionRequest) -> WeightGroup:
    options = {"world_size": request.world_size, "backend": request.backend, "timeout_s": 10.0}
    return WeightGroup(join(request), rank=request.rank_offset, **options)


def did_not_come(_: SessionRequest) -> None:
    detail = ErrorDetail(type="group_not_formed", message="it did not form", retryable=True)
    raise InfrastructureError(detail, url="http://rollout:8000")


def test_a_meeting_that_hangs_keeps_nobody_from_the_next_one(host: Host, monkeypatch: pytest.MonkeyPatch):
    """As NCCL's, which waits for ever for a member that does not come."""
    over = threading.Event()

    class Hangs:
        def __init__(self, *_: object, **__: object):
            over.wait(60.0)

    try:
        with monkeypatch.context() as patched:
            patched.setattr(weight_session, "WeightGroup", Hangs)
            for _ in range(2):
                with pytest.raises(MemberFailed, match="it did not form"):
                    asyncio.run(meet(host, member(did_not_come), timeout_s=5.0))
        assert asyncio.run(meet(host, member(group_of))).number == 7
    finally:
        over.set()


def test_who_kept_a_group_from_forming_is_not_guessed(host: Host):
    """One that waited for it and one that did not come say the same: a trial of each tells them apart."""

    def waited(request: SessionRequest) -> None:
        join(request)
        did_not_come(request)

    with pytest.raises(MemberFailed) as failed:
        asyncio.run(meet(host, member(waited, "http://waited"), member(did_not_come, "http://missing"), timeout_s=2.0))
    assert not failed.value.named


def test_who_refuses_to_join_is_named(host: Host):
    def refuses(_: SessionRequest) -> None:
        detail = ErrorDetail(type="session_held", message="held", retryable=False)
        raise ConflictError(detail, url="http://refuses", status=409)

    with pytest.raises(MemberFailed) as failed:
        asyncio.run(meet(host, member(did_not_come, "http://other"), member(refuses, "http://refuses"), timeout_s=2.0))
    assert failed.value.named
    assert set(failed.value.failures) == {"http://refuses"}


def test_a_member_hears_what_the_session_continues_if_it_knows_the_field(host: Host):
    asked: dict[int, int | None] = {}

    def refuses(request: SessionRequest) -> None:
        asked[request.rank_offset] = request.continues
        detail = ErrorDetail(type="session_held", message="held", retryable=False)
        raise ConflictError(detail, url="http://refuses", status=409)

    urls = {"http://a": True, "http://new": True, "http://old": False}
    members = [member(refuses, url, continues=knows) for url, knows in urls.items()]
    with pytest.raises(MemberFailed):
        asyncio.run(meet(host, *members, timeout_s=2.0, continues={"http://a": 5, "http://old": 5}))
    assert asked == {1: 5, 2: None, 3: None}


def test_a_trial_moves_a_bucket(host: Host):
    tried: list[int] = []

    def come(request: SessionRequest) -> None:
        tried.append(request.trial_bytes)
        group_of(request).try_bucket(request.trial_bytes, torch.device("cpu"), timeout_s=10.0)

    asyncio.run(meet(host, member(come), trial_bytes=2**20))
    assert tried == [2**20]


def test_a_trial_whose_data_does_not_come_through_fails(host: Host):
    """The member forms the group, and never takes the bucket."""
    with pytest.raises(RuntimeError, match=r"[Tt]imed? ?out"):
        asyncio.run(meet(host, member(group_of), timeout_s=2.0, trial_bytes=2**26))


def session_with(replicas: list[Any], host: Host) -> WeightSession:
    group: Any = SimpleNamespace(close=lambda: None)
    return WeightSession(replicas, host.crew(7, 1 + len(replicas)), asyncio.Event(), group)


async def test_that_the_canary_agreed_is_reported_to_the_servers_it_compared(host: Host):
    renewed: dict[str, int | None] = {}

    def server(url: str) -> Any:
        async def renew(request: RenewRequest) -> None:
            renewed[url] = request.canary_agreed

        return SimpleNamespace(url=url, missed_probes=0, weights=SimpleNamespace(renew=renew))

    session = session_with([server("http://compared"), server("http://busy")], host)
    assert await session.renew(canary_agreed=3, agreed_urls={"http://compared"}) == []
    assert renewed == {"http://compared": 3, "http://busy": None}


def test_after_a_meeting_buckets_travel(host: Host):
    theirs = []
    session = asyncio.run(meet(host, member(lambda request: theirs.append(group_of(request)))))
    sent, received = torch.arange(16, dtype=torch.uint8), torch.zeros(16, dtype=torch.uint8)
    ours = session.group.start_broadcast(sent, timeout_s=10.0)
    theirs[0].broadcast(received, timeout_s=10.0)
    ours.wait()
    assert torch.equal(sent, received)


async def test_nobody_waits_for_the_answer_of_a_member_that_is_lost(host: Host):
    """Its call would take until the deadline; another member is at work meanwhile."""
    joined: dict[str, Member] = {}

    def server(url: str, answer_s: float) -> Any:
        replica = member(lambda request: joined.update({url: join(request)}), url)

        async def begin(_: BeginRequest) -> None:
            await asyncio.sleep(answer_s)

        replica.weights.begin = begin
        return replica

    replicas = [server("http://frozen", 60.0), server("http://works", 0.1)]
    crew = host.crew(7, 3)
    requests = weight_session.requests_to(replicas, request_of(host, crew, 3), {})
    for replica, request in zip(replicas, requests, strict=True):
        await replica.weights.session(request)
    group: Any = SimpleNamespace(close=lambda: None)
    session = WeightSession(replicas, crew, weight_session._end_of(crew), group)
    manifest = plan_manifest([("lm_head.weight", "float32", [4, 8])])
    asyncio.get_running_loop().call_later(0.3, joined["http://frozen"].fail, "cannot go on")
    with pytest.raises(MemberFailed) as failed:
        async with asyncio.timeout(30.0):
            await session.begin(BeginRequest(session=7, version=1, manifest=manifest, bucket_timeout_s=5.0))
    assert failed.value.named
    assert str(failed.value) == "http://frozen: its worker 0 cannot go on"
