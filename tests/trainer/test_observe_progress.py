"""Stage times, the progress line and bar, and the status that other threads read."""

import io
import logging
import threading

import pytest
from tests.trainer.fake_time import FakeTime

from grpo_trainer.observe.progress import Progress, describe_step, readable_duration
from grpo_trainer.observe.run_status import RunStatus
from grpo_trainer.observe.stage_clock import StageClock


def test_seconds_belong_to_the_innermost_stage():
    time, heard = FakeTime(), []
    clock = StageClock(now=time, on_stage=heard.append, earlier_totals={"train": 10.0})
    with clock.stage("train"):
        time.now += 2
        with clock.stage("push"):
            time.now += 3
        time.now += 1
    time.now += 0.5
    with clock.stage("train"):
        time.now += 1
    assert clock.end_step() == {"step_time": 7.5, "time/train_s": 4.0, "time/push_s": 3.0}
    assert clock.totals() == {"train": 14.0, "push": 3.0}
    assert heard[:3] == ["train", "push", "train"]
    time.now += 4
    assert clock.end_step() == {"step_time": 4.0}


def test_a_stage_that_fails_is_still_counted():
    time = FakeTime()
    clock = StageClock(now=time)

    def fail_after_2_s():
        time.now += 2
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"), clock.stage("score"):
        fail_after_2_s()
    assert clock.end_step()["time/score_s"] == 2.0


def test_a_part_of_a_wait_can_be_named_afterwards():
    time = FakeTime()
    clock = StageClock(now=time)
    with clock.stage("wait"):
        time.now += 5
    clock.move(2.0, origin="wait", to="score")
    assert clock.end_step() == {"step_time": 5.0, "time/wait_s": 3.0, "time/score_s": 2.0}


def test_a_step_cannot_end_inside_a_stage():
    clock = StageClock()
    with clock.stage("train"), pytest.raises(RuntimeError, match="train"):
        clock.end_step()


def test_a_step_in_words():
    metrics = {"reward": 0.41239, "accuracy": 0.3, "step_time": 4.2, "time/wait_s": 2.1, "time/push_s": 0.01}
    assert describe_step(metrics, time_left_s=360) == "reward 0.412  accuracy 0.300  6 min left  4.2 s (wait 2.1)"
    assert "reward" not in describe_step({"step_time": 1.0}, time_left_s=1.0), "what is unknown is left out"


@pytest.mark.parametrize(("seconds", "words"), [(42, "42 s"), (600, "10 min"), (11100, "3 h 05 min")])
def test_durations_in_words(seconds: float, words: str):
    assert readable_duration(seconds) == words


def test_a_line_per_step_where_there_is_no_terminal(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.INFO), Progress(4, stream=io.StringIO()) as progress:
        progress.stage("train")
        progress.step_done(1, {"reward": 0.5, "step_time": 20.0})
        progress.step_done(2, {"reward": 0.75, "step_time": 40.0})
    first, second = (record.getMessage() for record in caplog.records)
    assert first == "step 1/4  reward 0.500  60 s left  20.0 s"
    assert second == "step 2/4  reward 0.750  60 s left  40.0 s"


def test_a_bar_on_a_terminal(caplog: pytest.LogCaptureFixture):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    with caplog.at_level(logging.INFO), Progress(10, first_step=5, stream=terminal) as progress:
        assert "4/10" in terminal.getvalue(), "a resumed run begins where it was"
        progress.step_done(5, {"reward": 0.5, "accuracy": 0.25, "step_time": 2.0, "time/train_s": 1.5})
        progress.stage("push")
    shown = terminal.getvalue()
    assert "5/10" in shown
    assert "reward 0.500  accuracy 0.250  10 s left  2.0 s (train 1.5)" in shown
    assert "push     reward 0.500" in shown, "the stage that runs now"
    assert not caplog.records


def test_no_progress_when_it_is_switched_off(caplog: pytest.LogCaptureFixture):
    stream = io.StringIO()
    with caplog.at_level(logging.INFO), Progress(4, enabled=False, stream=stream) as progress:
        progress.step_done(1, {"step_time": 1.0})
    assert stream.getvalue() == ""
    assert not caplog.records


def test_the_status_counts_and_dates_what_the_loop_tells():
    status = RunStatus("demo", max_steps=10, heartbeat_bound_s=60.0)
    status.enter_stage("train")
    status.pushed(1, seconds=0.5, num_bytes=1000)
    status.pushed(2, seconds=0.25, num_bytes=1000)
    status.dropped("stale", 8)
    status.dropped("stale", 4)
    status.step_done(2, {"reward": 0.5}, seconds_per_stage={"train": 3.0}, staleness=[0, 0, 1, 3, 99], num_tokens=500)
    state = status.snapshot()
    assert (state.step, state.policy_version, state.stage, state.reward) == (2, 2, "train", 0.5)
    assert (state.push_s, state.push_bytes, state.tokens) == (0.25, 2000, 500)
    assert state.dropped == {"stale": 12}
    assert state.staleness_counts == (2, 1, 0, 1, 0, 0, 1)
    assert state.staleness_sum == 103
    assert state.heartbeat_age_s < 5.0
    assert status.problem() is None


def test_silence_and_dead_threads_are_problems():
    time = FakeTime()
    status = RunStatus("demo", max_steps=10, heartbeat_bound_s=60.0, now=time)
    assert status.problem() is None
    time.now += 1000
    assert "no heartbeat" in (status.problem() or "")
    status.beat()
    assert status.problem() is None
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()
    with status.watching("event loop", thread.is_alive):
        assert status.problem() == "event loop is dead"
    assert status.problem() is None
