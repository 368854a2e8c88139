"""Requests that are in flight while servers are pushed to."""

import asyncio
import re
from dataclasses import replace

import pytest
from tests.waiting import PATIENCE_S

from grpo_proto import (
    Completion,
    ConflictError,
    DataError,
    ErrorDetail,
    InfrastructureError,
    RolloutGroup,
    RolloutRequest,
    RolloutResponse,
    Sampling,
)
from grpo_trainer.data.prompt_row import PromptRow
from grpo_trainer.errors import RunError
from grpo_trainer.fleet.fleet import Fleet, Replica
from grpo_trainer.sampling.sampler import Asked
from grpo_trainer.sampling.single_turn import SingleTurn

GROUP = RolloutGroup(
    prompt_token_ids=[1], completions=[Completion(token_ids=[2], text="", finish_reason="stop", versions=[(1, 1)])]
)
ASKED = [Asked(position=0, row=PromptRow(index=0, prompt="", token_ids=[1], columns={}), seed=0)]


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


async def begun() -> tuple[Fleet, Server, SingleTurn, "asyncio.Task[object]"]:
    """A request that the only member has in work, in session 1."""
    fleet = Fleet(["http://127.0.0.1:1"], min_replicas=1)
    server = Server(fleet.replicas[0])
    stage = SingleTurn(fleet, run_id="run", deadline_s=60, retry_for_s=5)
    await fleet.admit(fleet.replicas, session=1)
    sampling: asyncio.Task[object] = asyncio.create_task(stage.sample(ASKED, min_version=1, n=1, sampling=Sampling()))
    await asyncio.wait_for(server.asked.wait(), PATIENCE_S)
    return fleet, server, stage, sampling


async def test_a_new_session_that_continues_none_ends_a_servers_requests_and_not_its_membership():
    """Another server came back, so the next push has opened a new session with both: this one has the weights, and is
    of a release that knows no `continues`."""
    fleet, server, stage, sampling = await begun()
    server.session = 2
    await fleet.admit(fleet.replicas, session=2)
    server.sampled.set()
    await asyncio.wait_for(sampling, PATIENCE_S)  # the same server is asked again
    assert fleet.members == fleet.replicas
    assert stage.lost_requests == 1
    await fleet.close()


async def test_what_a_server_samples_while_a_push_fails_beside_it_is_used():
    """It gets nothing new meanwhile; one that the next push leaves out loses what it was asked."""
    fleet, server, stage, sampling = await begun()
    await fleet.suspend(fleet.replicas[0], "another member is lost")
    assert fleet.members == []
    server.sampled.set()
    await asyncio.wait_for(sampling, PATIENCE_S)
    assert stage.lost_requests == 0
    await fleet.admit([], session=2)
    assert fleet.replicas[0].lost.is_set()
    await fleet.close()


def whole(**changes: object) -> Completion:
    return Completion(token_ids=[5, 6], text="", finish_reason="stop", versions=[(1, 2)]).model_copy(update=changes)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ([], "0 groups for 1 prompts"),
        ([[]], "0 completions of a prompt where 1 were asked for"),
        ([[whole(finish_reason="abort")]], "completions that were aborted"),
        ([[whole(logprobs=[-0.5])]], "whose logprobs, versions or token ids do not fit"),
        ([[whole(versions=[(0, 2)])]], "older than version 1"),
        ([[whole(versions=[(1, 1)])]], "whose logprobs, versions or token ids do not fit"),
        ([[whole(token_ids=[5, -1])]], "whose logprobs, versions or token ids do not fit"),
        ([[whole(token_ids=[5, 2**70])]], "whose logprobs, versions or token ids do not fit"),
    ],
)
async def test_an_answer_that_does_not_fit_its_request_is_named_with_its_server(
    answer: list[list[Completion]], said: str, caplog: pytest.LogCaptureFixture
):
    servers = TwoServers()
    servers.answers = [[GROUP.model_copy(update={"completions": completions}) for completions in answer], [GROUP]]
    stage = SingleTurn(servers.fleet, run_id="run", deadline_s=60, retry_for_s=5)
    await servers.fleet.admit(servers.fleet.replicas, session=1)
    groups = await asyncio.wait_for(stage.sample(ASKED[:1], min_version=1, n=1, sampling=Sampling()), PATIENCE_S)
    assert len(groups) == 1
    assert re.search(f"http://.* returned .*{said}", caplog.text)
    await servers.fleet.close()


