"""/readyz: when a server gets traffic, and which weights count."""

import pytest

from grpo_proto.messages.health import Health
from grpo_rollout import weight_state
from grpo_rollout.readiness import readyz
from grpo_rollout.weight_state import Weights
from tests.rollout.test_weight_state import committed, joined, loading

ALIVE = Health(ok=True)
LEFT, OVER = 30.0, 0.0


@pytest.mark.parametrize(
    ("weights", "any_weights", "in_time", "later"),
    [
        (Weights(), True, False, True),
        (joined(), False, False, False),
        (weight_state.close_session(joined()), True, False, False),
        (loading()[0], False, False, False),
        (loading(joined(), kind="lora")[0], False, False, False),
        (committed(), True, True, True),
        (committed(joined(), kind="lora"), True, True, True),
        (weight_state.close_session(committed()), True, True, True),
        (loading(committed(), version=2)[0], True, True, True),
        (weight_state.fail(committed(), "broken"), False, False, False),
    ],
)
def test_which_weights_count_before_and_after_the_time_for_a_trainer(
    weights: Weights, any_weights: bool, in_time: bool, later: bool
):
    found = [readyz(ALIVE, weights, trainer_left_s=left_s).ok for left_s in (None, LEFT, OVER)]
    assert found == [any_weights, in_time, later]


def test_it_says_what_it_waits_for():
    assert "waits 30 s more for a trainer" in str(readyz(ALIVE, Weights(), trainer_left_s=LEFT).detail)
    assert "first weights of session 10" in str(readyz(ALIVE, joined(), trainer_left_s=LEFT).detail)
    left = weight_state.close_session(joined())
    assert "session 10 ended before its first weights" in str(readyz(ALIVE, left, trainer_left_s=OVER).detail)


def test_a_dead_engine_is_never_ready():
    dead = Health(ok=False, detail="the engine process has died")
    assert readyz(dead, committed(), trainer_left_s=OVER) == dead
