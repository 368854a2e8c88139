"""The table of all checks, in the order in which they run, and what the project has not built."""

from . import head, losses, quantized, several_gpus, throughput, updates
from .check import Check

PARTS = (head, losses, updates, quantized, throughput, several_gpus)
CHECKS: dict[str, Check] = {made.name: made for part in PARTS for made in part.CHECKS}

NOT_BUILT: dict[str, str] = {
    "packed flash attention": "sequences are padded on the right and pass sdpa; rows are not packed",
}
"""What a GPU box would check if the project had it."""

NO_CHECK_YET: dict[str, str] = {
    "ZeRO-3 over NCCL": "2 GPUs",
    "NCCL push into rollout servers, one of them killed": "2 GPUs, vLLM",
    "tensor parallelism 2": "2 GPUs, vLLM",
    "pushes to MoE and other families": "1 GPU, vLLM; `make families` is the same on a CPU",
    "a whole run with vLLM on the trainer's GPU": "1 GPU, vLLM; `make demo` is the same on a CPU",
}
"""What the project has and no check covers, and what a check would need."""
