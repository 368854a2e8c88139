"""The table of all checks, in the order in which they run, and what the project has not built."""

from . import families, head, losses, pushes, quantized, several_gpus, throughput, updates, whole_run, zero3
from .check import Check

PARTS = (head, losses, updates, quantized, throughput, families, whole_run, zero3, several_gpus, pushes)
CHECKS: dict[str, Check] = {made.name: made for part in PARTS for made in part.CHECKS}

NOT_BUILT: dict[str, str] = {
    "packed flash attention": "sequences are padded on the right and pass sdpa; rows are not packed",
}
"""What a GPU box would check if the project had it."""
