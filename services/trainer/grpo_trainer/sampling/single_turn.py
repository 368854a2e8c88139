"""Single turns: a prompt and its completion are an episode. Groups come from `/v1/rollouts`."""

import asyncio
import logging
import re
import time
from collections.abc import Callable, Sequence
from functools import partial

from grpo_proto import (
    Completion,
    ConflictError,
    DataError,
    ErrorDetail,
    InfrastructureError,
    Prompt,
    RolloutGroup,
    RolloutRequest,
    RolloutResponse,
    Sampling,
)

from ..algorithm.image_tokens import prompt_tokens
from ..algorithm.sequences import Episode, Group, single_turn
from ..data.sent_images import SEES_NONE, ImagesOfPrompts
from ..errors import RunError
from ..fleet.fleet import Fleet, Replica
from ..fleet.places import place
from .sampler import Asked
from .suspects import DEATHS_OF_A_JOB, Suspects, has_died

log = logging.getLogger(__name__)

RequestIn = Callable[[Sequence[Asked], int], RolloutRequest]
"""A request for these prompts in the weights session of this number."""


class SingleTurn:
    """The `Sampler` of runs in which an episode is one completion.

    Send requests to the least busy server; send a lost request again, to another server if there is one.

    Prompts that kill servers are found and left out: see suspects.py.

    `lost_requests` counts the failed attempts since this process began, or since its last rollback.
    """

    MAX_LATE = 3
    """How many times a single request may exceed its deadline; the last time it raises."""

    def __init__(
        self,
        fleet: Fleet,
        *,
        run_id: str,
        deadline_s: float,
        retry_for_s: float,
        images: ImagesOfPrompts = SEES_NONE,
    ):
        self.fleet, self.run_id, self._images = fleet, run_id, images
        self.deadline_s, self.retry_for_s = deadline_s, retry_for_s
        self.lost_requests = 0
        self.suspects = Suspects()
        self._requests = 0
        self._failing_since_s: dict[object, float] = {}
        """By request, since its last death or first other failure."""

    @property
    def failing_since_s(self) -> float | None:
        return min(self._failing_since_s.values(), default=None)

    async def sample(
        self, asked: Sequence[Asked], *, min_version: int | None, n: int, sampling: Sampling
    ) -> list[Group]:
        """Sample one group of `n` completions for each prompt in one request, with policy `min_version` or newer.

        The groups are in the order of `asked`; those of prompts that kill servers are missing.

        Raises RunError when no server has answered within `retry_for_s` after the first failure, when the request has
        exceeded its deadline `MAX_LATE` times, or when prompt after prompt kills its server.
        """
        self._requests += 1
        request_id = f"{self.run_id}-{self.fleet.session}-{self._requests}"
        request_in = partial(
            _request, images=self._images, min_version=min_version, n=n, sampling=sampling, deadline_s=self.deadline_s
        )
        asked = [one for one in asked if not self.suspects.drops(one.row)]
        if not asked:
            return []
        groups, death = await self._send(partial(request_in, request_id), asked)
        if death is None:
            return groups
        for number, one in enumerate(_without(asked, groups)):
            async with self.suspects.turn:
                found, death = await self._send(partial(request_in, f"{request_id}.{number}"), [one], alone=True)
            groups += found
            if death is not None:
                self.suspects.convict(one.row, str(death))
        return _in_order(asked, groups)

    async def _send(
        self, request_in: RequestIn, asked: Sequence[Asked], *, alone: bool = False
    ) -> tuple[list[Group], InfrastructureError | None]:
        """Try one server after another. A server that fails is expelled: no traffic until it commits a push.

        Returns the groups, and None; the last error with some groups or none when servers have died of the rest as
        often as makes its prompts suspect; `alone`, guilty. A server that is only late stays a member: the fleet's
        watcher finds out whether it lives.
        """
        try:
            return await self._try_servers(request_in, asked, alone=alone)
        finally:
            self._failing_since_s.pop(request_in, None)

    async def _try_servers(
        self, request_in: RequestIn, asked: Sequence[Asked], *, alone: bool
    ) -> tuple[list[Group], InfrastructureError | None]:
        groups, left = list[Group](), list(asked)
        loop = asyncio.get_running_loop()
        give_up_at: float | None = None
        last: Exception | None = None
        late, deaths = 0, list[InfrastructureError]()
        while (left_s := self.retry_for_s if give_up_at is None else give_up_at - loop.time()) > 0:
            if not await self.fleet.until(lambda: bool(self.fleet.members), left_s):
                break
            queued_at = loop.time()
            async with place(self.fleet, alone=alone) as replica:
                if give_up_at is not None:
                    give_up_at += loop.time() - queued_at  # a suspect had the server: nothing failed meanwhile
                if replica is None:
                    continue
                server_id = replica.info.server_id if replica.info else None
                # Use the current session: a push since the last attempt may have opened another.
                if any(one.row.images for one in left):  # which are read from files
                    request = await asyncio.to_thread(request_in, left, self.fleet.session)
                else:
                    request = request_in(left, self.fleet.session)
                try:
                    response = await _answer(replica, request)
                    found = _whole_groups(left, response, request, self._images.token_id)
                    groups += found
                    left = _without(left, found)
                    if not left:
                        self.suspects.sampled()
                        return _in_order(asked, groups), None
                    last = RunError(f"{replica.url} returned {_what_is_wrong(left, response, request)}")
                    await self.fleet.expel(replica, last, session=request.session)
                except InfrastructureError as error:
                    last = error
                    if error.status == 429:
                        give_up_at = give_up_at or loop.time() + self.retry_for_s
                        await asyncio.sleep(min(error.retry_after_s or 1.0, left_s))
                        continue
                    if error.status == 504 or error.detail.type == "no_answer":
                        late += 1
                        self._check_late(late, request, error)
                    else:
                        await self.fleet.expel(replica, error, session=request.session)
                        if await has_died(replica, server_id, error):
                            deaths.append(error)
                            give_up_at = None  # it may come back as late as after the first death
                            self._failing_since_s.pop(request_in, None)
                except ConflictError as error:
                    # Another trainer has the server, or it has lost our weights: it needs a push, no other request.
                    last = error
                    await self.fleet.expel(replica, error, session=request.session)
                except DataError as error:
                    raise _of_row(left, error) from error
            self.lost_requests += 1
            if len(deaths) == (1 if alone else DEATHS_OF_A_JOB):
                return groups, deaths[-1]
            give_up_at = give_up_at or loop.time() + self.retry_for_s
            self._failing_since_s.setdefault(request_in, time.time())
            log.warning("sending a lost rollout request again: %s", last)
        raise RunError(
            f"no rollout server could sample within {self.retry_for_s:g} s; the last error: {last}",
            hint="check the rollout servers' logs, then start the run again with --resume",
        )

    def _check_late(self, late: int, request: RolloutRequest, error: InfrastructureError) -> None:
        """Raise RunError when a request was late too often: no server will finish it in time."""
        if late < self.MAX_LATE:
            return
        num_sequences = len(request.prompts) * request.n
        raise RunError(
            f"a rollout request of {num_sequences} sequences was not finished within {self.deadline_s:g} s, "
            f"{late} times: {error}",
            hint="raise rollout.request_deadline_s, or lower rollout.prompts_per_request",
        ) from error


