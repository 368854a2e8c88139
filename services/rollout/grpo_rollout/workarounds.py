"""Work around gaps in vLLM and its platform. Each function states what breaks without it, and when it can be deleted.

The plugin calls the first four in every process of vLLM's. vLLM and torch are imported inside the functions:
`private_socket_folder` must run before either is imported.
"""

import ctypes
import logging
import multiprocessing
import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

logger = logging.getLogger("vllm.grpo_rollout.workarounds")

PR_SET_PDEATHSIG = 1

SPIN_S = 0.004
"""Short: a polling reader takes a core from the processes that work. With 10 ms, trainer calls were often 8 ms late."""
RECHECK_MS = 10
"""Longest sleep of a reader before it polls by itself; vLLM's default is 5 s. ZeroMQ drops the second of two wake-up
calls while the first is in flight, which takes long where all cores are busy."""

SOCKETS_VARIABLE = "VLLM_RPC_BASE_PATH"
MAX_FOLDER_BYTES = 107 - len("/01234567-89ab-cdef-0123-456789abcdef")
"""Linux allows 107 bytes for the path of a socket; vLLM appends a UUID."""


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends. Does nothing in a process without a Python parent.

    Without it: vLLM's engine process outlives an API server that was killed by SIGKILL or by the out-of-memory killer,
    and holds its memory, GPUs and ports. The next server on that machine then fails to start.

    Delete when: the pinned vLLM ends its engine process on the death of its parent
    (https://github.com/vllm-project/vllm/issues/55510; vLLM 0.32 does not), and the tests that kill an API server
    pass without this function.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        errno = ctypes.get_errno()
        raise OSError(errno, f"prctl(PR_SET_PDEATHSIG): {os.strerror(errno)}")
    # Check again: the parent may have died before the call.
    if os.getppid() != parent.pid:
        os._exit(1)


def request_amx_tiles() -> None:
    """Request Intel's AMX tile registers for this process and all its threads. Does nothing on a CPU without AMX.

    Without it: on Xeons since Sapphire Rapids, a bfloat16 worker dies of an illegal instruction (SIGILL) at its first
    token and logs nothing. Linux gives the registers only to a process that requests them (arch_prctl,
    ARCH_REQ_XCOMP_PERM). vLLM 0.32 selects its AMX attention by the CPU's flags alone and requests nothing.

    Delete when: the pinned vLLM, or the torch it imports, makes the request in its workers: on a CPU with AMX,
    `tests/rollout/engine/test_sampling.py` passes without this function.
    """
    import torch

    if torch.cpu._is_amx_tile_supported() and not torch.cpu._init_amx():
        logger.error("Linux refuses the AMX tile registers: bfloat16 would crash this process; use --dtype float32")


def spin_briefly() -> None:
    """Poll for `SPIN_S` only at every message queue that this process reads from now on. Does nothing on a GPU.

    Without it: vLLM's processes poll shared memory for 1 s after every message before they sleep. On a CPU that second
    never ends while there is work, and an engine process that has worker processes takes a whole core from them, the
    event loop and the trainer beside it. With one such worker on two cores a push took 1.5 times as long.

    Delete when: the pinned vLLM makes both times configurable, the polling (`busy_loop_s`, see
    https://github.com/vllm-project/vllm/pull/52814; fixed at 1 s in vLLM 0.32) and the sleep
    (SHM_READER_RECHECK_INTERVAL_MS); then set both in `prepare_environment`.
    """
    from vllm.distributed.device_communicators import shm_broadcast
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        shm_broadcast.SpinCondition = partial(shm_broadcast.SpinCondition, busy_loop_s=SPIN_S)
        shm_broadcast.SHM_READER_RECHECK_INTERVAL_MS = RECHECK_MS


def mend_cpu_adapters() -> None:
    """Replace vLLM's kernels for adapters by ours (`cpu_kernels.py`). Does nothing on a GPU.

    Without it: a request for the base that shares a batch with adapters is sampled from the adapter of the last slot,
    once all slots are in use, and nothing reports it: vLLM marks rows of the base with -1 and indexes its slots with
    that. A trainer's canary and its evaluations of the base would be wrong. Each row also gathers whole matrices,
    70 MB a token for a model of 0.5 B parameters at rank 32.

    Delete when: the pinned vLLM leaves rows of slot -1 alone in `vllm/lora/ops/torch_ops/lora_ops.py`, and
    `tests/rollout/adapters/` passes without this function.
    """
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        type(current_platform).get_punica_wrapper = lambda *_: "grpo_rollout.cpu_kernels.AdapterKernels"


def bound_logprobs(model_config: Any) -> None:
    """Allow a request no more logprobs of a token than the vocabulary has tokens.

    Without it: a request for more, within --max-logprobs, ends the engine ("selected index k out of range").

    Delete when: the pinned vLLM refuses it (`SamplingParams._validate_logprobs`; vLLM 0.32 compares with --max-logprobs
    alone), and `tests/rollout/engine/test_token_routes.py` passes without this function.
    """
    model_config.max_logprobs = min(model_config.max_logprobs, model_config.get_vocab_size())


@contextmanager
def private_socket_folder() -> Iterator[None]:
    """Keep the sockets between vLLM's processes in a private folder, removed when the server ends (not by SIGKILL).

    A folder that the user has set in VLLM_RPC_BASE_PATH stays in use. vLLM reads the variable when it is imported.

    Without it: every server leaves its socket files behind in /tmp.

    Delete when: the pinned vLLM removes its `ipc://` sockets at the end, which vLLM 0.32 does not.
    """
    if os.environ.get(SOCKETS_VARIABLE):
        yield
        return
    with tempfile.TemporaryDirectory(prefix="grpo-rollout-", ignore_cleanup_errors=True) as folder:
        if len(os.fsencode(folder)) <= MAX_FOLDER_BYTES:
            os.environ[SOCKETS_VARIABLE] = folder
        yield
