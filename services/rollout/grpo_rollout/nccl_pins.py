"""Make communicators that other processes share without the NCCL settings that vLLM pins for itself.

With VLLM_BATCH_INVARIANT=1 vLLM sets NCCL_ALGO, NCCL_PROTO and others in its workers. NCCL compares them with nobody: a
trainer without them, in the same group, waits for ever.
"""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from vllm.utils.nccl import unpinned_nccl_env

_lock = threading.Lock()
_inside = 0
_unpinned = ExitStack()


@contextmanager
def without_nccl_pins() -> Iterator[None]:
    """Unpin the settings in this context, as vLLM does for its own weight transfer.

    From any thread: a join that has been replaced may end while the next one forms, and must not pin them under it.
    """
    global _inside
    with _lock:
        if _inside == 0:
            _unpinned.enter_context(unpinned_nccl_env())
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:
                _unpinned.close()
