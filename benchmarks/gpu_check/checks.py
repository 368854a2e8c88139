"""The table of all checks, in the order in which they run, and what the project has not built."""

from . import head, losses
from .check import Check

CHECKS: dict[str, Check] = {made.name: made for part in (head, losses) for made in part.CHECKS}

NOT_BUILT: dict[str, str] = {
    "packed flash attention": "sequences are padded on the right and pass sdpa; rows are not packed",
    "QLoRA": "a policy with quantized weights is refused; LoRA trains beside bfloat16 or float32 weights",
}
"""What a GPU box would check if the project had it."""
