"""One session: its record, its limits, and how it ended. Without an engine.

    open ──limit, deadline, idle, close, drain, another trainer──► ended(status, cause, detail)

The server's own reason stays when a close follows.
"""

import asyncio
import hashlib
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from grpo_proto.messages.sessions import (
    Cause,
    CloseSession,
    OpenSession,
    RecordedSegment,
    RecordedTurn,
    SessionReward,
    SessionState,
    SessionStats,
    Status,
    Trajectory,
)
from grpo_proto.server.refusal import Refusal

from .access import NO_RETRY, Keys
from .forest import Asked, Forest, Node, Segment, Turn


@dataclass(eq=False, slots=True)
class Running:
    """A turn that samples in a task of its own; without a task, one that has been sampled.

    `unwanted`: ends it when nobody has waited for it for a while.
    """

    turn: Turn
    engine_id: str = ""
    prompt: list[int] = field(default_factory=list)
    task: "asyncio.Task[None] | None" = None
    num_waiting: int = 0
    stopping: bool = False
    unwanted: asyncio.TimerHandle | None = None


@dataclass(frozen=True, slots=True)
class End:
    """`http_status`: what later requests get. 400 a limit has ended the session, 503 the server stops, else 410."""

    status: Status
    cause: Cause | None
    detail: str | None
    by_server: bool = True
    http_status: Literal[400, 410, 503] = 410


@dataclass(eq=False, slots=True)
class Session:
    """`lived_s` and `idle_for_s` count no time in which the session's weights are not served. `images`: by name, the
    base64 of those that its messages show."""

    session_id: str
    request: OpenSession
    max_context_tokens: int
    weights_session: int | None = None
    keys: Keys = field(default_factory=Keys)
    forest: Forest = field(default_factory=Forest)
    images: dict[str, str] = field(default_factory=dict)
    running: dict[int, Running] = field(default_factory=dict)
    num_sampled_from: dict[bytes, int] = field(default_factory=dict)
    responses: dict[str, int] = field(default_factory=dict)
    rewards: dict[str, float | None] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    lived_s: float = 0.0
    idle_for_s: float = 0.0
    ended_at_s: float | None = None
    end: End | None = None
    on_end: Callable[["Session"], None] = lambda session: None

    # --- limits --------------------------------------------------------------------------------------------------

    def check_open(self) -> None:
        """Raises Refusal: 400 a limit has ended the session, 503 the server stops, 410 anything else."""
        if self.end is None:
            return
        if self.end.http_status == 400:
            raise Refusal(400, "session_limit", str(self.end.detail), headers=dict(NO_RETRY))
        if self.end.http_status == 503:
            hint = "open a new session on another server: this one's record ends with the server"
            raise Refusal(503, "stopping", str(self.end.detail), hint=hint, headers=dict(NO_RETRY))
        raise gone(
            self.session_id, f"has ended: {self.end.status}" + (f", {self.end.detail}" if self.end.detail else "")
        )

    def check_turn(self, *, new_segment: bool) -> None:
        """Raises Refusal (400) and ends the session when one more turn would pass a limit."""
        limits = self.request.limits
        forest = self.forest
        if forest.num_turns >= limits.max_turns:
            self._limit(f"max_turns {limits.max_turns} is reached")
        if new_segment and forest.num_segments >= limits.max_segments:
            self._limit(f"max_segments {limits.max_segments} is reached")
        if limits.max_sampled_tokens is not None and forest.num_sampled >= limits.max_sampled_tokens:
            self._limit(f"max_sampled_tokens {limits.max_sampled_tokens} is reached")

    def _limit(self, detail: str) -> None:
        self._end_by_limit(detail)
        self.check_open()

    def _end_by_limit(self, detail: str) -> None:
        self.finish(End("truncated", "policy", detail, http_status=400))

    def check_cut(self, turn: Turn) -> None:
        """End the session when its limit of sampled tokens has cut a turn; whoever waits still gets the answer."""
        limit = self.request.limits.max_sampled_tokens
        if turn.finish_reason == "length" and limit is not None and self.forest.num_sampled >= limit:
            self._end_by_limit(f"max_sampled_tokens {limit} is reached")

    def check_context(self, num_tokens: int) -> None:
        """Raises Refusal (400) for a prompt that leaves no room. The session goes on: a program may shorten it."""
        if num_tokens >= self.max_context_tokens:
            raise Refusal(
                400,
                "context_length_exceeded",
                f"the prompt has {num_tokens} tokens; the context holds {self.max_context_tokens}, "
                "including at least one sampled token",
                headers=dict(NO_RETRY),
            )

    def room(self, num_prompt_tokens: int, asked: int | None) -> int:
        """Return how many tokens a turn may sample."""
        limits = self.request.limits
        bounds = [self.request.sampling.max_tokens, self.max_context_tokens - num_prompt_tokens]
        if asked is not None:
            bounds.append(asked)
        if limits.max_sampled_tokens is not None:
            bounds.append(limits.max_sampled_tokens - self.forest.num_sampled)
        return max(1, min(bounds))

    def pass_time(self, elapsed_s: float) -> None:
        """Count time in which the session's weights were served, and end the session when its time is up."""
        limits = self.request.limits
        if self.end is not None:
            return
        self.lived_s += elapsed_s
        self.idle_for_s = 0.0 if self.running else self.idle_for_s + elapsed_s
        if self.lived_s >= limits.deadline_s:
            self._end_by_limit(f"deadline_s {limits.deadline_s:g} is over")
        elif self.idle_for_s >= limits.idle_s:
            self._end_by_limit(f"no request for idle_s {limits.idle_s:g}")

    # --- ends ----------------------------------------------------------------------------------------------------

    def finish(self, end: End) -> None:
        """End the session. The server's own reason outranks a close, and the first of its reasons stays."""
        if self.end is not None and (self.end.by_server or not end.by_server):
            return
        first = self.end is None
        self.end = end
        if first:
            self.on_end(self)

    def close(self, request: CloseSession) -> None:
        self.finish(End(request.status, request.cause, request.detail, by_server=False))

    def state(self) -> SessionState:
        end = self.end
        return SessionState(
            session_id=self.session_id,
            status=end.status if end else None,
            cause=end.cause if end else None,
            detail=end.detail if end else None,
        )

    # --- record --------------------------------------------------------------------------------------------------

    def reward(self, request: SessionReward) -> None:
        """Raises Refusal (422) for a turn that the session does not have."""
        if request.turn is None:
            self.rewards[request.name] = request.value
        elif request.turn < len(self.forest.turns):
            turn = self.forest.turns[request.turn]
            turn.rewards = (turn.rewards or {}) | {request.name: request.value}
        else:
            raise Refusal.invalid("unknown_turn", f"the session has no turn {request.turn}")
        self.metrics |= request.metrics

    def seed_of(self, prompt: "array[int]") -> tuple[int | None, bytes]:
        """Return the seed of one more turn from these ids, and a digest that names it.

        It depends on how often this session has sampled from these very ids: an ordinal of the session would make two
        concurrent requests race.
        """
        prompt_digest = hashlib.blake2b(prompt.tobytes(), digest_size=16).digest()
        ordinal = self.num_sampled_from.get(prompt_digest, 0)
        self.num_sampled_from[prompt_digest] = ordinal + 1
        named = hashlib.blake2b(f"{self.request.seed} {ordinal} ".encode() + prompt_digest, digest_size=16).digest()
        seed = int.from_bytes(named[:8]) >> 2 if self.request.seed is not None else None
        return seed, named

    def answer_to(self, node: Node | None, asked: Asked) -> Running | None:
        """Return the newest turn that answers such a request behind `node`; None without one that was not aborted."""
        if node is None:
            return None
        running = [found.turn for found in self.running.values() if found.turn.node is node]
        answers = [child.turn for child in node.children or () if child.turn is not None]
        same = [turn for turn in (*running, *answers) if turn.asked == asked and turn.finish_reason != "abort"]
        if not same:
            return None
        turn = max(same, key=lambda turn: turn.number)
        prompt = turn.segment.token_ids[: turn.start].tolist()
        return self.running.get(turn.number) or Running(turn, prompt=prompt)

    def trajectory(self) -> Trajectory:
        segments = list(self.forest.sampled_segments)
        places = {segment.index: place for place, segment in enumerate(segments)}
        state = self.state()
        shown = {image.name for segment in segments for image in segment.shown}
        return Trajectory(
            session_id=self.session_id,
            group_id=self.request.group_id,
            status=state.status,
            cause=state.cause,
            detail=state.detail,
            rewards=self.rewards,
            metrics=self.metrics,
            stats=SessionStats(**self.forest.stats()),
            segments=[recorded(segment, self.forest, places) for segment in segments],
            images={name: encoded for name, encoded in self.images.items() if name in shown},
        )


