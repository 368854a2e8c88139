"""Where the main thread of a rank is: what the ranks tell each other about it."""

from typing import NamedTuple

WAITING_FOR_RANK = "waiting for another rank"
"""Stage of a main thread in a wait of which another rank decides how long it lasts."""


class Place(NamedTuple):
    """A main thread's stage, and how long it may be silent there."""

    stage: str
    step: int
    """Finished steps."""
    bound_s: float
    """Longest time without a heartbeat."""
