"""The state machine: every transition, every refusal, and what a random walk may never reach."""

import random
from dataclasses import replace

import pytest

from grpo_proto.messages.weights import Kind
from grpo_proto.server.refusal import Refusal
from grpo_rollout import weight_state
from grpo_rollout.weight_state import Push, Weights

LEASE_S = 100.0


def joined(weights: Weights | None = None, *, session: int = 10, trainer_id: str = "a", now_s: float = 0.0, **options):
    """With a session whose process group has formed."""
    opened = weight_state.open_session(
        weights or Weights(),
        **{"session": session, "trainer_id": trainer_id, "lease_s": LEASE_S, "take_over": False, "now_s": now_s}
        | options,
    )
    return weight_state.set_group(opened, session, has_group=True)


def loading(weights: Weights | None = None, *, version: int = 1, kind: Kind = "full") -> tuple[Weights, Push]:
    return weight_state.begin(weights or joined(), version=version, deadline_s=60.0, now_s=0.0, kind=kind)


def committed(weights: Weights | None = None, *, version: int = 1, digest: str = "d", kind: Kind = "full") -> Weights:
    begun, push = loading(weights, version=version, kind=kind)
    return weight_state.commit(begun, push, digest=digest, num_bytes=8, seconds=0.1)


def refusal(status: int, type: str):
    return pytest.raises(Refusal, check=lambda refused: (refused.status, refused.detail.type) == (status, type))


class TestTheWayToCurrent:
    def test_a_new_server_is_initial_and_serves_strangers(self):
        weights = Weights()
        assert (weights.state, weights.version, weights.serves, weights.ready) == ("initial", 0, True, True)

    def test_with_a_session_it_is_not_ready_before_its_first_weights(self):
        assert joined().serves
        assert not joined().ready
        assert committed().ready

    def test_begin_then_commit(self):
        weights, push = loading()
        assert (weights.state, weights.push, weights.version) == ("loading", push, 0)
        weights = weight_state.commit(weights, push, digest="d", num_bytes=8, seconds=0.1)
        assert (weights.state, weights.version, weights.push) == ("current", 1, None)
        assert weights.last_push.digest == "d"

    def test_loading_serves_when_the_server_did_before(self):
        assert loading(joined())[0].serves
        assert loading(committed(), version=2)[0].ready
        assert not loading(weight_state.fail(joined(), "x"))[0].serves

    def test_versions_grow_within_a_session(self):
        weights = committed(version=5)
        for version in (4, 5):
            with refusal(409, "old_version"):
                loading(weights, version=version)
        assert loading(weights, version=6)

    def test_a_new_session_counts_anew(self):
        weights = joined(committed(version=5), session=11)
        assert committed(weights, version=1).version == 1

    def test_a_failed_version_may_be_pushed_again(self):
        weights = weight_state.fail(loading(version=3)[0], "x")
        assert committed(weights, version=3).version == 3


class TestStale:
    def test_only_a_commit_ends_it(self):
        weights = weight_state.fail(committed(), "broken")
        assert (weights.state, weights.reason, weights.serves) == ("stale", "broken", False)
        assert weight_state.close_session(weights).state == "stale"
        assert joined(weights, session=11).state == "stale"
        begun, push = loading(weights, version=2)
        assert begun.reason is None
        assert weight_state.commit(begun, push, digest="d", num_bytes=1, seconds=1).state == "current"

    def test_late_news_of_an_old_push_change_nothing(self):
        weights, old = loading()
        weights, _ = loading(weight_state.fail(weights, "x"))
        with refusal(409, "not_loading"):
            weight_state.commit(weights, old, digest="d", num_bytes=1, seconds=1)

    def test_pushes_with_equal_content_are_told_apart(self):
        first, old = loading()
        _, new = loading(weight_state.fail(first, "x"))
        assert (old.session, old.version) == (new.session, new.version)
        assert old != new

    def test_nobody_is_served(self):
        with refusal(503, "weights_stale"):
            weight_state.check_request(weight_state.fail(committed(), "x"), session=None, min_version=None)
        with refusal(503, "weights_loading"):
            weight_state.check_request(loading(weight_state.fail(joined(), "x"))[0], session=None, min_version=None)


