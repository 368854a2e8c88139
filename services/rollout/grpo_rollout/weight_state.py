"""The weight state machine: pure functions from one state to the next, without clock, engine or network.

    initial ──begin──► loading ──commit──► current(version)
                          │                    │ begin, or another trainer takes over
                          └──anything else──► stale(reason) ──begin──► loading ──commit──► current

Only a full push that commits ends `stale`. Sequences that a failed push had frozen stay frozen until its deadline: the
next push may commit before, and they go on under its weights. An adapter push leaves the state as it is until its
commit, since what is served stays untouched meanwhile, and a failed adapter push changes nothing:

    initial, current(version) ──begin, fail──► initial, current(version)       kind lora
    initial, current(version) ──begin, commit──► current(next version)

Functions take the monotonic time `now_s` where time matters, and raise
`Refusal` for a call that is not allowed. A session is one process group of one start of a trainer; it may continue an
earlier one of the same start, whose requests then go on. Versions are ordered within a session. A trainer that has been
fenced off gets a 409 at its next call.
"""

from dataclasses import dataclass, replace

from grpo_proto.messages.weights import Kind, LastPush, Verification, WeightState, WeightStateName
from grpo_proto.server.refusal import Refusal


@dataclass(frozen=True)
class Push:
    """A push under way. Compare by identity: that distinguishes a late result of an old push from the current push."""

    number: int
    session: int
    version: int
    deadline_at_s: float
    served_before: bool
    kind: Kind = "full"


@dataclass(frozen=True)
class Weights:
    """What a rollout server serves, and which trainer may change it.

    `version` belongs to `committed_session`, the session whose push is served (None: as loaded from disk).
    `has_group`: the session's process group exists: every member has joined, and no push has broken it since.
    `served_kind`: the kind of the push that is served; None as loaded from disk.
    `continued`: the sessions that `session` continues.
    `base_overwritten`: a full push has begun at some time, so no adapter fits the base any more.
    `frozen_until_s`: how long the sequences that a failed push had frozen wait for another; None when none may.
    `reason`: why the weights are stale, or why the last adapter push failed.
    """

    state: WeightStateName = "initial"
    version: int = 0
    committed_session: int | None = None
    session: int | None = None
    newest_session: int | None = None
    continued: frozenset[int] = frozenset()
    trainer_id: str | None = None
    lease_s: float = 0.0
    lease_until_s: float = 0.0
    has_group: bool = False
    reason: str | None = None
    push: Push | None = None
    num_pushes: int = 0
    last_push: LastPush | None = None
    verified_by: tuple[Verification, ...] = ()
    served_kind: Kind | None = None
    base_overwritten: bool = False
    frozen_until_s: float | None = None

    def is_current(self, session: int) -> bool:
        """Whether `session` is the one that holds this server, or one that it continues."""
        return self.session is not None and (session == self.session or session in self.continued)

    def are_of(self, session: int) -> bool:
        """Whether the served weights were pushed in `session`, or in another that is one with it."""
        committed = self.committed_session
        return committed is not None and (
            committed == session or (self.is_current(committed) and self.is_current(session))
        )

    @property
    def serves(self) -> bool:
        """Whether sampling is allowed. While weights load, requests wait if the server served when the push began."""
        if self.state == "loading":
            return self.push is not None and self.push.served_before
        return self.state in ("initial", "current")

    @property
    def ready(self) -> bool:
        """Whether to send traffic here. A server that has joined a trainer is not ready before its first weights."""
        return self.serves and (self.session is None or self.committed_session is not None)

    def message(self, *, now_s: float) -> WeightState:
        reason = self.reason
        is_new = self.session is not None and self.session != self.committed_session
        if self.state == "current" and is_new and reason is None:
            reason = f"session {self.session} has not pushed yet; the weights are of session {self.committed_session}"
        return WeightState(
            state=self.state,
            version=self.version,
            session=self.session,
            newest_session=self.newest_session,
            trainer_id=self.trainer_id,
            lease_left_s=max(self.lease_until_s - now_s, 0.0) if self.session is not None else None,
            reason=reason,
            last_push=self.last_push,
            verified_by=list(self.verified_by) if self.state == "current" else [],
        )


