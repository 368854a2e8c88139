"""The permission that Intel's tile unit (AMX) asks for.

Linux gives the tile registers only to a process that requests them (arch_prctl, ARCH_REQ_XCOMP_PERM). vLLM 0.32 picks
its AMX attention for bfloat16 by the processor's flags alone and does not request: on Xeons since Sapphire Rapids its
worker dies of an illegal instruction at the first token, with no line in the log.
"""

import logging

import torch

logger = logging.getLogger("vllm.grpo_rollout.tile_unit")


def request_tile_unit() -> None:
    """Ask for this process and all its threads. Does nothing on a processor without the unit."""
    if torch.cpu._is_amx_tile_supported() and not torch.cpu._init_amx():
        logger.error("Linux refuses the AMX tile registers to this process; bfloat16 will end it: use --dtype float32")
