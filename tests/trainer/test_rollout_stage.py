"""Requests that are in flight while servers are pushed to."""

import asyncio

from grpo_proto import Completion, ConflictError, ErrorDetail, RolloutGroup, RolloutRequest, RolloutResponse, Sampling
from grpo_trainer.fleet import Fleet, Replica
from grpo_trainer.samples import PromptRow
from grpo_trainer.stages.rollout import RolloutJob, RolloutStage

GROUP = RolloutGroup(
    prompt_token_ids=[1], completions=[Completion(token_ids=[2], text="", finish_reason="stop", versions=[(1, 1)])]
)
JOB = RolloutJob([0], [PromptRow(index=0, prompt="", token_ids=[1], columns={})], [0], 1)


class Server:
    """Refuses what was asked in another session than the one it has when it has sampled."""

    def __init__(self, replica: Replica):
        self.session, self.asked, self.sampled = 1, asyncio.Event(), asyncio.Event()
        self.url = replica.url
        replica.rollouts.rollouts = self.rollouts  # type: ignore[method-assign]

    async def rollouts(self, request: RolloutRequest) -> RolloutResponse:
        self.asked.set()
        await self.sampled.wait()
        if request.session != self.session:
            detail = ErrorDetail(type="fenced", message=f"session {self.session} is open", retryable=False)
            raise ConflictError(detail, url=self.url, status=409)
        return RolloutResponse(groups=[GROUP], server_id="s")


async def begun() -> tuple[Fleet, Server, RolloutStage, "asyncio.Task[object]"]:
    """A request that the only member has in work, in session 1."""
    fleet = Fleet(["http://127.0.0.1:1"], min_replicas=1)
    server = Server(fleet.replicas[0])
    stage = RolloutStage(fleet, run_id="run", deadline_s=60, retry_for_s=5)
    await fleet.admit(fleet.replicas, session=1)
    sampling: asyncio.Task[object] = asyncio.create_task(stage.sample(JOB, n=1, sampling=Sampling()))
    await asyncio.wait_for(server.asked.wait(), 10)
    return fleet, server, stage, sampling


async def test_a_new_session_ends_a_servers_requests_and_not_its_membership():
    """Another server came back, so the next push has opened a new session with both: this one has the weights."""
    fleet, server, stage, sampling = await begun()
    server.session = 2
    await fleet.admit(fleet.replicas, session=2)
    server.sampled.set()
    await asyncio.wait_for(sampling, 10)  # the same server is asked again
    assert fleet.members == fleet.replicas
    assert stage.lost_requests == 1
    await fleet.close()


async def test_a_server_of_another_trainer_gets_no_more_requests_until_a_push():
    fleet, server, stage, sampling = await begun()
    server.session = 2
    server.sampled.set()
    await asyncio.wait_for(fleet.replicas[0].lost.wait(), 10)
    assert fleet.members == []
    assert stage.lost_requests == 1
    sampling.cancel()
    await fleet.close()