def open_session(
    weights: Weights,
    *,
    session: int,
    trainer_id: str,
    lease_s: float,
    take_over: bool,
    now_s: float,
    continues: int | None = None,
) -> Weights:
    """Open a session for a trainer. It replaces the trainer's own older session at once, and another trainer's
    session after its lease or with `take_over`. `continues`: the older session whose requests go on, if it is that
    session that the server has.

    Raises Refusal (409) when the session is not newer than all before it, or when another trainer's lease runs.
    """
    if weights.newest_session is not None and session <= weights.newest_session:
        raise Refusal.conflict(
            "old_session",
            f"session {session} is not newer than session {weights.newest_session}, which this server has seen",
            f"send a number above {weights.newest_session}: the current time in epoch milliseconds, where clocks agree",
        )
    foreign = weights.trainer_id is not None and weights.trainer_id != trainer_id
    held = weights.session is not None and now_s < weights.lease_until_s
    if foreign and held and not take_over:
        raise Refusal.conflict(
            "session_held",
            f"trainer {weights.trainer_id} holds session {weights.session}; its lease runs for another "
            f"{weights.lease_until_s - now_s:.0f} s",
            "wait for the end of the lease, or send take_over to fence that trainer off",
        )
    continued: frozenset[int] = frozenset()
    if continues is not None and continues == weights.session and not foreign:
        continued = weights.continued | {continues}
    opened = replace(
        weights,
        session=session,
        newest_session=session,
        continued=continued,
        frozen_until_s=weights.frozen_until_s if continued else None,
        trainer_id=trainer_id,
        lease_s=lease_s,
        lease_until_s=now_s + lease_s,
        has_group=False,
    )
    if opened.push is not None:
        opened = fail(opened, f"session {session} of trainer {trainer_id} replaced the session that was pushing")
    # Adapters stay: their names keep the trainers apart, and the new trainer's requests wait for its own push.
    if opened.state == "current" and opened.served_kind == "full" and foreign:
        return fail(opened, f"trainer {trainer_id} took over and has not committed a push yet")
    return opened


def renew(weights: Weights, *, session: int, now_s: float) -> Weights:
    """Renew the lease, at any weights call of the session. Raises Refusal (409) as `require_session` does."""
    require_session(weights, session)
    return replace(weights, lease_until_s=now_s + weights.lease_s)


def require_session(weights: Weights, session: int) -> None:
    """Raises Refusal (409) when `session` is not the current session: its trainer has been fenced off or has left."""
    if weights.session != session:
        raise _not_current(weights, session)


def _not_current(weights: Weights, session: int) -> Refusal:
    if weights.session is None:
        return Refusal.conflict(
            "no_session", f"session {session} is over: the server has no session", "join with a new session"
        )
    return Refusal.conflict(
        "fenced",
        f"session {session} is over: the server belongs to session {weights.session} of {weights.trainer_id}",
        "two trainers, or two processes of one run, use this server: stop one process",
    )


def require_current(weights: Weights, session: int) -> None:
    """Raises Refusal (409) when `session` is neither the current session nor one that it continues."""
    if not weights.is_current(session):
        raise _not_current(weights, session)


def close_session(weights: Weights) -> Weights:
    """Close the session. The served weights stay, unless a push was under way."""
    closed = replace(
        weights,
        session=None,
        continued=frozenset(),
        trainer_id=None,
        lease_until_s=0.0,
        has_group=False,
        frozen_until_s=None,
    )
    return fail(closed, "the trainer closed its session during a push") if closed.push is not None else closed


def not_joined(weights: Weights) -> Weights:
    """The session's group did not form. A session that continues another stays for the next one to continue; any other
    closes, and another trainer need not wait for its lease."""
    return weights if weights.continued else close_session(weights)


def begin(
    weights: Weights, *, version: int, deadline_s: float, now_s: float, kind: Kind = "full"
) -> tuple[Weights, Push]:
    """Start a push. Call `renew` first.

    Raises Refusal (409) when a push is under way, the version does not grow, there is no process group, an adapter's
    base has been overwritten, or a session that serves adapters pushes all weights.
    """
    if weights.session is None:
        raise Refusal.conflict("no_session", "the server has no session", "join with a new session")
    if weights.push is not None:
        raise Refusal.conflict(
            "push_in_progress", f"a push of version {weights.push.version} is under way", "commit or abort it first"
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
            f"version {version} is not newer than the served version {weights.version}",
            "raise the version with every push of a session",
        )
    _check_kind(weights, kind)
    push = Push(
        number=weights.num_pushes + 1,
        session=weights.session,
        version=version,
        deadline_at_s=now_s + deadline_s,
        served_before=weights.serves,
        kind=kind,
    )
    begun = replace(weights, reason=None, push=push, num_pushes=push.number, frozen_until_s=None)
    return begun if kind == "lora" else replace(begun, state="loading", base_overwritten=True), push


