"""Which code has scored this run: a reward that changes in the middle makes two runs of one.

The reward server says with every answer what code its scores are of. The run keeps it, in its checkpoints, too.
"""

import logging
from collections.abc import Mapping

log = logging.getLogger(__name__)

STEPS_KEPT = 8
"""Scored at once are the samples of a few steps only, as `max_staleness` bounds them."""


class RewardCode:
    """`hashes`: the `code_hash` of each reward that the run has been scored by. `accept`: it may change, but not within
    a step: while a Service rolls out, servers of both versions answer."""

    def __init__(self, hashes: Mapping[str, str] | None = None, *, accept: bool):
        self.hashes, self.accept = dict(hashes or {}), accept
        self._pinned: dict[int, dict[str, str]] = {}

    def change(self, seen: Mapping[str, str]) -> str | None:
        """What has changed since the run began, for people; None when nothing has. New rewards are no change."""
        changed = [name for name, code in seen.items() if self.hashes.get(name, code) != code]
        if not changed:
            self.hashes |= seen
            return None
        pairs = ", ".join(f"{name} was {self.hashes[name][:12]} and is {seen[name][:12]}" for name in changed)
        return f"the code of rewards has changed in the middle of the run: {pairs}"

    def adopt(self, seen: Mapping[str, str]) -> None:
        """Go on with changed code, which was accepted."""
        if (change := self.change(seen)) is not None:
            log.warning("%s, which reward.accept_changed_code allows", change)
            self.hashes |= seen

    def fits_step(self, step: int, seen: Mapping[str, str]) -> bool:
        """Whether scores by this code go with the others of `step`; the first ones decide."""
        pinned = self._pinned.setdefault(step, dict(seen))
        for old in sorted(self._pinned)[:-STEPS_KEPT]:
            del self._pinned[old]
        return pinned == dict(seen)
