"""The weight state machine: pure functions from one state to the next. No clock, no engine, no network in here.

    initial ──begin──► loading ──commit──► current(version)
                          │                    │ begin, or another trainer takes over
                          └──anything else──► stale(reason) ──begin──► loading ──commit──► current

`stale` ends only by a full push that commits. Every function takes the monotonic time `now_s` where time matters, and
raises `Refusal` for what a caller may not do. Versions are ordered within a session; a session is one start of one
trainer. A fenced-off trainer learns of it by a 409 at its next call.
"""

from dataclasses import dataclass, replace

from grpo_proto.messages.weights import LastPush, PushFailure, WeightState, WeightStateName
from grpo_proto.server.refusal import Refusal


@dataclass(frozen=True)
class Push:
    """A push under way. Two pushes are never equal: identity tells an old one's late news from the new one's."""

    number: int
    session: int
    version: int
    deadline_at_s: float
    served_before: bool


@dataclass(frozen=True)
class Weights:
    """What a rollout server serves, and who may change it.

    `version` belongs to `committed_session`, the session whose push is served (None: as loaded from disk).
    `has_group`: the session's process group stands. It does not before all members have met, nor after a break.
    """

    state: WeightStateName = "initial"
    version: int = 0
    committed_session: int | None = None
    session: int | None = None
    newest_session: int | None = None
    trainer_id: str | None = None
    lease_s: float = 0.0
    lease_until_s: float = 0.0
    has_group: bool = False
    reason: str | None = None
    push: Push | None = None
    num_pushes: int = 0
    last_push: LastPush | None = None
    push_failure: PushFailure | None = None

    @property
    def serves(self) -> bool:
        """Whether sampling is allowed. While loading, requests wait, if the server served when the push began."""
        if self.state == "loading":
            return self.push is not None and self.push.served_before
        return self.state in ("initial", "current")

    @property
    def ready(self) -> bool:
        """Whether to send traffic here: a server that has joined a trainer waits for its first weights."""
        return self.serves and not (self.state == "initial" and self.session is not None)

    def message(self) -> WeightState:
        reason = self.reason
        if self.state == "current" and self.session is not None and self.session != self.committed_session:
            reason = f"session {self.session} has not pushed yet; served are the weights of {self.committed_session}"
        return WeightState(
            state=self.state,
            version=self.version,
            session=self.session,
            newest_session=self.newest_session,
            trainer_id=self.trainer_id,
            reason=reason,
            last_push=self.last_push,
            push_failure=self.push_failure,
        )


def open_session(
    weights: Weights, *, session: int, trainer_id: str, lease_s: float, take_over: bool, now_s: float
) -> Weights:
    """A trainer joins. Its own older session is replaced at once; another trainer's only after the lease or by force.

    Raises Refusal (409) when the session is not newer than all before it or another trainer's lease runs.
    """
    if weights.newest_session is not None and session <= weights.newest_session:
        raise Refusal.conflict(
            "old_session",
            f"session {session} is not newer than {weights.newest_session}, which has been here",
            "take the current time in milliseconds as session; it grows with every start of a trainer",
        )
    foreign = weights.trainer_id is not None and weights.trainer_id != trainer_id
    held = weights.session is not None and now_s < weights.lease_until_s
    if foreign and held and not take_over:
        raise Refusal.conflict(
            "session_held",
            f"trainer {weights.trainer_id} holds session {weights.session}; its lease runs for another "
            f"{weights.lease_until_s - now_s:.0f} s",
            "wait, or send take_over to fence it off",
        )
    opened = replace(
        weights,
        session=session,
        newest_session=session,
        trainer_id=trainer_id,
        lease_s=lease_s,
        lease_until_s=now_s + lease_s,
        has_group=False,
    )
    if opened.state == "loading":
        return fail(opened, f"session {session} of trainer {trainer_id} replaced the one that was pushing")
    if opened.state == "current" and foreign:
        return fail(opened, f"trainer {trainer_id} took over and has not committed a push yet")
    return opened


def renew(weights: Weights, *, session: int, now_s: float) -> Weights:
    """Any weights call of the session's trainer renews its lease. Raises Refusal (409) as `require_session` does."""
    require_session(weights, session)
    return replace(weights, lease_until_s=now_s + weights.lease_s)


def require_session(weights: Weights, session: int) -> None:
    """Raises Refusal (409) when `session` is not the current one: its trainer has been fenced off or has left."""
    if weights.session is None:
        raise Refusal.conflict(
            "no_session", f"session {session} is over: the server has none", "join with a new session"
        )
    if weights.session != session:
        raise Refusal.conflict(
            "fenced",
            f"session {session} is over: the server belongs to session {weights.session} of {weights.trainer_id}",
            "two trainers, or two processes of one run, use this server: end one of them",
        )


