"""A folder of our own for the sockets between vLLM's processes, which it would leave behind in /tmp by the dozen."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

VARIABLE = "VLLM_RPC_BASE_PATH"
LONGEST_PATH = 107 - len("/01234567-89ab-cdef-0123-456789abcdef")
"""Linux takes 107 bytes for the name of a socket."""


@contextmanager
def folder_for_sockets() -> Iterator[None]:
    """For as long as the server runs. vLLM reads the variable when it is imported; who has set it keeps it."""
    if os.environ.get(VARIABLE):
        yield
        return
    with tempfile.TemporaryDirectory(prefix="grpo-rollout-", ignore_cleanup_errors=True) as folder:
        if len(os.fsencode(folder)) <= LONGEST_PATH:
            os.environ[VARIABLE] = folder
        yield
