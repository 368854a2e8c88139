"""The fleet: who gets traffic, and in which weight session."""

import asyncio
import itertools
import os
import signal
import time

import httpx
import pytest
from tests.waiting import PATIENCE_S

from grpo_proto import PROTOCOL_VERSION, RolloutClient, RolloutInfo, WeightState
from grpo_trainer.config.rollout import RolloutConfig
from grpo_trainer.errors import UnavailableError
from grpo_trainer.fleet import fleet as fleet_module
from grpo_trainer.fleet.awaited import GRACE_S, wait_for_rollout_servers
from grpo_trainer.fleet.event_loop import EventLoopThread
from grpo_trainer.fleet.fleet import Fleet, Replica
from grpo_trainer.fleet.needs import Needs
from grpo_trainer.fleet.weight_session import next_number
from grpo_trainer.ranks.stop_signal import STOP_SIGNALS, StopRequested, StopSignal


def info(**changes: object) -> RolloutInfo:
    said = {
        "version": "0", "protocol_version": PROTOCOL_VERSION, "engine": "none", "server_id": "s", "model": "m",
        "dtype": "float32", "tokenizer_fingerprint": "ours", "chat_template_fingerprint": None, "max_model_len": 100,
        "world_size": 1, "device": "cpu", "weights": WeightState(state="initial", version=0),
    }  # fmt: skip
    return RolloutInfo.model_validate(said | changes)


async def test_who_waits_for_servers_tells_which_are_missing_and_why():
    urls = ["http://127.0.0.1:1", "http://127.0.0.1:2"]
    fleet, told = Fleet(urls, min_replicas=1), []
    with pytest.raises(UnavailableError, match="did not come up within"):
        await wait_for_rollout_servers(fleet, 0.1, still_missing=lambda missing: told.append(dict(missing)))
    assert set(told[-1]) == set(urls)
    assert all("connection attempts failed" in reason for reason in told[-1].values())
    assert not any(replica.live for replica in fleet.replicas)
    await fleet.close()


def urls(count: int) -> list[str]:
    return [f"http://127.0.0.1:{number}" for number in range(1, count + 1)]


def come(replica: Replica, *, after_probes: int = 0, **changes: object) -> None:
    """Let the server of `replica` answer, from its second probe on when `after_probes` is 1, and so on."""
    left = after_probes

    def answer(request: httpx.Request) -> httpx.Response:
        nonlocal left
        if request.url.path == "/livez":
            left -= 1
            return httpx.Response(200 if left < 0 else 503, json={"ok": left < 0, "detail": "loading"})
        return httpx.Response(200, text=info(**changes).model_dump_json())

    replica.rollouts = RolloutClient(replica.url, transport=httpx.MockTransport(answer))


