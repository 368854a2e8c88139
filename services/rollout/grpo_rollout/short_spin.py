"""Waiting without burning a core, where cores are few.

vLLM's processes wait for each other by polling shared memory, for a second after every message, before they go to
sleep. Without a GPU that second never ends while there is work: the engine process takes a whole core that the worker,
the event loop or the trainer beside it need. With a core of two gone a push took 1.5 times as long.
"""

from functools import partial

from vllm.distributed.device_communicators import shm_broadcast
from vllm.platforms import current_platform

SPIN_S = 0.004
"""Little: who polls keeps a core from those that work. With 10 ms a call of the trainer's was often 8 ms late."""

NAP_MS = 10
"""How long a sleeping reader waits for its wake-up call before it looks by itself; vLLM's own is 5 s. ZeroMQ drops the
second of two calls while the first is on its way, and that takes long where all cores are busy."""


def spin_briefly() -> None:
    """Spin only briefly at every message queue this process reads from now on. Does nothing where vLLM has a GPU."""
    if current_platform.is_cpu():
        shm_broadcast.SpinCondition = partial(shm_broadcast.SpinCondition, busy_loop_s=SPIN_S)
        shm_broadcast.SHM_READER_RECHECK_INTERVAL_MS = NAP_MS