class TestContinued:
    """A session that continues another one of the same start: what was asked for in that one goes on."""

    def test_requests_of_the_session_before_are_served_under_the_new_number(self):
        weights = joined(committed(), session=11, continues=10)
        for session in (10, 11):
            weight_state.check_request(weights, session=session, min_version=1)
        weights = committed(joined(weights, session=12, continues=11), version=2)
        for session in (10, 11, 12):
            weight_state.check_request(weights, session=session, min_version=2)

    def test_pushes_belong_to_the_new_session_alone(self):
        weights = joined(committed(version=5), session=11, continues=10)
        with refusal(409, "fenced"):
            weight_state.renew(weights, session=10, now_s=0.0)
        assert committed(weights, version=5).version == 5, "one of the members may have committed it before the others"

    @pytest.mark.parametrize("other", [{"continues": None}, {"continues": 9}, {"continues": 10, "trainer_id": "b"}])
    def test_what_another_process_was_asked_for_ends(self, other: dict[str, object]):
        weights = joined(committed(), session=11, take_over=True, **other)
        with refusal(409, "fenced"):
            weight_state.require_current(weights, 10)

    def test_frozen_sequences_wait_for_another_push_until_the_deadline_of_the_one_that_failed(self):
        failed = weight_state.fail(loading(committed(), version=2)[0], "a member is lost")
        assert (failed.state, failed.frozen_until_s) == ("stale", 60.0)
        continued = joined(failed, session=11, continues=10)
        assert continued.frozen_until_s == 60.0
        begun, push = loading(continued, version=2)
        assert begun.frozen_until_s is None, "the deadline is that of the new push"
        assert weight_state.commit(begun, push, digest="d", num_bytes=1, seconds=1).frozen_until_s is None
        assert weight_state.fail(begun, "another").frozen_until_s == 60.0

    def test_a_session_that_replaces_a_pushing_one_keeps_its_sequences_frozen_if_it_continues_it(self):
        pushing = loading(committed(), version=2)[0]
        assert joined(pushing, session=11, continues=10).frozen_until_s == 60.0
        assert joined(pushing, session=11).frozen_until_s is None

    def test_nobody_waits_when_no_push_can_go_on_with_them(self):
        failed = weight_state.fail(loading(committed(), version=2)[0], "x")
        assert joined(failed, session=11).frozen_until_s is None
        assert weight_state.close_session(failed).frozen_until_s is None
        assert weight_state.fail(committed(), "the canary").frozen_until_s is None

    def test_a_group_that_does_not_form_leaves_the_requests_to_the_next_session(self):
        tried = weight_state.not_joined(joined(committed(), session=11, continues=10))
        weight_state.check_request(joined(tried, session=12, continues=11), session=10, min_version=1)
        assert weight_state.not_joined(joined(committed(), session=11)).session is None


class TestSessions:
    def test_another_trainer_waits_for_the_lease(self):
        weights = joined(now_s=0.0)
        with refusal(409, "session_held"):
            joined(weights, session=11, trainer_id="b", now_s=LEASE_S - 1)
        assert joined(weights, session=11, trainer_id="b", now_s=LEASE_S).session == 11

    def test_any_weights_call_renews_the_lease(self):
        weights = weight_state.renew(joined(now_s=0.0), session=10, now_s=50.0)
        with refusal(409, "session_held"):
            joined(weights, session=11, trainer_id="b", now_s=LEASE_S + 1)

    def test_take_over_fences_the_other_off(self):
        weights = joined(committed(), session=11, trainer_id="b", take_over=True)
        assert weights.state == "stale"
        assert "b took over" in weights.reason
        with refusal(409, "fenced"):
            weight_state.renew(weights, session=10, now_s=0.0)

    def test_take_over_of_a_server_without_weights_leaves_it_initial(self):
        assert joined(joined(), session=11, trainer_id="b", take_over=True).state == "initial"

    def test_the_same_trainer_replaces_its_own_session_at_once(self):
        weights = joined(committed(), session=11)
        assert (weights.state, weights.session, weights.version) == ("current", 11, 1)
        assert "10" in weights.message(now_s=0.0).reason
        with refusal(409, "fenced"):
            weight_state.renew(weights, session=10, now_s=0.0)

    def test_a_push_under_way_ends_with_its_session(self):
        assert joined(loading()[0], session=11).state == "stale"
        assert weight_state.close_session(loading()[0]).state == "stale"

    @pytest.mark.parametrize("session", [9, 10])
    def test_session_numbers_grow(self, session: int):
        with refusal(409, "old_session"):
            joined(weight_state.close_session(joined()), session=session, trainer_id="b")

    def test_closing_keeps_what_is_served_and_frees_the_lease(self):
        weights = weight_state.close_session(committed())
        assert weights.message(now_s=0.0).newest_session == 10  # for a trainer whose clock is behind
        assert (weights.state, weights.version, weights.session) == ("current", 1, None)
        assert joined(weights, session=11, trainer_id="b").state == "current"

    def test_a_push_needs_a_process_group(self):
        weights = weight_state.set_group(joined(), 10, has_group=False)
        with refusal(409, "no_group"):
            loading(weights)
        assert loading(joined(weights, session=11))

    def test_a_group_broken_by_an_older_session_is_not_the_new_ones(self):
        assert weight_state.set_group(joined(joined(), session=11), 10, has_group=False).has_group

    def test_begin_needs_a_session_and_no_other_push(self):
        with refusal(409, "no_session"):
            loading(Weights())
        with refusal(409, "push_in_progress"):
            loading(loading()[0], version=2)


