"""The table of all checks, in the order in which they run."""

from . import (
    families,
    head,
    losses,
    lost_members,
    prefixes,
    pushes,
    quantized,
    several_gpus,
    throughput,
    updates,
    whole_run,
    zero3,
)
from .check import Check

PARTS = (
    head, losses, updates, prefixes, quantized, throughput,
    families, whole_run, lost_members, zero3, several_gpus, pushes,
)  # fmt: skip
CHECKS: dict[str, Check] = {made.name: made for part in PARTS for made in part.CHECKS}
