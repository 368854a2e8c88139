"""An episode that has ended: the server's record of it, as the trainer's types."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from grpo_proto import RewardScore
from grpo_proto.messages.sessions import RecordedSegment, RecordedTurn, SessionStats, Trajectory

from ..algorithm.image_tokens import segment_tokens
from ..algorithm.sequences import Cause, Episode, EpisodeStatus, Segment, Turn
from .pictures import without_pictures

Lost = Literal["server", "environment", "program"]


class RecordError(Exception):
    """The images of a server's record are not those that its tokens have places for."""


@dataclass(frozen=True)
class Ending:
    """How an episode ended, and why when it is not completed."""

    status: EpisodeStatus = "completed"
    cause: Cause | None = None
    detail: str | None = None
    lost: Lost | None = None
    """What broke, where the episode is worth another attempt with the same seeds."""


@dataclass(frozen=True)
class Played:
    """One episode, however it ended.

    `episode.total` and its scores of the reward service are still to come. `episode.segments` is empty when nothing was
    sampled, which only an episode with status `failed` or `timeout` may be.
    """

    episode: Episode
    ending: Ending = Ending()
    stats: SessionStats | None = None
    """The server's counts; None when its record was lost."""
    metrics: dict[str, float] = field(default_factory=dict)


def played(
    episode_id: str,
    attempt: int,
    trajectory: Trajectory | None,
    ending: Ending,
    *,
    messages: Sequence[dict[str, Any]] = (),
    rewards: Mapping[str, RewardScore] | None = None,
    turn_rewards: Mapping[int, float] | None = None,
    weights: Mapping[str, float] | None = None,
    image_token_id: int | None = None,
) -> Played:
    """Put together what the server has recorded and what the trainer knows. Raises RecordError.

    Args:
        trajectory: None when the server has lost it.
        messages: the transcript; default: that of the segment with the newest turn.
        rewards: by name, beside those that were posted to the session.
        turn_rewards: number of a turn → its reward. Added to what was posted for the turn, each by its weight.
        weights: reward → its weight, for rewards that were posted for a turn.
        image_token_id: the model's, None for one that sees no images.
    """
    recorded = trajectory.segments if trajectory is not None else []
    posted = trajectory.rewards if trajectory is not None else {}
    scores = {name: score_of(value) for name, value in posted.items()} | dict(rewards or {})
    transcript = list(messages) or without_pictures(_newest_messages(recorded))
    episode = Episode(
        episode_id,
        [
            _segment(one, turn_rewards or {}, weights or {}, *_tokens_and_images(number, trajectory, image_token_id))
            for number, one in enumerate(recorded)
            if trajectory is not None
        ],
        attempt=attempt,
        status=ending.status,
        cause=ending.cause,
        transcript=transcript,
        opening=next((at for at, one in enumerate(transcript) if one.get("role") == "assistant"), len(transcript)),
        rewards=scores,
    )
    if trajectory is None:
        return Played(episode, ending)
    return Played(episode, ending, trajectory.stats, dict(trajectory.metrics))


def score_of(score: float | None, *, detail: str | None = None, **logged: Any) -> RewardScore:
    """A reward of an episode; None is no score. `logged`: `log` and `metrics`."""
    if score is None:
        detail = "; ".join(filter(None, ["it has no score for this episode", detail]))
        return RewardScore(score=None, status="unscorable", detail=detail, **logged)
    return RewardScore(score=score, status="ok", detail=detail, **logged)


def _segment(
    recorded: RecordedSegment,
    rewards: Mapping[int, float],
    weights: Mapping[str, float],
    token_ids: list[int],
    images: tuple[str, ...],
) -> Segment:
    return Segment(
        token_ids,
        [_turn(turn, rewards, weights) for turn in recorded.turns],
        recorded.logprobs,
        images,
        parent=recorded.parent,
        fork_at=recorded.fork_at,
        fork_reason=recorded.fork_reason,
    )


def _tokens_and_images(
    number: int, trajectory: Trajectory, image_token_id: int | None
) -> tuple[list[int], tuple[str, ...]]:
    """The token ids of a segment, with names for the places of its images, and these."""
    recorded = trajectory.segments[number]
    if missing := [name for name in recorded.images if name not in trajectory.images]:
        raise RecordError(f"the record of segment {number} is without its image {missing[0][:100]}")
    images = tuple(trajectory.images[name] for name in recorded.images)
    try:
        sampled = _sampled(number, trajectory.segments)
        token_ids = segment_tokens(recorded.token_ids, images, recorded.image_starts, image_token_id, sampled)
        return token_ids, images
    except ValueError as error:
        raise RecordError(f"the record of segment {number} cannot be used: {error}") from error


def _sampled(number: int, segments: Sequence[RecordedSegment]) -> list[tuple[int, int]]:
    """Start and end of all that the policy has said in a segment, also where it forked: there it is context."""
    segment = segments[number]
    spans = [(turn.start, turn.end) for turn in segment.turns]
    if segment.parent is None or segment.fork_at is None or not 0 <= segment.parent < number:
        return spans
    before = _sampled(segment.parent, segments)
    return [(start, min(end, segment.fork_at)) for start, end in before if start < segment.fork_at] + spans


def _turn(recorded: RecordedTurn, rewards: Mapping[int, float], weights: Mapping[str, float]) -> Turn:
    parts = [weights[name] * value for name, value in recorded.reward.items() if value is not None and name in weights]
    if recorded.turn in rewards:
        parts.append(rewards[recorded.turn])
    return Turn(
        recorded.start,
        recorded.end,
        recorded.versions,
        recorded.finish_reason,
        recorded.text,
        masked=recorded.masked,
        reward=sum(parts) if parts else None,
        label=recorded.label or None,
        order=recorded.turn,
    )


def _newest_messages(segments: Sequence[RecordedSegment]) -> list[dict[str, Any]]:
    with_turns = [segment for segment in segments if segment.turns]
    if not with_turns:
        return []
    return max(with_turns, key=lambda segment: segment.turns[-1].turn).messages
