"""Track which code has scored this run: a reward that changes during a run splits it into two different runs.

The reward server reports the hash of its code with every answer. The run keeps it, in its checkpoints, too.
"""

import logging
from collections.abc import Mapping

log = logging.getLogger(__name__)

STEPS_KEPT = 8
"""Enough: `max_staleness` bounds how many steps are scored at the same time."""


class RewardCode:
    """The code that has scored this run.

    `hashes`: the `code_hash` of each reward that has scored this run. `accept`: the code may change, but not within a
    step; while a Kubernetes Service rolls out, servers of both versions answer.
    """

    def __init__(self, hashes: Mapping[str, str] | None = None, *, accept: bool):
        self.hashes, self.accept = dict(hashes or {}), accept
        self._pinned: dict[int, dict[str, str]] = {}

    def change(self, seen: Mapping[str, str]) -> str | None:
        """Describe what has changed since the run began; None when nothing has. New rewards are no change."""
        changed = [name for name, code in seen.items() if self.hashes.get(name, code) != code]
        if not changed:
            self.hashes |= seen
            return None
        pairs = ", ".join(f"{name} was {self.hashes[name][:12]} and is {seen[name][:12]}" for name in changed)
        return f"the code of rewards has changed during the run: {pairs}"

    def adopt(self, seen: Mapping[str, str]) -> None:
        """Continue with changed code that the configuration accepts."""
        if (change := self.change(seen)) is not None:
            log.warning("%s, which reward.accept_changed_code allows", change)
            self.hashes |= seen

    def fits_step(self, step: int, seen: Mapping[str, str]) -> bool:
        """Whether scores of this code fit the other scores of `step`; a reward's first scores in the step pin its code.

        `seen` is of the rewards of one request, and not every request asks for all rewards.
        """
        pinned = self._pinned.setdefault(step, {})
        for old in sorted(self._pinned)[:-STEPS_KEPT]:
            del self._pinned[old]
        if any(pinned.get(name, code) != code for name, code in seen.items()):
            return False
        pinned |= seen
        return True