def _whole_groups(
    asked: Sequence[Asked], response: RolloutResponse, request: RolloutRequest, image_token_id: int | None
) -> list[Group]:
    """The groups that are complete: a server that became stale returns some of which completions were aborted."""
    sampled_at_s = time.monotonic()
    if len(response.groups) != len(asked):
        return []
    return [
        Group(
            one.position,
            one.row,
            _episodes(one.position, prompt_tokens(group, prompt.images, image_token_id), group, tuple(prompt.images)),
            one.trace,
            sampled_at_s,
        )
        for one, group, prompt in zip(asked, response.groups, request.prompts, strict=True)
        if len(group.completions) == request.n
        and group.prompt_token_ids
        and all(_ended(one) and _fits(one, request) for one in group.completions)
    ]


def _what_is_wrong(asked: Sequence[Asked], response: RolloutResponse, request: RolloutRequest) -> str:
    if len(response.groups) != len(asked):
        return f"{len(response.groups)} groups for {len(asked)} prompts"
    counts = {len(group.completions) for group in response.groups} - {request.n}
    if counts:
        return f"{min(counts)} completions of a prompt where {request.n} were asked for"
    completions = [one for group in response.groups for one in group.completions]
    if all(_fits(one, request) for one in completions if _ended(one)):
        return "completions that were aborted"
    return (
        "completions whose logprobs, versions or token ids do not fit their tokens, or that are older than version "
        f"{request.min_version}"
    )


