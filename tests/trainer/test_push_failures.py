"""What a failed push means: who is at fault, whether it is tried again, and with whom."""

import pytest

from grpo_proto import ConflictError, DataError, ErrorDetail, InfrastructureError, ServiceError
from grpo_trainer.fleet.attendance import Attendance, MemberFailed, MemberLostError, is_final
from grpo_trainer.fleet.fleet import Fleet, Replica

from .test_fleet import info

KINDS = {409: ConflictError, 422: DataError, 503: InfrastructureError, 504: InfrastructureError}


def error(type: str, status: int) -> ServiceError:
    return KINDS[status](ErrorDetail(type=type, message=type, retryable=status > 500), url="http://a", status=status)


HELD, FENCED = error("session_held", 409), error("fenced", 409)
LOST, MISMATCH, REFUSED = error("not_loading", 409), error("digest_mismatch", 422), error("manifest_mismatch", 422)
SILENT, LOST_MEMBER = error("unreachable", 503), MemberLostError("its worker 0 was silent for 5 s")


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
        ({"a": LOST_MEMBER, "b": LOST_MEMBER}, True, False),
    ],
)
def test_only_another_holder_and_what_all_refuse_alike_is_final(
    failures: dict[str, Exception], failed_before: bool, final: bool
):
    assert is_final(MemberFailed(failures), num_members=2, all_failed_before=failed_before) is final


def two_servers() -> list[Replica]:
    replicas = Fleet(["http://a", "http://b"], min_replicas=1).replicas
    for replica in replicas:
        replica.info = info(server_id=replica.url)
    return replicas


def pushes_until_tried_again(attendance: Attendance, replicas: list[Replica]) -> int:
    count = 0
    while attendance.present(replicas, minimum=1) == replicas[:1]:
        attendance.committed(replicas[:1])
        count += 1
    return count


def test_a_server_that_refuses_is_tried_once_more_and_comes_back_after_1_2_and_4_pushes():
    attendance, replicas = Attendance(), two_servers()
    attendance.failed(replicas[1], LOST)
    assert attendance.present(replicas, minimum=1) == replicas
    assert not attendance.on_trial(replicas[1])
    attendance.failed(replicas[1], LOST)
    waits = []
    for _ in range(3):
        waits.append(pushes_until_tried_again(attendance, replicas))
        assert attendance.on_trial(replicas[1])
        attendance.leave_out(replicas[1], "the trial")
    assert waits == [1, 2, 4]
    assert pushes_until_tried_again(attendance, replicas) == 8
    attendance.committed(replicas)
    attendance.failed(replicas[1], LOST)
    assert attendance.present(replicas, minimum=1) == replicas, "after a push that it committed its record is clean"


def test_a_server_that_is_lost_is_left_out_at_once():
    attendance, replicas = Attendance(), two_servers()
    attendance.failed(replicas[1], LOST_MEMBER)
    assert attendance.present(replicas, minimum=1) == replicas[:1]


def test_nobody_is_left_out_below_the_minimum_and_a_restarted_server_is_a_new_one():
    attendance, replicas = Attendance(), two_servers()
    attendance.leave_out(replicas[1], "why")
    assert attendance.present(replicas, minimum=2) == replicas
    assert attendance.present(replicas, minimum=1) == replicas[:1]
    replicas[1].info = info(server_id="restarted")
    assert attendance.present(replicas, minimum=1) == replicas