class TestCommit:
    def test_it_names_the_version_under_way(self):
        weights, push = loading(version=3)
        assert weight_state.check_commit(weights, version=3, digest="d") is push
        with refusal(409, "wrong_version"):
            weight_state.check_commit(weights, version=4, digest="d")

    def test_a_repeated_commit_is_answered_and_another_one_is_not(self):
        weights = committed(version=3, digest="d")
        assert weight_state.check_commit(weights, version=3, digest="d") is None
        with refusal(409, "not_loading"):
            weight_state.check_commit(weights, version=3, digest="e")
        with refusal(409, "not_loading"):
            weight_state.check_commit(joined(weights, session=11), version=3, digest="d")

    def test_after_a_failure_it_says_why(self):
        with pytest.raises(Refusal, match="the cable"):
            weight_state.check_commit(weight_state.fail(loading()[0], "the cable"), version=1, digest="d")


class TestRequests:
    def check(self, weights: Weights, session: int | None = 10, min_version: int | None = None) -> None:
        weight_state.check_request(weights, session=session, min_version=min_version)

    def test_a_session_is_served_its_own_weights(self):
        self.check(committed(version=3), min_version=3)
        with refusal(409, "version_behind"):
            self.check(committed(version=3), min_version=4)
        with refusal(409, "fenced"):
            self.check(committed(), session=9)

    def test_not_before_it_has_pushed(self):
        with refusal(409, "no_weights_yet"):
            self.check(joined())
        with refusal(409, "no_weights_yet"):
            self.check(joined(committed(version=5), session=11), session=11, min_version=1)

    def test_a_stranger_gets_what_is_there(self):
        for weights in (Weights(), joined(), committed(), loading()[0]):
            self.check(weights, session=None)

    def test_a_request_does_not_renew_the_lease(self):
        weights = committed()
        self.check(weights)
        assert weights.lease_until_s == LEASE_S