class TestStartWithoutSomeServers:
    @pytest.mark.processes
    async def test_enough_servers_go_on_after_a_short_grace_and_the_missing_ones_are_named(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ):
        monkeypatch.setattr("grpo_trainer.fleet.awaited.GRACE_S", 0.5)
        fleet = Fleet(urls(3), min_replicas=2)
        come(fleet.replicas[0])
        come(fleet.replicas[1], after_probes=1)
        async with asyncio.timeout(30.0):
            await wait_for_rollout_servers(fleet, 600.0)
        assert [replica.live for replica in fleet.replicas] == [True, True, False]
        assert [replica.info is not None for replica in fleet.replicas] == [True, True, False]
        [line] = [record.message for record in caplog.records if record.levelname == "WARNING"]
        assert "starting with 2 of 3 rollout servers" in line
        assert "http://127.0.0.1:3 (All connection attempts failed)" in line
        await fleet.close()

    def test_the_setting_says_how_long_the_grace_is(self):
        assert f"{GRACE_S:g} s" in (RolloutConfig.model_fields["min_replicas"].description or "")

    @pytest.mark.processes
    async def test_within_the_grace_all_are_waited_for(self):
        fleet = Fleet(urls(2), min_replicas=1)
        come(fleet.replicas[0])
        come(fleet.replicas[1], after_probes=2)
        await wait_for_rollout_servers(fleet, 600.0)
        assert all(replica.live and replica.info for replica in fleet.replicas)
        await fleet.close()

    async def test_the_grace_ends_with_the_time_for_the_whole_start(self):
        fleet = Fleet(urls(2), min_replicas=1)
        come(fleet.replicas[0])
        async with asyncio.timeout(30.0):
            await wait_for_rollout_servers(fleet, 0.5)
        assert [replica.live for replica in fleet.replicas] == [True, False]
        await fleet.close()

    async def test_too_few_are_no_start(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr("grpo_trainer.fleet.awaited.GRACE_S", 0.0)
        fleet = Fleet(urls(3), min_replicas=2)
        come(fleet.replicas[0])
        with pytest.raises(UnavailableError, match=r"the rollout server http://127.0.0.1:2 did not come up within 1 s"):
            await wait_for_rollout_servers(fleet, 1.0)
        await fleet.close()

    def test_a_stop_ends_the_grace(self):
        fleet, stop = Fleet(urls(2), min_replicas=1), StopSignal()
        come(fleet.replicas[0])
        begin_s = time.monotonic()
        before = [signal.getsignal(number) for number in STOP_SIGNALS]
        stop.install()
        rounds = itertools.count()

        def kill_once(_: dict[str, str]) -> None:
            """Once all have been asked. Twice would end the process."""
            if next(rounds) == 0:
                os.kill(os.getpid(), signal.SIGTERM)

        try:
            with EventLoopThread() as loop:
                with pytest.raises(StopRequested), stop.interruptible():
                    loop.run(wait_for_rollout_servers(fleet, 600.0, still_missing=kill_once))
                assert fleet.replicas[0].live
                loop.run(fleet.close())
        finally:
            for number, handler in zip(STOP_SIGNALS, before, strict=True):
                signal.signal(number, handler)
        assert time.monotonic() - begin_s < 20.0

    async def test_one_that_comes_later_is_pushed_to(self):
        fleet = Fleet(urls(2), min_replicas=1)
        come(fleet.replicas[0])
        await wait_for_rollout_servers(fleet, 0.1)
        assert fleet.require(Needs(tokenizer="ours", max_tokens=100, head_dtype="model")) == "full"
        assert await fleet.reachable() == fleet.replicas[:1]
        come(fleet.replicas[1])
        assert await fleet.reachable() == fleet.replicas[:1], "no push waits for a server that was away"
        await fleet.look()
        assert await fleet.reachable() == fleet.replicas
        assert fleet.replicas[1].info is not None
        await fleet.close()

    async def test_one_that_comes_later_and_does_not_fit_gets_nothing_and_is_told_of_once(
        self, caplog: pytest.LogCaptureFixture
    ):
        fleet = Fleet(urls(2), min_replicas=1)
        come(fleet.replicas[0])
        await wait_for_rollout_servers(fleet, 0.1)
        assert fleet.require(Needs(tokenizer="ours", max_tokens=100, head_dtype="model")) == "full"
        come(fleet.replicas[1], tokenizer_fingerprint="another")
        caplog.clear()
        for _ in range(2):
            assert await fleet.reachable() == fleet.replicas[:1]
        [line] = [record.message for record in caplog.records if record.levelname == "WARNING"]
        assert "http://127.0.0.1:2 has another tokenizer" in line
        come(fleet.replicas[1])
        assert await fleet.reachable() == fleet.replicas
        await fleet.close()


class TestSessionNumbers:
    def replica(self, session: int | None, *, newest: int | None = None) -> Replica:
        [replica] = Fleet(["http://127.0.0.1:1"], min_replicas=1).replicas
        replica.info = info(weights=WeightState(state="current", version=3, session=session, newest_session=newest))
        return replica

    def test_it_is_the_time_and_grows(self):
        members = [self.replica(None), self.replica(1_000)]
        assert next_number(members, now_s=5.0, after=0) == 5_000
        assert next_number(members, now_s=5.0, after=7_000) == 7_001

    def test_a_clock_that_is_behind_does_not_keep_a_run_from_its_servers(self):
        """The trainer before ran on another machine, and died without closing its session."""
        members = [self.replica(8_000), self.replica(9_000), self.replica(None)]
        assert next_number(members, now_s=5.0, after=0) == 9_001

    def test_nor_when_that_trainer_closed_its_session(self):
        members = [self.replica(None, newest=9_000), self.replica(None)]
        assert next_number(members, now_s=5.0, after=0) == 9_001


async def test_a_request_that_waited_for_a_member_meets_it_in_the_new_session():
    fleet = Fleet(["http://127.0.0.1:1"], min_replicas=1)
    seen: list[int] = []

    async def wait_for_member() -> None:
        assert await fleet.until(lambda: bool(fleet.members), 5.0)
        seen.append(fleet.session)

    waiting = asyncio.create_task(wait_for_member())
    await asyncio.sleep(0)
    await fleet.admit(fleet.replicas, session=7)
    await waiting
    assert seen == [7]
    await fleet.expel(fleet.replicas[0], "test")
    assert not await fleet.until(lambda: bool(fleet.members), 0.01)
    assert fleet.replicas[0].lost.is_set()
    await fleet.close()


async def test_an_answer_from_before_a_push_does_not_expel_who_was_pushed_to(monkeypatch: pytest.MonkeyPatch):
    """A push broke off and was made again while a lost node kept the watcher's round open."""
    monkeypatch.setattr(fleet_module, "PROBE_INTERVAL_S", 0.01)
    fleet = Fleet(urls(2), min_replicas=1)
    pushed, lost_node = fleet.replicas
    asked, node_gives_up = asyncio.Event(), asyncio.Event()
    come(pushed, weights=WeightState(state="stale", version=1, reason="the push broke off"))

    async def hang(request: httpx.Request) -> httpx.Response:
        asked.set()
        await node_gives_up.wait()
        raise httpx.ConnectError("no route", request=request)

    lost_node.rollouts = RolloutClient(lost_node.url, transport=httpx.MockTransport(hang))
    watching = asyncio.create_task(fleet.watch())
    await asyncio.wait_for(asked.wait(), PATIENCE_S)
    await fleet.admit([pushed], session=2)
    come(pushed, weights=WeightState(state="current", version=1))
    node_gives_up.set()
    async with asyncio.timeout(PATIENCE_S):
        while lost_node.missed_probes == 0:  # noqa: ASYNC110 - until a round that began after the push is over
            await asyncio.sleep(0.01)
    assert fleet.members == [pushed]
    assert not fleet.needs_push.is_set()
    watching.cancel()
    await fleet.close()
