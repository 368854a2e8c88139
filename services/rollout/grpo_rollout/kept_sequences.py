"""Keep the KV cache of running sequences over a push, inside vLLM's engine process (`kv_cache` keep).

vLLM has two ways to pause: it recomputes every running sequence, or it leaves its prefix cache as it is, and that would
serve new requests blocks of the old weights. Its `reset_prefix_cache` refuses while a sequence holds blocks. So this
call empties the prefix cache under the running sequences, and separates the blocks that they fill from now on.
"""

import os
import time
from typing import Any

KEEP_CALL = "keep_running_sequences"
"""Name of the call among the utility methods of vLLM's engine client."""
SALT_BYTES = 8


def add_keep_call() -> None:
    """Make `keep_running_sequences` a utility method of the engine of this process."""
    from vllm.v1.engine.core import EngineCore

    setattr(EngineCore, KEEP_CALL, keep_running_sequences)


def keep_running_sequences(core: Any) -> None:
    """Prepare a paused engine for other weights. Sequences that have sampled a token keep their KV.

    `core` is vLLM's `EngineCore`. Afterwards a sequence whose tokens are all of one version is computed by that version
    alone, and no request finds a block that other weights had a part in. Raises RuntimeError when a KV connector cannot
    forget what it holds.
    """
    scheduler = core.scheduler
    _restart_prompts(scheduler)
    _separate(scheduler)
    manager = scheduler.kv_cache_manager
    manager.evict_blocks(set(range(manager.block_pool.num_gpu_blocks)))
    if not scheduler.reset_connector_cache():
        raise RuntimeError("the KV connector could not be reset")
    core.reset_mm_cache()
    core.reset_encoder_cache()


def _restart_prompts(scheduler: Any) -> None:
    """Preempt sequences that are still in their prompt, as vLLM does with all when it recomputes."""
    restarted = [request for request in scheduler.running if not request.num_output_tokens]
    for request in reversed(restarted):
        scheduler.running.remove(request)
        scheduler._preempt_request(request, time.monotonic(), drop_stale_output=True)
    # Otherwise the worker would expect them in its batch: they may resume in the next step.
    scheduler.prev_step_scheduled_req_ids.difference_update(request.request_id for request in restarted)


def _separate(scheduler: Any) -> None:
    """Give each sequence with KV block hashes that no other request has. The hash of a block continues the hash before
    it, so every block that the sequence fills later is separate too."""
    for request in scheduler.requests.values():
        if request.num_computed_tokens:
            salt = os.urandom(SALT_BYTES)
            request.cache_salt = salt.hex()  # for a sequence that has not filled its first block
            request.block_hashes[:] = [block_hash + salt for block_hash in request.block_hashes]
