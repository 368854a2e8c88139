"""A limit on the processor time of one piece of work."""

import gc
import time

import pytest

from grpo_reward.time_limit import TooCostly, limited


def compute(cpu_s: float) -> None:
    began_s = time.process_time()
    while time.process_time() < began_s + cpu_s:
        sum(range(10_000))  # the kernel's time for the clock does not count in the limit


def test_a_limit_that_is_over_while_garbage_is_collected_ends_the_work_behind_it():
    """Raises nothing in the collector's callback, where it would be lost and printed: pytest makes an error of that."""

    def slow(phase: str, _: object) -> None:
        if phase == "stop":
            compute(0.1)

    def work() -> None:
        gc.collect(0)
        gc.callbacks.remove(slow)
        compute(10.0)

    gc.callbacks.append(slow)
    with pytest.raises(TooCostly):
        limited(work, cpu_s=0.05)
