"""Who is at fault when a push fails: pure functions from what the members say."""

from collections.abc import Collection, Mapping

from grpo_proto import ConflictError, DataError, FatalError, InfrastructureError, ServiceError, WeightState

HELD = {"session_held", "fenced"}
"""Refusals of a server that another trainer, or a newer process of this run, holds."""
PASSING = {
    "no_session",
    "old_session",
    "no_group",
    "push_in_progress",
    "not_loading",
    "wrong_version",
    "digest_mismatch",
}
"""Refusals of a server that lost its session or what came: another attempt, with a new session, may succeed."""


class MemberFailed(Exception):  # noqa: N818 - it says who failed, the push decides whether that is an error
    """Some members of a session did not do their part: `failures`, by URL.

    `decided`: they are at fault. False when all of them only suffer from what one of them did.
    """

    def __init__(self, failures: Mapping[str, BaseException], *, decided: bool = True):
        self.failures, self.decided = failures, decided
        super().__init__("; ".join(f"{url}: {error}" for url, error in failures.items()))


def is_final(error: MemberFailed, *, num_members: int, all_failed_before: bool) -> bool:
    """Whether no repetition of the push helps: somebody else holds a server, or all members refuse alike.

    When all refuse for what may pass, only once all have been at fault before in this push.
    """
    errors = list(error.failures.values())
    if any(isinstance(e, ConflictError) and e.detail.type in HELD for e in errors):
        return True
    if len(errors) < num_members or any(isinstance(e, InfrastructureError) for e in errors):
        return False
    refusals = {e.detail.type for e in errors if isinstance(e, ConflictError | DataError | FatalError)}
    return len(refusals) == 1 and (all_failed_before or not refusals <= PASSING)


def who_kept_it_from_forming(failures: Mapping[str, BaseException], came: Collection[str]) -> MemberFailed:
    """Who says something else than that the group did not form; otherwise who never `came` to the rendezvous.

    A member that came may still be one that nobody can connect to: only a group with it alone tells.
    """
    others = {url: error for url, error in failures.items() if not _not_formed(error)}
    missing = {url: error for url, error in failures.items() if url not in came}
    if others:
        return MemberFailed(others)
    if 0 < len(missing) < len(failures):
        return MemberFailed(missing)
    return MemberFailed(failures, decided=len(failures) == 1)


def who_broke_it_off(told: Mapping[str, WeightState | ServiceError]) -> dict[str, str]:
    """Why each member at fault broke off the push that `told` is said of; empty when that does not decide.

    In this order: who does not answer, who could not load what came, who is behind the others.
    """
    silent = {url: str(answer) for url, answer in told.items() if isinstance(answer, ServiceError)}
    failures = {url: answer.push_failure for url, answer in told.items() if isinstance(answer, WeightState)}
    reasons = {url: answer.reason or "" for url, answer in told.items() if isinstance(answer, WeightState)}
    broken = {url: reasons[url] for url, failure in failures.items() if failure and failure.failed_to_load}
    counts = {url: failure.num_buckets for url, failure in failures.items() if failure}
    most = max(counts.values(), default=0)
    behind = {url: reasons[url] for url, count in counts.items() if count < most} if len(counts) == len(told) else {}
    for some in (silent, broken, behind):
        if 0 < len(some) < len(told) or (some and len(told) == 1):
            return some
    return {}


def _not_formed(error: BaseException) -> bool:
    return isinstance(error, ServiceError) and error.detail.type == "group_not_formed"