def recorded(segment: Segment, forest: Forest, places: Mapping[int, int]) -> RecordedSegment:
    """Return a segment for the wire. `places`: the position in the answer of each segment by its index."""
    done = [turn for turn in segment.turns if turn.end is not None]
    end = done[-1].end or 0 if done else 0
    parent, fork_at = forest.origin(segment)
    return RecordedSegment(
        token_ids=segment.token_ids[:end].tolist(),
        turns=[_turn(turn) for turn in done],
        logprobs=segment.logprobs.tolist(),
        parent=places[parent] if parent is not None else None,
        fork_at=fork_at,
        fork_reason=segment.fork_reason,
        images=[image.name for image in segment.shown_before(end)],
        image_starts=[image.start for image in segment.shown_before(end)],
        messages=wire_messages(segment.leaf.messages()),
    )


def _turn(turn: Turn) -> RecordedTurn:
    return RecordedTurn(
        turn=turn.number,
        start=turn.start,
        end=turn.end or turn.start,
        versions=turn.versions,
        finish_reason=turn.finish_reason or "abort",
        masked=turn.masked_reason,
        reward=turn.rewards or {},
        label=turn.label,
        text=turn.text,
    )


def wire_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [dict(message) for message in messages]


def gone(session_id: str, why: str) -> Refusal:
    return Refusal(
        410, "session_gone", f"session {session_id[:200]} {why}", hint="open a new session", headers=dict(NO_RETRY)
    )