def _check_kind(weights: Weights, kind: Kind) -> None:
    """Raises Refusal (409) for an adapter without its base, and for a push of the other kind in mid-run."""
    if weights.served_kind == "lora" and kind == "full" and weights.committed_session == weights.session:
        raise Refusal.conflict(
            "other_kind",
            f"a push of the other kind in mid-run: session {weights.session} serves adapters and pushes all weights",
            "push adapters, or join with a new session",
        )
    if kind == "lora" and weights.base_overwritten:
        raise Refusal.conflict(
            "base_overwritten",
            "an adapter needs the weights as loaded from disk, and a push of all weights has overwritten them",
            "start the server again",
        )


def check_commit(weights: Weights, *, version: int, digest: str) -> Push | None:
    """Return the push that this commit names, or None when the same commit has already succeeded. Call `renew` first.

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
            "wrong_version",
            f"version {weights.push.version} is being pushed, not {version}",
            "commit or abort it first",
        )
    return weights.push


def commit(
    weights: Weights, push: Push, *, digest: str, num_bytes: int, seconds: float, probed: bool = False
) -> Weights:
    """Serve a push that has arrived and is verified. Raises Refusal (409) when the push is no longer under way."""
    if weights.push is not push:
        raise Refusal.conflict("not_loading", weights.reason or "another push has begun", "begin a new push")
    return replace(
        weights,
        state="current",
        version=push.version,
        committed_session=push.session,
        served_kind=push.kind,
        reason=None,
        push=None,
        last_push=LastPush(seconds=seconds, bytes=num_bytes, digest=digest),
        verified_by=("probe",) if probed else (),
    )


def canary_agreed(weights: Weights, *, version: int) -> Weights:
    """Note that the trainer computes the same logprobs as this server, if `version` is still what is served."""
    serves_it = weights.state == "current" and weights.version == version
    if not serves_it or weights.committed_session != weights.session or "canary" in weights.verified_by:
        return weights
    return replace(weights, verified_by=(*weights.verified_by, "canary"))


def fail(weights: Weights, reason: str) -> Weights:
    """Mark the weights stale: neither the served nor the loading weights can be trusted any more.

    A failed adapter push changes nothing: the adapter before it is still whole.
    """
    push = weights.push
    if push is None:
        return replace(weights, state="stale", reason=reason)
    if push.kind == "lora":
        return replace(weights, reason=reason, push=None)
    frozen_until_s = push.deadline_at_s if weights.is_current(push.session) else None
    return replace(weights, state="stale", reason=reason, push=None, frozen_until_s=frozen_until_s)


def give_up_frozen(weights: Weights) -> Weights:
    """No push has gone on with the frozen sequences of a failed one in time."""
    return replace(weights, frozen_until_s=None)


def set_group(weights: Weights, session: int, *, has_group: bool) -> Weights:
    """Record that the session's process group has formed, or that it is gone and the trainer must join again."""
    return replace(weights, has_group=has_group) if weights.session == session else weights


def check_request(weights: Weights, *, session: int | None, min_version: int | None) -> None:
    """Check that a sampling request may be served. A request without `session` gets whatever weights are served.

    Raises Refusal: 503 while no weights are served, 409 for another session or a version that is not served yet.
    """
    if not weights.serves:
        raise not_serving(weights)
    if session is None:
        return
    require_current(weights, session)
    if not weights.are_of(session):
        raise Refusal.conflict(
            "no_weights_yet", f"session {session} has not committed a push yet", "push before sampling"
        )
    if min_version is not None and min_version > weights.version:
        raise Refusal.conflict(
            "version_behind",
            f"version {min_version} is requested, version {weights.version} is served",
            "push that version first",
        )


def not_begun(weights: Weights) -> Refusal:
    """Return the refusal of a push that has failed before the workers were ready for it."""
    if not weights.serves:
        return not_serving(weights)
    return Refusal.busy(503, "push_failed", f"the push failed, and changed nothing: {weights.reason}", 1.0)


def not_serving(weights: Weights) -> Refusal:
    """Return the refusal of a sampling request while no weights are served."""
    if weights.state == "loading":
        return Refusal.busy(
            503, "weights_loading", "weights load after a failure; requests are refused until the push commits", 5.0
        )
    return Refusal(
        503,
        "weights_stale",
        f"the weights are stale: {weights.reason}",
        hint="only a full push that commits ends this state",
        retryable=True,
    )
