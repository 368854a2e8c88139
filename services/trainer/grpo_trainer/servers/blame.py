"""Decide which members are at fault when a push fails: pure functions of the members' answers."""

from collections.abc import Collection, Mapping

from grpo_proto import ConflictError, DataError, FatalError, InfrastructureError, ServiceError, WeightState

HELD = {"session_held", "fenced"}
"""Refusals of a server that belongs to another trainer, or to a newer process of this run."""
PASSING = {
    "no_session",
    "old_session",
    "no_group",
    "push_in_progress",
    "not_loading",
    "wrong_version",
    "digest_mismatch",
}
"""Refusals of a server that lost its session or received broken data: a new session may succeed."""


class MemberFailed(Exception):  # noqa: N818 - it names the failed members; the push decides whether that is an error
    """Some members of a session failed: `failures`, by URL.

    `decided`: these members are at fault. False when one of them is, and the answers do not show which.
    """

    def __init__(self, failures: Mapping[str, BaseException], *, decided: bool = True):
        self.failures, self.decided = failures, decided
        super().__init__("; ".join(f"{url}: {error}" for url, error in failures.items()))


def is_final(error: MemberFailed, *, num_members: int, all_failed_before: bool) -> bool:
    """Whether repeating the push is useless: another trainer holds a server, or all members refuse alike.

    A refusal that may pass (`PASSING`) is final only after every member has been at fault before in this push.
    """
    errors = list(error.failures.values())
    if any(isinstance(e, ConflictError) and e.detail.type in HELD for e in errors):
        return True
    if len(errors) < num_members or any(isinstance(e, InfrastructureError) for e in errors):
        return False
    refusals = {e.detail.type for e in errors if isinstance(e, ConflictError | DataError | FatalError)}
    return len(refusals) == 1 and (all_failed_before or not refusals <= PASSING)


def who_kept_it_from_forming(failures: Mapping[str, BaseException], arrived: Collection[str]) -> MemberFailed:
    """Blame the members that failed for another reason than that the group did not form.

    Without such members, blame those that have not `arrived` at the rendezvous. A member that arrived may still be
    unreachable for the others: only a group with that member alone decides.
    """
    others = {url: error for url, error in failures.items() if not _not_formed(error)}
    missing = {url: error for url, error in failures.items() if url not in arrived}
    if others:
        return MemberFailed(others)
    if 0 < len(missing) < len(failures):
        return MemberFailed(missing)
    return MemberFailed(failures, decided=len(failures) == 1)


def who_broke_it_off(answers: Mapping[str, WeightState | ServiceError]) -> dict[str, str]:
    """Why each member at fault broke off the push, from its answer to the abort; empty when the answers do not decide.

    Blames, in this order, members that do not answer, members that could not load a bucket, and members that received
    fewer buckets than the others.
    """
    silent = {url: str(answer) for url, answer in answers.items() if isinstance(answer, ServiceError)}
    failures = {url: answer.push_failure for url, answer in answers.items() if isinstance(answer, WeightState)}
    reasons = {url: answer.reason or "" for url, answer in answers.items() if isinstance(answer, WeightState)}
    broken = {url: reasons[url] for url, failure in failures.items() if failure and failure.failed_to_load}
    counts = {url: failure.num_buckets for url, failure in failures.items() if failure}
    most = max(counts.values(), default=0)
    behind = {url: reasons[url] for url, count in counts.items() if count < most} if len(counts) == len(answers) else {}
    for blamed in (silent, broken, behind):
        if 0 < len(blamed) < len(answers) or (blamed and len(answers) == 1):
            return blamed
    return {}


def _not_formed(error: BaseException) -> bool:
    return isinstance(error, ServiceError) and error.detail.type == "group_not_formed"