def close_session(weights: Weights) -> Weights:
    """The trainer leaves; what is served stays, unless its push was under way."""
    closed = replace(weights, session=None, trainer_id=None, lease_until_s=0.0, has_group=False)
    return fail(closed, "the trainer closed its session during a push") if closed.state == "loading" else closed


def begin(weights: Weights, *, version: int, deadline_s: float, now_s: float) -> tuple[Weights, Push]:
    """A push starts. Call `renew` first.

    Raises Refusal (409) when a push is under way, the version does not grow, or there is no process group.
    """
    if weights.session is None:
        raise Refusal.conflict("no_session", "the server has no session", "join with a new session")
    if weights.push is not None:
        raise Refusal.conflict(
            "push_in_progress", f"version {weights.push.version} is being pushed", "commit it or abort it first"
        )
    if not weights.has_group:
        raise Refusal.conflict(
            "no_group",
            f"the process group of session {weights.session} has not formed yet, or broke in an earlier push",
            "wait for the answer of the session call, or join again with a new session",
        )
    if weights.committed_session == weights.session and version <= weights.version:
        raise Refusal.conflict(
            "old_version",
            f"version {version} is not newer than {weights.version}",
            "versions grow within a session",
        )
    push = Push(
        number=weights.num_pushes + 1,
        session=weights.session,
        version=version,
        deadline_at_s=now_s + deadline_s,
        served_before=weights.serves,
    )
    loading = replace(weights, state="loading", reason=None, push=push, push_failure=None, num_pushes=push.number)
    return loading, push


def check_commit(weights: Weights, *, version: int, digest: str) -> Push | None:
    """The push this commit is about, or None when that very commit has been made already. Call `renew` first.

    Raises Refusal (409) when no push of that version is under way.
    """
    repeated = (
        weights.state == "current"
        and weights.committed_session == weights.session
        and weights.version == version
        and weights.last_push is not None
        and weights.last_push.digest == digest
    )
    if repeated:
        return None
    if weights.push is None:
        raise Refusal.conflict(
            "not_loading",
            f"no push is under way; the server is {weights.state}" + (f": {weights.reason}" if weights.reason else ""),
            "begin a new push",
        )
    if weights.push.version != version:
        raise Refusal.conflict(
            "wrong_version", f"version {weights.push.version} is being pushed, not {version}", "commit that one"
        )
    return weights.push


def commit(weights: Weights, push: Push, *, digest: str, num_bytes: int, seconds: float) -> Weights:
    """The push is in and verified. Raises Refusal (409) when it is no longer the one under way."""
    if weights.push is not push:
        raise Refusal.conflict("not_loading", weights.reason or "another push has begun", "begin a new push")
    return replace(
        weights,
        state="current",
        version=push.version,
        committed_session=push.session,
        reason=None,
        push=None,
        last_push=LastPush(seconds=seconds, bytes=num_bytes, digest=digest),
    )


def fail(weights: Weights, reason: str) -> Weights:
    """Whatever was served or loading is no longer to be trusted."""
    return replace(weights, state="stale", reason=reason, push=None)


def tell_failure(weights: Weights, push: Push, failure: PushFailure) -> Weights:
    """How far `push`, which broke off, had come. Nothing when another one has begun since."""
    return replace(weights, push_failure=failure) if weights.num_pushes == push.number else weights


def set_group(weights: Weights, session: int, *, has_group: bool) -> Weights:
    """The session's process group has formed, or is gone and its trainer has to join again."""
    return replace(weights, has_group=has_group) if weights.session == session else weights


def check_request(weights: Weights, *, session: int | None, min_version: int | None) -> None:
    """May this sampling request be served? A stranger, without session, gets whatever is served.

    Raises Refusal: 503 while nobody is served, 409 when the session or the version is another one.
    """
    if not weights.serves:
        raise not_serving(weights)
    if session is None:
        return
    require_session(weights, session)
    if weights.committed_session != session:
        raise Refusal.conflict(
            "no_weights_yet", f"session {session} has not committed a push yet", "push before sampling"
        )
    if min_version is not None and min_version > weights.version:
        raise Refusal.conflict(
            "version_behind",
            f"version {min_version} is asked for, version {weights.version} is served",
            "push that version first",
        )


def not_serving(weights: Weights) -> Refusal:
    """What a request gets while nobody is served."""
    if weights.state == "loading":
        return Refusal.busy(
            503, "weights_loading", "the server is taking weights after a failure and serves nobody before", 5.0
        )
    return Refusal(
        503,
        "weights_stale",
        f"the weights are stale: {weights.reason}",
        hint="only a full push that commits ends this",
        retryable=True,
    )
