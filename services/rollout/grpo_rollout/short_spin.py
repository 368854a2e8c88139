"""Waiting without burning a core, where cores are few.

vLLM's processes wait for each other by polling shared memory, for a second after every message, before they go to
sleep. Without a GPU that second never ends while there is work: the engine process takes a whole core that the worker,
the event loop or the trainer beside it need. With a core of two gone a push took 1.5 times as long.
"""

from functools import partial

from vllm.distributed.device_communicators import shm_broadcast
from vllm.platforms import current_platform

SPIN_S = 0.01
"""Not 0: of two messages within about a millisecond ZeroMQ may drop the second one's wake-up call, and a reader that
sleeps already then finds it only when it looks again by itself, 5 s later."""


def spin_briefly() -> None:
    """For every message queue this process reads from now on. Does nothing where vLLM has a GPU."""
    if current_platform.is_cpu():
        shm_broadcast.SpinCondition = partial(shm_broadcast.SpinCondition, busy_loop_s=SPIN_S)
