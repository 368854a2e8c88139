"""The table of all checks, in the order in which they run."""

from . import families, head, losses, prefixes, pushes, quantized, several_gpus, throughput, updates, whole_run, zero3
from .check import Check

PARTS = (head, losses, updates, prefixes, quantized, throughput, families, whole_run, zero3, several_gpus, pushes)
CHECKS: dict[str, Check] = {made.name: made for part in PARTS for made in part.CHECKS}