async def test_complete_groups_are_used_and_the_others_are_sent_again():
    servers = TwoServers()
    asked = [replace(ASKED[0], position=position) for position in range(3)]
    cut_off = GROUP.model_copy(
        update={"completions": [Completion(token_ids=[], text="", finish_reason="abort", versions=[])]}
    )
    servers.answers = [[GROUP, cut_off, GROUP], [GROUP]]
    stage = SingleTurn(servers.fleet, run_id="run", deadline_s=60, retry_for_s=5)
    await servers.fleet.admit(servers.fleet.replicas, session=1)
    groups = await asyncio.wait_for(stage.sample(asked, min_version=1, n=1, sampling=Sampling()), PATIENCE_S)
    assert [group.position for group in groups] == [0, 1, 2]
    assert [len(request.prompts) for request in servers.requests] == [3, 1]
    assert stage.lost_requests == 1
    await servers.fleet.close()


async def test_a_refused_prompt_is_named_by_its_row():
    """Its images are expanded at the server, which alone finds out that they leave no room."""
    servers, (first,) = TwoServers(), ASKED
    row = replace(first.row, index=41, dataset="colours")
    detail = ErrorDetail(type="prompt_too_long", message="prompt 1 has 9 tokens, with its images 300", hint="shorten")

    async def refuse(request: RolloutRequest) -> RolloutResponse:
        raise DataError(detail, url="http://127.0.0.1:1", status=422)

    for replica in servers.fleet.replicas:
        replica.rollouts.rollouts = refuse  # type: ignore[method-assign]
    stage = SingleTurn(servers.fleet, run_id="run", deadline_s=60, retry_for_s=5)
    await servers.fleet.admit(servers.fleet.replicas, session=1)
    with pytest.raises(RunError, match=r"^row 42 of dataset colours was refused: .*with its images 300 .shorten"):
        await stage.sample([first, replace(first, row=row)], min_version=1, n=1, sampling=Sampling())
    await servers.fleet.close()


async def test_a_server_of_another_trainer_gets_no_more_requests_until_a_push():
    fleet, server, stage, sampling = await begun()
    server.session = 2
    server.sampled.set()
    await asyncio.wait_for(fleet.replicas[0].lost.wait(), PATIENCE_S)
    assert fleet.members == []
    assert stage.lost_requests == 1
    sampling.cancel()
    await fleet.close()


class TwoServers:
    """Play two members: the one that is asked first does as `first` says, the other samples.

    Each takes `pause_s` by the event loop's clock, which is put forward instead of waited for.
    """

    def __init__(self, *first: InfrastructureError, pause_s: float = 0.0):
        self.fleet = Fleet(["http://127.0.0.1:1", "http://127.0.0.1:2"], min_replicas=1)
        self.errors, self.pause_s = list(first), pause_s
        self.answers: list[list[RolloutGroup]] = []
        self.requests: list[RolloutRequest] = []
        for replica in self.fleet.replicas:
            replica.rollouts.rollouts = self.rollouts  # type: ignore[method-assign]

    async def rollouts(self, request: RolloutRequest) -> RolloutResponse:
        self.requests.append(request)
        loop, now = asyncio.get_running_loop(), asyncio.get_running_loop().time
        loop.time = lambda: now() + self.pause_s  # type: ignore[method-assign]
        if self.errors:
            raise self.errors.pop(0)
        return RolloutResponse(groups=self.answers.pop(0) if self.answers else [GROUP], server_id="s")

    async def sample(self, *, retry_for_s: float) -> SingleTurn:
        stage = SingleTurn(self.fleet, run_id="run", deadline_s=60, retry_for_s=retry_for_s)
        await self.fleet.admit(self.fleet.replicas, session=1)
        try:
            await asyncio.wait_for(stage.sample(ASKED, min_version=1, n=1, sampling=Sampling()), PATIENCE_S)
        finally:
            assert stage.failing_since_s is None
            await self.fleet.close()
        return stage


def failure(kind: str, status: int | None) -> InfrastructureError:
    return InfrastructureError(ErrorDetail(type=kind, message=kind), url="http://127.0.0.1:1", status=status)


async def test_a_request_that_is_lost_after_a_long_time_is_asked_for_elsewhere():
    """The time in which it is tried again begins with its first failure, not when it was sent."""
    servers = TwoServers(failure("internal", 500), pause_s=4.0)
    assert (await servers.sample(retry_for_s=3.0)).lost_requests == 1
    assert len(servers.fleet.members) == 1


@pytest.mark.parametrize("late", [("deadline", 504), ("no_answer", None)])
async def test_who_is_late_keeps_its_place(late: tuple[str, int | None]):
    servers = TwoServers(failure(*late), failure(*late))
    assert (await servers.sample(retry_for_s=60)).lost_requests == 2
    assert servers.fleet.members == servers.fleet.replicas


async def test_what_is_late_three_times_ends_the_run_and_names_the_deadline():
    servers = TwoServers(*[failure("deadline", 504)] * 3)
    with pytest.raises(RunError, match="1 sequences was not finished within 60 s, 3 times") as caught:
        await servers.sample(retry_for_s=60)
    assert "rollout.request_deadline_s" in (caught.value.hint or "")
    assert servers.fleet.members == servers.fleet.replicas
