"""Meeting the rollout servers: what a meeting that fails leaves behind."""

import asyncio
import threading
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.processes import free_port
from torch.distributed import TCPStore

from grpo_proto import (
    AbortRequest,
    BeginRequest,
    ErrorDetail,
    InfrastructureError,
    RenewRequest,
    SessionRequest,
    WeightState,
)
from grpo_proto.transport import WeightGroup, joined_key, plan_manifest
from grpo_trainer.config.weights import WeightsConfig
from grpo_trainer.servers import weight_session
from grpo_trainer.servers.blame import MemberFailed
from grpo_trainer.servers.weight_session import WeightSession


def member(answer: Callable[[SessionRequest], Any], url: str = "http://rollout:8000") -> Any:
    async def session(request: SessionRequest) -> Any:
        return await asyncio.to_thread(answer, request)

    info = SimpleNamespace(world_size=1, weights=SimpleNamespace(session=None, newest_session=None))
    return SimpleNamespace(url=url, info=info, weights=SimpleNamespace(session=session))


async def meet(config: WeightsConfig, answer: Callable[[SessionRequest], Any]) -> WeightSession:
    return await WeightSession.open([member(answer)], config, trainer_id="trainer", backend="gloo")


def did_not_come(_: SessionRequest) -> None:
    detail = ErrorDetail(type="group_not_formed", message="it did not form", retryable=True)
    raise InfrastructureError(detail, url="http://rollout:8000")


def test_a_meeting_that_hangs_keeps_no_fixed_port_from_the_next_one(monkeypatch: pytest.MonkeyPatch):
    """As NCCL's, which waits for ever for a member that does not come."""
    over = threading.Event()

    class Hangs:
        def __init__(self, store: TCPStore, **_: object):
            self.store = store
            over.wait(60.0)

    monkeypatch.setattr(weight_session, "WeightGroup", Hangs)
    config = WeightsConfig(port=free_port(), bucket_timeout_s=5.0)
    try:
        for _ in range(2):
            with pytest.raises(MemberFailed, match="it did not form"):
                asyncio.run(meet(config, did_not_come))
    finally:
        over.set()


def test_who_did_not_reach_the_rendezvous_is_told_from_who_waited_for_it():
    def waited(request: SessionRequest) -> None:
        store = TCPStore("127.0.0.1", request.rendezvous.port, is_master=False, timeout=timedelta(seconds=10))
        store.set(joined_key(request.session, request.rank_offset), "")
        did_not_come(request)

    members = [member(waited, "http://waited"), member(did_not_come, "http://missing")]
    opening = WeightSession.open(members, WeightsConfig(bucket_timeout_s=2.0), trainer_id="trainer", backend="gloo")
    with pytest.raises(MemberFailed) as failed:
        asyncio.run(opening)
    assert failed.value.decided
    assert set(failed.value.failures) == {"http://missing"}


async def test_an_adapter_is_announced_with_its_configuration_and_its_model():
    begun: list[BeginRequest] = []

    async def begin(request: BeginRequest) -> None:
        begun.append(request)

    replica: Any = SimpleNamespace(url="http://rollout:8000", weights=SimpleNamespace(begin=begin))
    group: Any = None
    session = WeightSession(7, [replica], group, WeightsConfig())
    manifest = plan_manifest([("base_model.model.q_proj.lora_A.weight", "float32", [4, 8])])
    common: dict[str, Any] = {"absent": [], "bucket_timeout_s": 5.0, "deadline_s": 9.0}
    await session.begin(2, "lora", manifest, peft_config={"r": 4}, base_digest="ab" * 32, **common)
    await session.begin(3, "full", manifest, peft_config=None, base_digest=None, **common)
    assert [(r.kind, r.peft_config, r.base_digest) for r in begun] == [
        ("lora", {"r": 4}, "ab" * 32),
        ("full", None, None),
    ]


async def test_what_becomes_of_the_kv_cache_is_sent_only_where_it_is_kept():
    """A server from before the setting refuses a field that it does not have."""
    begun: list[str] = []

    async def begin(request: BeginRequest) -> None:
        begun.append(request.model_dump_json())

    replica: Any = SimpleNamespace(url="http://rollout:8000", weights=SimpleNamespace(begin=begin))
    group: Any = None
    manifest = plan_manifest([("lm_head.weight", "float32", [4, 8])])
    kept = WeightsConfig(kv_cache="keep")
    for config, kind in ((WeightsConfig(), "full"), (kept, "full"), (kept, "lora")):
        session = WeightSession(7, [replica], group, config)
        of_kind = ({"r": 4}, "ab" * 32) if kind == "lora" else (None, None)
        common: dict[str, Any] = {"absent": [], "bucket_timeout_s": 5.0, "deadline_s": 9.0}
        await session.begin(2, kind, manifest, peft_config=of_kind[0], base_digest=of_kind[1], **common)
    assert "kv_cache" not in begun[0]
    assert "kv_cache" not in begun[2], "every version of an adapter has keys of its own"
    assert BeginRequest.model_validate_json(begun[0]).kv_cache == "recompute"
    assert BeginRequest.model_validate_json(begun[1]).kv_cache == "keep"


async def test_that_the_canary_agreed_is_reported_to_the_servers_it_compared():
    renewed: dict[str, int | None] = {}

    def server(url: str) -> Any:
        async def renew(request: RenewRequest) -> None:
            renewed[url] = request.canary_agreed

        return SimpleNamespace(url=url, weights=SimpleNamespace(renew=renew))

    group: Any = None
    session = WeightSession(7, [server("http://compared"), server("http://busy")], group, WeightsConfig())
    assert await session.renew(canary_agreed=3, agreed_urls={"http://compared"}) == []
    assert renewed == {"http://compared": 3, "http://busy": None}


def test_after_a_meeting_buckets_travel():
    theirs = []

    def come(request: SessionRequest) -> None:
        store = TCPStore("127.0.0.1", request.rendezvous.port, is_master=False, timeout=timedelta(seconds=10))
        theirs.append(
            WeightGroup(store, session=request.session, rank=1, world_size=2, backend=request.backend, timeout_s=10.0)
        )

    session = asyncio.run(meet(WeightsConfig(bucket_timeout_s=10.0), come))
    sent, received = torch.arange(16, dtype=torch.uint8), torch.zeros(16, dtype=torch.uint8)
    ours = session.group.start_broadcast(sent, timeout_s=10.0)
    theirs[0].broadcast(received, timeout_s=10.0)
    ours.wait()
    assert torch.equal(sent, received)


def test_what_a_member_gave_a_push_up_for_is_told():
    """Out of memory there looks like a lost connection here."""

    def gives(reason: str | None) -> Any:
        async def abort(request: AbortRequest, *, timeout_s: float) -> WeightState:
            return WeightState(state="stale", version=0, reason=reason or request.reason)

        async def end(request: Any, *, timeout_s: float) -> None:
            pass

        return SimpleNamespace(url=f"http://{reason}", weights=SimpleNamespace(abort=abort, close_session=end))

    group = SimpleNamespace(close=lambda: None)
    session = WeightSession(1, [gives("OutOfMemoryError"), gives(None)], group, WeightsConfig())  # type: ignore[arg-type]
    told = asyncio.run(session.abandon("connection closed"))
    assert {url: answer.reason for url, answer in told.items() if isinstance(answer, WeightState)} == {
        "http://OutOfMemoryError": "OutOfMemoryError",
        "http://None": "connection closed",
    }