def _without(asked: Sequence[Asked], groups: Sequence[Group]) -> list[Asked]:
    sampled = {group.position for group in groups}
    return [one for one in asked if one.position not in sampled]


def _in_order(asked: Sequence[Asked], groups: Sequence[Group]) -> list[Group]:
    positions = [one.position for one in asked]
    return sorted(groups, key=lambda group: positions.index(group.position))


def _request(
    request_id: str,
    asked: Sequence[Asked],
    session: int,
    *,
    images: ImagesOfPrompts,
    min_version: int | None,
    n: int,
    sampling: Sampling,
    deadline_s: float,
) -> RolloutRequest:
    return RolloutRequest(
        request_id=request_id,
        session=None if min_version is None else session,
        min_version=min_version,
        prompts=[
            Prompt(
                token_ids=one.row.token_ids,
                images=images.encoded(one.row),
                seed=one.seed,
                traceparent=one.trace.traceparent,
            )
            for one in asked
        ],
        n=n,
        sampling=sampling,
        deadline_s=deadline_s,
    )


async def _answer(replica: Replica, request: RolloutRequest) -> RolloutResponse:
    """Raises InfrastructureError at once when the fleet's watcher expels the server meanwhile."""
    response = await replica.unless_lost(replica.rollouts.rollouts(request))
    if response is None:
        detail = ErrorDetail(type="lost", message="the server stopped answering while it sampled", retryable=True)
        raise InfrastructureError(detail, url=replica.url)
    return response


def _of_row(asked: Sequence[Asked], error: DataError) -> RunError:
    """What a server refuses, such as a prompt that its images make too long, with the row: the server knows a place."""
    row = ""
    if (place := re.search(r"\bprompt (\d+)\b", error.detail.message)) and int(place[1]) < len(asked):
        refused = asked[int(place[1])].row
        of_dataset = f" of dataset {refused.dataset}" if refused.dataset else ""
        row = f"row {refused.index + 1}{of_dataset} was refused: "
    return RunError(f"{row}{error}")


def _ended(completion: Completion) -> bool:
    """Whether it ended by itself or by its length."""
    return completion.finish_reason not in ("abort", "error")


def _fits(completion: Completion, request: RolloutRequest) -> bool:
    """Whether every token has an id, a logprob and a version that the request takes."""
    num_tokens = len(completion.token_ids)
    return (
        sum(count for _, count in completion.versions) == num_tokens
        and all((request.min_version or 0) <= version < 2**63 for version, _ in completion.versions)
        and (completion.logprobs is None or len(completion.logprobs) == num_tokens)
        and all(0 <= token_id < 2**31 for token_id in completion.token_ids)
    )


def _episodes(position: int, prompt: list[int], group: RolloutGroup, images: tuple[str, ...]) -> list[Episode]:
    return [
        single_turn(
            f"{position}-{number}",
            prompt,
            completion.token_ids,
            versions=completion.versions,
            finish_reason=completion.finish_reason,
            text=completion.text,
            logprobs=completion.logprobs,
            images=images,
        )
        for number, completion in enumerate(group.completions)
    ]
