"""Dynamic sampling: groups that teach nothing are replaced, as in DAPO (arXiv 2503.14476, section 3.2).

A group is replaced as soon as its scores show no spread, by the next prompt of the run, and by no more than that one:
nothing that teaches is ever thrown away. The groups of a batch are then the first that teach, in the order of the
prompts, however fast each was sampled. Left out on purpose: DAPO's over-sampling by a factor, whose surplus would grow
stale or be lost.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..algorithm.sequences import Group


def teaches_always(group: Group) -> bool:
    """The test of a run without dynamic sampling."""
    return True


@dataclass
class Refills:
    """The groups that were replaced for the batch in the making, at most `max_groups`."""

    teaches: Callable[[Group], bool] = teaches_always
    max_groups: int = 0
    replaced: list[Group] = field(default_factory=list)

    def keep(self, groups: Sequence[Group]) -> list[Group]:
        """Return the groups that count for a batch: those that teach and, beyond `max_groups`, the others as well."""
        kept = []
        for group in groups:
            if not self.teaches(group) and len(self.replaced) < self.max_groups:
                self.replaced.append(group)
            else:
                kept.append(group)
        return kept

    def choose(self, finished: Sequence[Group], count: int, *, oldest: int) -> tuple[list[Group], list[Group]]:
        """Return the `count` groups of a batch, and the groups that are replaced.

        `finished` are the groups that count, the most urgent first. Where too few of them teach, the rest of the batch
        are the first others in the order of the prompts: which of those came last must not matter. None of them was
        sampled by a version before `oldest`.
        """
        teaching = [group for group in finished if self.teaches(group)]
        others = sorted(
            [*self.replaced, *(group for group in finished if not self.teaches(group))],
            key=lambda group: group.position,
        )
        taken = teaching[:count]
        fresh = [group for group in others if not group.is_older_than(oldest)]
        taken += fresh[: count - len(taken)]
        positions = {group.position for group in taken}
        return taken, [group for group in others if group.position not in positions]

    def batch_taken(self) -> None:
        """The next batch may replace as many."""
        self.replaced = []
