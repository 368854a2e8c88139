"""Rewards without a score: how often and why. `grpo_proto.totals` defines the effect on a total."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..algorithm.sequences import Group


@dataclass(frozen=True)
class MissingScores:
    """The missing scores of one reward in one step, for one reason."""

    reward: str
    status: str
    """As the reward server names it: `unscorable`, `timeout`, `error`."""
    count: int
    of: int
    """Samples that the reward was requested for."""
    detail: str | None
    """The server's detail of the first missing score."""

    @property
    def share(self) -> float:
        return self.count / self.of


def missing_scores(groups: Iterable[Group], reward_names: Sequence[str]) -> list[MissingScores]:
    """Return the missing scores, in the order of `reward_names`, the most frequent reason first."""
    episodes = [episode for group in groups for episode in group.episodes]
    found = []
    for name in reward_names:
        results = [episode.rewards[name] for episode in episodes if name in episode.rewards]
        statuses = Counter(result.status for result in results if result.score is None)
        for status, count in statuses.most_common():
            details = (result.detail for result in results if result.status == status and result.detail)
            found.append(MissingScores(name, status, count, len(results), next(details, None)))
    return found
