"""Prompts that kill rollout servers, on real server processes that die of them and are started again."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from tests.processes import free_port
from tests.trainer.test_fleet import come, info
from tests.trainer.test_pipeline import FakeReward, positions
from tests.waiting import PATIENCE_S

from grpo_proto import ErrorDetail, InfrastructureError, RolloutClient, Sampling
from grpo_trainer.algorithm.sequences import Group
from grpo_trainer.data.order import PromptOrder
from grpo_trainer.data.prompt_row import PromptRow
from grpo_trainer.errors import RunError
from grpo_trainer.fleet import fleet as fleet_module
from grpo_trainer.fleet.awaited import wait_for_rollout_servers
from grpo_trainer.fleet.fleet import Fleet
from grpo_trainer.fleet.places import place
from grpo_trainer.sampling.pipeline import Cursor, Pipeline, PipelineLimits
from grpo_trainer.sampling.single_turn import SingleTurn
from grpo_trainer.sampling.suspects import has_died
from grpo_trainer.sampling.tracing import Tracing

pytestmark = pytest.mark.processes

SCRIPT = Path(__file__).with_name("mortal_server.py")
INFO = info().model_dump(mode="json", exclude={"server_id"})


class Servers:
    """Rollout servers. They are started again when they are dead, as by Kubernetes, and pushed to, as by the loop."""

    def __init__(self, folder: Path, count: int, behaviour: dict[int, str]):
        self.log, self.behaviour = folder / "requests.jsonl", behaviour
        self.log.touch()
        self.ports = [free_port() for _ in range(count)]
        self.processes = [self.start(port) for port in self.ports]
        self.num_restarts = 0
        self.fleet = Fleet([f"http://127.0.0.1:{port}" for port in self.ports], min_replicas=1)
        if "freeze" in behaviour.values():  # the dead refuse at once; one that has just started may answer late
            for replica in self.fleet.replicas:
                replica.rollouts.probe_timeout_s = 0.3
        self.stage = SingleTurn(self.fleet, run_id="run", deadline_s=60, retry_for_s=20)

    def start(self, port: int) -> "subprocess.Popen[bytes]":
        words = [sys.executable, SCRIPT, port, self.log, json.dumps(INFO), json.dumps(self.behaviour)]
        return subprocess.Popen([str(word) for word in words])

    @property
    def num_deaths(self) -> int:
        return self.num_restarts + sum(
            process.poll() is not None or is_frozen(process.pid) for process in self.processes
        )

    def requests(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    async def until_asked(self, times: int) -> None:
        while len(self.requests()) < times:  # noqa: ASYNC110 - another process writes them
            await asyncio.sleep(0.01)

    async def revive(self) -> None:
        """Start dead servers again. A frozen one is killed first, once the trainer has lost it, as a probe would."""
        while True:
            await asyncio.sleep(0.02)
            for number, (process, replica) in enumerate(zip(self.processes, self.fleet.replicas, strict=True)):
                if process.poll() is None and replica.missed_probes >= 3 and is_frozen(process.pid):
                    process.kill()
                if process.poll() is not None:
                    self.num_restarts += 1
                    self.processes[number] = self.start(self.ports[number])

    async def push(self) -> None:
        """Make every server a member that answers, whenever the fleet wants a push."""
        while True:
            await self.fleet.needs_push.wait()
            with suppress(RunError):
                await self.fleet.admit(await self.fleet.reachable(), session=self.fleet.session + 1)
            await asyncio.sleep(0.02)


def is_frozen(pid: int) -> bool:
    return psutil.Process(pid).status() == psutil.STATUS_STOPPED


@asynccontextmanager
async def servers(folder: Path, count: int, behaviour: dict[int, str]) -> AsyncIterator[Servers]:
    found = Servers(folder, count, behaviour)
    tasks = []
    try:
        await wait_for_rollout_servers(found.fleet, 30)
        await found.fleet.admit(found.fleet.replicas, session=1)
        tasks += [asyncio.create_task(task) for task in (found.revive(), found.push(), found.fleet.watch())]
        yield found
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for process in found.processes:
            process.kill()
            process.wait(10)
        await found.fleet.close()


@pytest.fixture(autouse=True)
def often_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_module, "PROBE_INTERVAL_S", 0.05)


def pipeline_on(stage: SingleTurn, *, rows: int = 20) -> Pipeline:
    """Batches of 8 groups in 4 jobs; the prompt of position p begins with token p + 1."""
    prompts = PromptOrder([PromptRow(n, [n + 1], f"question {n}", {}) for n in range(rows)], seed=1, shuffle=False)
    limits = PipelineLimits(
        groups_per_batch=8, max_staleness=0, groups_per_job=2, num_generations=2, min_scored_share=0.5, max_steps=11
    )
    return Pipeline(stage, FakeReward(), prompts, Sampling(), limits, Cursor(), Tracing(None, run=""))  # type: ignore[arg-type]


async def batches(pipeline: Pipeline, versions: Sequence[int]) -> list[list[Group]]:
    found = []
    for version in versions:
        await pipeline.policy_updated(version)
        found.append((await asyncio.wait_for(pipeline.next_batch(), 60)).groups)
        pipeline.batch_used()
    await pipeline.stop()
    return found


def sampled(groups: Sequence[Group]) -> list[tuple[int, list[list[int]]]]:
    return [(group.position, [episode.sampled_token_ids for episode in group.episodes]) for group in groups]


def alone(servers: Servers) -> list[int]:
    """First tokens of the prompts that went alone."""
    return [line["prompts"][0] for line in servers.requests() if len(line["prompts"]) == 1]


@pytest.mark.parametrize(("count", "kind"), [(2, "die"), (1, "die"), (2, "freeze")])
async def test_a_prompt_that_kills_servers_is_found_named_dropped_and_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, count: int, kind: str
):
    async with servers(tmp_path, count, {4: kind}) as mortal:
        pipeline = pipeline_on(mortal.stage)
        first, second = await batches(pipeline, [1, 2])
        assert mortal.num_deaths == 3, "two with others beside it, and one alone"
    assert positions(first) == [0, 1, 2, 4, 5, 6, 7, 8], "the next prompt takes its place"
    assert positions(second) == list(range(9, 17))
    counts = pipeline.counts
    assert (counts.issued, counts.used, counts.dropped_crash) == (17, 16, 1)
    assert pipeline.cursor() == Cursor(17, [])
    [named] = [record.message for record in caplog.records if record.levelname == "ERROR"]
    assert "row 4 (1 tokens: 'question 3')" in named
    assert 4 in alone(mortal)
    assert all(line["beside"] == 0 for line in mortal.requests() if line["prompts"] == [4])


async def test_servers_that_die_of_something_else_cost_no_prompt_and_change_no_sample(tmp_path: Path):
    """All of a batch is in flight at two deaths of the only server, and suspect then."""
    async with servers(tmp_path, 1, {}) as immortal:
        undisturbed = await batches(pipeline_on(immortal.stage), [1, 2])
        before = len(immortal.requests())
        pipeline = pipeline_on(immortal.stage)
        await pipeline.policy_updated(1)
        hold = immortal.log.with_suffix(".hold")
        hold.touch()
        batch = asyncio.create_task(pipeline.next_batch())
        for deaths in (1, 2):
            await immortal.until_asked(before + 4 * deaths)
            immortal.processes[0].kill()
        hold.unlink()
        first = (await asyncio.wait_for(batch, 60)).groups
        assert sorted(alone(immortal)) == [1, 2, 3, 4, 5, 6, 7, 8]
        [second] = await batches(pipeline, [2])
        assert immortal.num_deaths == 2
    assert [sampled(first), sampled(second)] == list(map(sampled, undisturbed))
    assert (pipeline.counts.used, pipeline.counts.dropped_crash) == (16, 0)


async def test_a_connection_that_breaks_is_no_death_while_the_server_lives(tmp_path: Path):
    async with servers(tmp_path, 1, {4: "hang up"}) as mortal:
        mortal.stage.retry_for_s = 1.0
        pipeline = pipeline_on(mortal.stage)
        with pytest.raises(RunError, match="no rollout server could sample within 1 s"):
            await batches(pipeline, [1])
        assert alone(mortal) == []
        assert mortal.num_deaths == 0


async def test_a_frozen_server_that_is_not_lost_is_no_death(tmp_path: Path):
    async with servers(tmp_path, 1, {}) as mortal:
        [replica], stage = mortal.fleet.replicas, mortal.stage
        replica.rollouts.probe_timeout_s, stage.deadline_s = 30.0, 1.0
        sampling = asyncio.create_task(batches(pipeline_on(stage), [1]))
        await mortal.until_asked(1)
        os.kill(mortal.processes[0].pid, signal.SIGSTOP)
        await asyncio.sleep(0.5)
        os.kill(mortal.processes[0].pid, signal.SIGCONT)
        [groups] = await sampling
        assert positions(groups) == list(range(8))
        assert alone(mortal) == []


async def test_a_prompt_that_is_known_to_kill_is_not_sent_again(tmp_path: Path):
    async with servers(tmp_path, 2, {4: "die"}) as mortal:
        pipeline = pipeline_on(mortal.stage, rows=10)
        found = await batches(pipeline, [1, 2])
        assert mortal.num_deaths == 3
    assert positions(found[1]) == [9, 10, 11, 12, 14, 15, 16, 17], "position 13 is row 3 again"
    assert pipeline.counts.dropped_crash == 2


async def test_servers_that_die_of_every_prompt_end_the_run(tmp_path: Path):
    async with servers(tmp_path, 2, dict.fromkeys(range(1, 21), "die")) as mortal:
        with pytest.raises(RunError, match="5 prompts in a row have each killed a rollout server, the last one row "):
            await batches(pipeline_on(mortal.stage), [1])


def gone(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("refused", request=request)


def silent(request: httpx.Request) -> httpx.Response:
    raise httpx.ReadTimeout("late", request=request)


@pytest.mark.parametrize(
    ("kind", "answer", "missed_probes", "died"),
    [
        ("unreachable", gone, 0, False),  # dead before the request came
        ("engine_died", None, 0, True),
        ("stopping", gone, 0, False),  # it was told to
        ("broken_off", None, 0, False),
        ("broken_off", gone, 0, True),
        ("broken_off", silent, 0, False),
        ("lost", silent, 3, True),
        ("lost", None, 0, False),  # left out of a push, for instance
        ("lost", gone, 0, True),
        ("unexpected_answer", gone, 0, True),  # a proxy's
        ("internal", None, 0, False),
    ],
)
async def test_which_ends_of_a_request_are_a_death(kind: str, answer: Any, missed_probes: int, died: bool):
    fleet = Fleet(["http://127.0.0.1:1"], min_replicas=1)
    [replica] = fleet.replicas
    come(replica, server_id="s")
    if answer is not None:
        replica.rollouts = RolloutClient(replica.url, transport=httpx.MockTransport(answer))
    replica.missed_probes = missed_probes
    error = InfrastructureError(ErrorDetail(type=kind, message=kind), url=replica.url)
    assert await has_died(replica, "s", error) is died
    if answer is None and not died and kind != "internal":
        assert await has_died(replica, "the process before", error)
    await fleet.close()


async def test_others_sample_on_beside_a_request_that_goes_alone(tmp_path: Path):
    fleet = Fleet(["http://127.0.0.1:1", "http://127.0.0.1:2"], min_replicas=1)
    first, second = fleet.replicas
    await fleet.admit(fleet.replicas, session=1)
    async with place(fleet) as busy:
        assert busy is first
        async with place(fleet, alone=True) as own, place(fleet) as other:
            assert (own, other) == (second, first)
    await fleet.expel(second, "test")
    waiting, emptying = place(fleet), place(fleet, alone=True)
    async with place(fleet, alone=True):
        behind = asyncio.create_task(waiting.__aenter__())
        await asyncio.sleep(0.01)
        assert not behind.done(), "the only member is taken"
    assert await asyncio.wait_for(behind, PATIENCE_S) is first
    suspect = asyncio.create_task(emptying.__aenter__())
    await asyncio.sleep(0.01)
    assert first.alone
    assert not suspect.done(), "it waits for the end of what is in flight there"
    suspect.cancel()
    await asyncio.gather(suspect, return_exceptions=True)
    assert not first.alone
    await waiting.__aexit__(None, None, None)
    assert first.in_flight == 0
    await fleet.close()
