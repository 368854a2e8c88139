"""What a failed push means: who is at fault, whether it is tried again, and with whom."""

import pytest

from grpo_proto import ConflictError, DataError, ErrorDetail, InfrastructureError, ServiceError, WeightState
from grpo_proto.messages.weights import PushFailure
from grpo_trainer.servers.absences import Absences
from grpo_trainer.servers.blame import MemberFailed, is_final, who_broke_it_off, who_kept_it_from_forming
from grpo_trainer.servers.fleet import Fleet, Replica

from .test_fleet import info

KINDS = {409: ConflictError, 422: DataError, 503: InfrastructureError, 504: InfrastructureError}


def error(type: str, status: int) -> ServiceError:
    return KINDS[status](ErrorDetail(type=type, message=type, retryable=status > 500), url="http://a", status=status)


def stale(num_buckets: int | None, *, failed_to_load: bool = False) -> WeightState:
    failure = None
    if num_buckets is not None:
        failure = PushFailure(num_buckets=num_buckets, failed_to_load=failed_to_load)
    return WeightState(state="stale", version=1, reason="why", push_failure=failure)


HELD, FENCED = error("session_held", 409), error("fenced", 409)
LOST, MISMATCH, REFUSED = error("not_loading", 409), error("digest_mismatch", 422), error("manifest_mismatch", 422)
NOT_FORMED, SILENT = error("group_not_formed", 504), error("unreachable", 503)


@pytest.mark.parametrize(
    ("failures", "failed_before", "final"),
    [
        ({"a": HELD}, False, True),
        ({"a": FENCED, "b": SILENT}, False, True),
        ({"a": REFUSED}, False, False),
        ({"a": REFUSED, "b": REFUSED}, False, True),
        ({"a": REFUSED, "b": LOST}, False, False),
        ({"a": REFUSED, "b": SILENT}, False, False),
        ({"a": LOST}, False, False),
        ({"a": LOST, "b": LOST}, False, False),
        ({"a": LOST, "b": LOST}, True, True),
        ({"a": MISMATCH, "b": MISMATCH}, False, False),
        ({"a": MISMATCH, "b": MISMATCH}, True, True),
        ({"a": SILENT, "b": SILENT}, True, False),
    ],
)
def test_only_another_holder_and_what_all_refuse_alike_is_final(
    failures: dict[str, ServiceError], failed_before: bool, final: bool
):
    assert is_final(MemberFailed(failures), num_members=2, all_failed_before=failed_before) is final


@pytest.mark.parametrize(
    ("failures", "came", "at_fault", "decided"),
    [
        ({"a": NOT_FORMED, "b": NOT_FORMED}, ["a"], {"b"}, True),
        ({"a": NOT_FORMED, "b": SILENT}, ["a", "b"], {"b"}, True),
        ({"a": NOT_FORMED, "b": NOT_FORMED}, ["a", "b"], {"a", "b"}, False),
        ({"a": NOT_FORMED, "b": NOT_FORMED}, [], {"a", "b"}, False),
        ({"a": NOT_FORMED}, ["a"], {"a"}, True),
    ],
)
def test_who_kept_a_group_from_forming(
    failures: dict[str, ServiceError], came: list[str], at_fault: set[str], decided: bool
):
    found = who_kept_it_from_forming(failures, came)
    assert (set(found.failures), found.decided) == (at_fault, decided)


@pytest.mark.parametrize(
    ("told", "at_fault"),
    [
        ({"a": stale(3), "b": SILENT}, {"b"}),
        ({"a": stale(3), "b": stale(3, failed_to_load=True)}, {"b"}),
        ({"a": stale(None), "b": stale(3, failed_to_load=True)}, {"b"}),
        ({"a": stale(4), "b": stale(3)}, {"b"}),
        ({"a": stale(3), "b": stale(3)}, set()),
        ({"a": stale(3), "b": stale(None)}, set()),
        ({"a": SILENT, "b": SILENT}, set()),
        ({"a": SILENT}, {"a"}),
        ({}, set()),
    ],
)
def test_who_broke_a_push_off(told: dict[str, WeightState | ServiceError], at_fault: set[str]):
    assert set(who_broke_it_off(told)) == at_fault


def two_servers() -> list[Replica]:
    replicas = Fleet(["http://a", "http://b"], min_replicas=1).replicas
    for replica in replicas:
        replica.info = info(server_id=replica.url)
    return replicas


def pushes_until_tried_again(absences: Absences, replicas: list[Replica]) -> int:
    count = 0
    while absences.chosen(replicas, minimum=1) == replicas[:1]:
        absences.committed(replicas[:1])
        count += 1
    return count


def test_a_server_at_fault_is_tried_once_more_and_comes_back_after_1_2_and_4_pushes():
    absences, replicas = Absences(), two_servers()
    absences.failed(replicas[1], "why")
    assert absences.chosen(replicas, minimum=1) == replicas
    absences.failed(replicas[1], "why")
    waits = []
    for _ in range(3):
        waits.append(pushes_until_tried_again(absences, replicas))
        absences.failed(replicas[1], "why")
    assert waits == [1, 2, 4]
    assert pushes_until_tried_again(absences, replicas) == 8
    absences.committed(replicas)
    absences.failed(replicas[1], "why")
    assert absences.chosen(replicas, minimum=1) == replicas, "after a push that it committed its record is clean"


def test_nobody_is_left_out_below_the_minimum_and_a_restarted_server_is_a_new_one():
    absences, replicas = Absences(), two_servers()
    absences.leave_out(replicas[1], "why")
    assert absences.chosen(replicas, minimum=2) == replicas
    assert absences.chosen(replicas, minimum=1) == replicas[:1]
    replicas[1].info = info(server_id="restarted")
    assert absences.chosen(replicas, minimum=1) == replicas
