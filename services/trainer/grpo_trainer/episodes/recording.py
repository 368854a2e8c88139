"""The session of one episode: opened, closed with how the episode ended, read, and forgotten."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from grpo_proto import ConflictError, InfrastructureError, RewardScore, Sampling
from grpo_proto.client.sessions import SessionClient, SessionsClient
from grpo_proto.messages.errors import DataError, ServiceError
from grpo_proto.messages.sessions import CloseSession, OpenSession, SessionLimits, Trajectory

from ..algorithm.sequences import was_broken
from ..config.episodes import EpisodesConfig
from ..data.sent_images import SEES_NONE, ImagesOfPrompts
from .identity import EpisodeAsked
from .played import Ending, Played, RecordError, played

log = logging.getLogger(__name__)

LATER_S = 5.0
"""Limit for forgetting a session in the background."""
_background: set["asyncio.Task[None]"] = set()


class ServerLostError(Exception):
    """The rollout server is away, has restarted, or has other weights: the episode is to run again."""


@dataclass(frozen=True)
class Place:
    """Where an episode is sampled, and how.

    `sampling.max_tokens` limits the sampled tokens of the whole episode. `retry_for_s`: how long a call of the server
    is tried again before the server counts as lost.
    """

    server: SessionsClient
    sampling: Sampling
    weights_session: int | None
    min_version: int | None
    retry_for_s: float


class Recording:
    """Use it as an asynchronous context manager: whatever happens, the server forgets the session."""

    def __init__(
        self,
        asked: EpisodeAsked,
        place: Place,
        config: EpisodesConfig,
        run: str,
        images: ImagesOfPrompts = SEES_NONE,
    ):
        self.asked, self.place, self.config, self.images = asked, place, config, images
        self.session_id = asked.session_id(run)
        self._session: SessionClient | None = None

    async def __aenter__(self) -> "Recording":
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            task = asyncio.create_task(_forget(self._session))
            _background.add(task)
            task.add_done_callback(_background.discard)

    @property
    def session(self) -> SessionClient:
        if self._session is None:
            raise RuntimeError("the session has not been opened")
        return self._session

    @property
    def max_turn_tokens(self) -> int:
        most = self.place.sampling.max_tokens
        return min(self.config.max_turn_tokens or most, most)

    async def open(self) -> SessionClient:
        """Raises ServerLostError; DataError for what no server of this kind will take, such as too long a context."""
        config, sampling = self.config, self.place.sampling
        request = OpenSession(
            session_id=self.session_id,
            group_id=str(self.asked.position),
            weights_session=self.place.weights_session,
            min_version=self.place.min_version,
            seed=self.asked.sampling_seed,
            sampling=sampling.model_copy(update={"max_tokens": self.max_turn_tokens, "logprobs": True}),
            limits=SessionLimits(
                max_turns=config.max_turns,
                max_segments=config.max_segments,
                max_sampled_tokens=sampling.max_tokens,
                max_context_tokens=config.max_context_tokens,
                deadline_s=config.deadline_s,
                idle_s=config.idle_s,
            ),
        )
        try:
            self._session = await self.place.server.open(request, retry_for_s=self.place.retry_for_s)
        except (InfrastructureError, ConflictError) as error:
            raise ServerLostError(str(error)) from error
        return self._session

    async def ended(
        self,
        ending: Ending,
        *,
        messages: Sequence[dict[str, Any]] = (),
        rewards: Mapping[str, RewardScore] | None = None,
        turn_rewards: Mapping[int, float] | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> Played:
        """Close the session and return the episode. The server's own reason for its end outranks `ending`.

        A record that cannot be used, such as one whose images have no places, is a failure that nobody tries again: the
        next attempt would have the same.
        """
        trajectory: Trajectory | None = None
        if self._session is not None and ending.lost != "server":
            try:
                trajectory = await self._close(self._session, ending)
                ending = _outranked(ending, trajectory)
            except ServerLostError as error:
                ending = Ending("failed", "infrastructure", str(error), lost="server")
        say = partial(
            played,
            self.asked.id,
            self.asked.attempt,
            messages=messages,
            rewards=rewards,
            turn_rewards=turn_rewards,
            weights=self.config.weights,
            image_token_id=self.images.token_id,
        )
        try:
            found = say(trajectory, ending)
        except RecordError as error:
            log.warning("episode %s: %s", self.asked.id, error)
            ending = Ending("failed", "infrastructure", str(error))
            found = say(None, ending)
        found.metrics.update(metrics or {})
        if was_broken(ending.status, ending.cause):
            # The policy did not cause it: what is left of the scores would be a wrong episode's.
            broken = RewardScore(score=None, status="error", detail=ending.detail)
            found.episode.rewards = dict.fromkeys({**self.config.weights, **found.episode.rewards}, broken)
        return found

    async def _close(self, session: SessionClient, ending: Ending) -> Trajectory:
        """Raises ServerLostError when the record cannot be had any more."""
        detail = ending.detail[:10_000] if ending.detail else None
        request = CloseSession(status=ending.status, cause=ending.cause, detail=detail)
        retry_for_s, limits = self.place.retry_for_s, self.config
        num_tokens = limits.max_segments * (limits.max_context_tokens or 2**17)
        try:
            await session.close(request, retry_for_s=retry_for_s)
            return await session.trajectory(num_tokens=num_tokens, retry_for_s=retry_for_s)
        except (InfrastructureError, ConflictError) as error:
            raise ServerLostError(str(error)) from error
        except DataError as error:
            if error.status == 410:
                raise ServerLostError(str(error)) from error
            raise


def _outranked(ending: Ending, trajectory: Trajectory) -> Ending:
    """Return how the episode ended by the server's record, which holds our own reason unless it had one before.

    An environment that broke is worth another attempt, whatever the server had ended the session for.
    """
    if trajectory.status is None or ending.lost == "environment":
        return ending
    lost = ending.lost
    if trajectory.status != "failed":
        lost = None
    elif lost is None and trajectory.cause == "infrastructure":
        lost = "server"
    return Ending(trajectory.status, trajectory.cause, trajectory.detail, lost=lost)


async def all_forgotten() -> None:
    """Wait until the servers have forgotten the sessions of episodes that have ended."""
    if _background:
        await asyncio.wait(_background, timeout=LATER_S)


async def _forget(session: SessionClient) -> None:
    try:
        async with asyncio.timeout(LATER_S):
            await session.delete()
    except (ServiceError, TimeoutError) as error:
        log.info(
            "session %s was left to expire: %s",
            session.opened.session_id,
            str(error) or f"no answer within {LATER_S:g} s",
        )