class TestAdapters:
    def test_what_is_served_stays_until_the_commit(self):
        weights = committed(kind="lora")
        begun, push = loading(weights, version=2, kind="lora")
        assert (begun.state, begun.version, begun.ready, begun.push) == ("current", 1, True, push)
        after = weight_state.commit(begun, push, digest="e", num_bytes=8, seconds=0.1)
        assert (after.state, after.version, after.push, after.served_kind) == ("current", 2, None, "lora")

    def test_the_first_leaves_the_server_initial_meanwhile(self):
        begun, _ = loading(kind="lora")
        assert (begun.state, begun.serves, begun.ready) == ("initial", True, False)
        assert weight_state.fail(begun, "x").state == "initial"

    def test_a_failed_push_changes_nothing(self):
        before = committed(kind="lora")
        begun, push = loading(before, version=2, kind="lora")
        after = weight_state.fail(begun, "the cable")
        assert after == replace(before, reason="the cable", num_pushes=2)
        with refusal(409, "not_loading"):
            weight_state.commit(after, push, digest="d", num_bytes=8, seconds=0.1)
        with pytest.raises(Refusal, match="the cable"):
            weight_state.check_commit(after, version=2, digest="d")
        assert weight_state.not_begun(after).status == 503
        assert committed(after, version=2, kind="lora").reason is None

    def test_it_ends_with_its_session_and_the_version_before_stays(self):
        before = committed(kind="lora")
        begun, _ = loading(before, version=2, kind="lora")
        closed = weight_state.close_session(begun)
        replaced = joined(begun, session=11)
        taken = joined(begun, session=11, trainer_id="b", take_over=True)
        for after in (closed, replaced, taken):
            assert (after.state, after.version, after.committed_session, after.push) == ("current", 1, 10, None)
        assert "replaced the session that was pushing" in taken.message(now_s=0.0).reason
        with refusal(409, "no_weights_yet"):
            weight_state.check_request(taken, session=11, min_version=None)

    def test_its_base_is_gone_once_a_push_of_all_weights_has_begun(self):
        for weights in (committed(), weight_state.fail(loading()[0], "x")):
            for base in (weights, joined(weights, session=11)):
                with refusal(409, "base_overwritten"):
                    loading(base, version=2, kind="lora")

    def test_a_session_pushes_one_kind(self):
        weights = committed(kind="lora")
        with refusal(409, "other_kind"):
            loading(weights, version=2)
        begun, push = loading(joined(weights, session=11), version=1)
        assert begun.state == "loading"
        assert weight_state.commit(begun, push, digest="d", num_bytes=8, seconds=0.1).served_kind == "full"

    def test_versions_grow(self):
        with refusal(409, "old_version"):
            loading(committed(version=3, kind="lora"), version=3, kind="lora")
        with refusal(409, "push_in_progress"):
            loading(loading(kind="lora")[0], version=2, kind="lora")


def test_no_walk_breaks_the_invariants():
    """Random calls on fresh servers: the state always fits its fields, and stale is left by no way but loading."""
    rng = random.Random(0)
    weights, now_s, session = Weights(), 0.0, 0
    for step in range(10_000):
        if step % 500 == 0:
            weights, session = Weights(), 0  # a server started again: its base is whole
        now_s += rng.random() * 10
        before = weights
        try:
            match rng.randrange(6):
                case 0:
                    session += rng.randrange(2)
                    weights = joined(
                        weights,
                        session=session,
                        trainer_id=rng.choice("ab"),
                        now_s=now_s,
                        take_over=rng.random() < 0.3,
                    )
                case 1:
                    weights = weight_state.close_session(weights)
                case 2 | 3:
                    # Of all weights seldom: no adapter follows on them.
                    kind = "full" if rng.random() < 0.01 or weights.base_overwritten else "lora"
                    version = rng.randrange(1, 9)
                    weights, _ = weight_state.begin(weights, version=version, deadline_s=9, now_s=now_s, kind=kind)
                case 4:
                    push = weights.push or Push(-1, 1, 1, 0.0, False)
                    weights = weight_state.commit(weights, push, digest="d", num_bytes=1, seconds=1)
                case 5 if rng.random() < 0.3 and (weights.push is not None or weights.served_kind == "full"):
                    weights = weight_state.fail(weights, "x")
        except Refusal:
            assert weights is before
        of_all = weights.push is not None and weights.push.kind == "full"
        assert (weights.state == "loading") == of_all
        assert (weights.state == "stale") <= (weights.reason is not None)
        if weights.push is not None:
            assert weights.reason is None
        if before.push is not None and before.push.kind == "lora":
            assert weights.serves == before.serves
            assert (weights.version, weights.committed_session) in (
                (before.version, before.committed_session),
                (before.push.version, before.push.session),
            )
        assert (weights.session is None) == (weights.trainer_id is None)
        assert weights.message(now_s=0.0).version == weights.version
        if before.state == "stale":
            assert weights.state in ("stale", "loading")
        if weights.state == "current" and before.state != "current":
            assert before.state == "loading" or before.push.kind == "lora"
            assert weights.committed_session == weights.session
        if weights.state == "initial":
            assert weights == replace(weights, version=0, committed_session=None)
