"""What a run waits for when it gets nowhere, and until when."""

import asyncio
import threading
from types import SimpleNamespace

import pytest
from tests.trainer.test_pipeline import FakeReward, FakeRollout, make
from tests.waiting import PATIENCE_S

from grpo_trainer.algorithm.sequences import Group
from grpo_trainer.fleet.event_loop import EventLoopThread
from grpo_trainer.live_sources import standing_still_shown
from grpo_trainer.observe.run_status import RunStatus
from grpo_trainer.observe.standing_still import Servers, standing_still
from grpo_trainer.orchestrator import Orchestrator
from grpo_trainer.ranks.stop_signal import StopSignal

CONFIG = SimpleNamespace(
    rollout=SimpleNamespace(retry_for_s=300.0),
    reward=SimpleNamespace(retry_for_s=200.0),
    weights=SimpleNamespace(push_deadline_s=100.0),
)
FINE = {"with_policy": 2, "answering": 2, "asked_for_samples": 4, "reward_answers": True}
GONE = {"with_policy": 0, "answering": 0, "asked_for_samples": 0}


def found(stage: str, **changes: object) -> tuple[str, float | None] | None:
    servers = Servers(**{**FINE, **changes})  # type: ignore[arg-type]
    return standing_still(stage, 1000.0, servers, CONFIG)  # type: ignore[arg-type]


@pytest.mark.parametrize("stage", ["wait", "score", "prepare", "train", "push", "eval", "save", "between stages"])
def test_a_run_whose_servers_answer_moves_on(stage: str):
    assert found(stage) is None
    assert found(stage, with_policy=1, answering=1) is None


@pytest.mark.parametrize("stage", ["prepare", "train", "save", "score"])
def test_the_trainer_works_on_by_itself_without_rollout_servers(stage: str):
    assert found(stage, **GONE) is None


def test_without_rollout_servers_the_oldest_group_says_when_the_run_ends():
    assert found("wait", **GONE, sampling_since_s=990.0) == ("no rollout server answers", 1290.0)
    assert found("wait", **GONE) == ("no rollout server answers", None)
    assert found("eval", **GONE) == ("no rollout server answers", 1300.0)
    assert found("push", **GONE) == ("no rollout server answers", 1100.0)
    assert found("push", with_policy=0) is None, "it brings them the weights"
    assert found("wait", with_policy=0) == ("no rollout server has the current weights", None)


def test_without_a_reward_server_the_group_that_has_waited_longest_says_when_the_run_ends():
    away = {"reward_answers": False}
    assert found("score", **away, scoring_since_s=995.0) == ("the reward server does not answer", 1195.0)
    assert found("wait", **away) is None, "samples still come"
    assert found("eval", **away) is None
    assert found("eval", **away, asked_for_samples=0) == ("the reward server does not answer", None)


def test_without_the_teacher_scored_groups_wait_for_it():
    away = {"silent_teacher": ("the teacher of math", 150.0), "scoring_since_s": 995.0}
    assert found("score", **away) == ("the teacher of math does not answer", 1145.0)
    assert found("wait", **away) is None, "samples still come"


class HeldReward(FakeReward):
    def __init__(self) -> None:
        self.hold = asyncio.Event()

    async def score(self, groups: list[Group], *, step: int) -> None:
        await self.hold.wait()
        await super().score(groups, step=step)


async def test_a_batch_lacks_only_scores_once_enough_groups_are_sampled():
    rollout, reward = FakeRollout(), HeldReward()
    pipeline = make(rollout)
    pipeline.reward = reward  # type: ignore[assignment]
    await pipeline.policy_updated(1)
    rollout.hold.clear()
    waiting = asyncio.create_task(pipeline.next_batch())
    await asyncio.sleep(0.01)
    assert not pipeline.lacks_only_scores
    assert pipeline.oldest_since_s("sampling") is not None
    assert pipeline.oldest_since_s("scoring") is None
    rollout.hold.set()
    await asyncio.sleep(0.01)
    assert pipeline.lacks_only_scores
    assert pipeline.oldest_since_s("sampling") is None
    assert pipeline.oldest_since_s("scoring") is not None
    reward.hold.set()
    await asyncio.wait_for(waiting, PATIENCE_S)
    assert not pipeline.lacks_only_scores
    assert pipeline.oldest_since_s("scoring") is None


async def test_a_job_that_fails_waits_for_nothing_any_more():
    rollout = FakeRollout()
    rollout.failure = RuntimeError("no server left")
    pipeline = make(rollout)
    await pipeline.policy_updated(1)
    with pytest.raises(RuntimeError, match="no server left"):
        await asyncio.wait_for(pipeline.next_batch(), PATIENCE_S)
    await asyncio.sleep(0.01)
    assert pipeline.oldest_since_s("sampling") is None


@pytest.mark.parametrize(
    ("stage", "only_scores", "says"), [("wait", False, "wait"), ("wait", True, "score"), ("eval", True, "eval")]
)
def test_the_wait_says_when_it_is_for_scores_and_an_evaluation_stays_one(
    stage: str, only_scores: bool, says: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("grpo_trainer.orchestrator.BEAT_INTERVAL_S", 0.01)
    status, done, stages = RunStatus("demo", max_steps=9, heartbeat_bound_s=60.0), threading.Event(), []
    status.enter_stage(stage)

    def beat() -> None:
        stages.append(status.snapshot().stage)
        if len(stages) == 3:
            done.set()

    monkeypatch.setattr(status, "beat", beat)
    with EventLoopThread() as loop:
        orchestrator = object.__new__(Orchestrator)
        orchestrator.loop, orchestrator.status, orchestrator.stop = loop, status, StopSignal()
        orchestrator.fleet = SimpleNamespace(needs_push=asyncio.Event())  # type: ignore[assignment]
        orchestrator.pusher = SimpleNamespace(lease=SimpleNamespace(taken_over=None))  # type: ignore[assignment]
        orchestrator.pipeline = SimpleNamespace(lacks_only_scores=only_scores)  # type: ignore[assignment]
        assert orchestrator.wait(orchestrator.start(asyncio.to_thread(done.wait, 20))) == "done"
    assert stages[:3] == [stage, says, says]


def test_the_page_reads_it_of_the_orchestrator():
    status = RunStatus("demo", max_steps=9, heartbeat_bound_s=60.0)
    status.enter_stage("wait")
    replica = SimpleNamespace(member=False, live=False, missed_probes=3, in_flight=0)
    orchestrator = SimpleNamespace(
        fleet=SimpleNamespace(replicas=[replica]),
        reward_health=None,
        teachers=SimpleNamespace(stages=[]),
        pipeline=SimpleNamespace(oldest_since_s={"sampling": 900.0, "scoring": None}.get),
        sampler=SimpleNamespace(failing_since_s=1000.04),
        config=CONFIG,
    )
    shown = standing_still_shown(status, orchestrator)  # type: ignore[arg-type]
    assert shown == {"because": "no rollout server answers", "until_s": 1300.0}
    replica.live = replica.member = True
    assert standing_still_shown(status, orchestrator) is None  # type: ignore[arg-type]
