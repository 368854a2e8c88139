"""Which rewards gave no score, how often and why. What it means for a total: `grpo_proto.totals`."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..algorithm.sequences import Group


@dataclass(frozen=True)
class MissingScores:
    """The scores of one step that one reward did not give, for one reason."""

    reward: str
    status: str
    """As the reward server calls it: `unscorable`, `timeout`, `error`."""
    count: int
    of: int
    """Samples that the reward was asked for."""
    detail: str | None
    """What the server says of the first one."""

    @property
    def share(self) -> float:
        return self.count / self.of


def missing_scores(groups: Iterable[Group], reward_names: Sequence[str]) -> list[MissingScores]:
    """Scores that rewards did not give, in the order of `reward_names`, the most frequent reason first."""
    episodes = [episode for group in groups for episode in group.episodes]
    found = []
    for name in reward_names:
        results = [episode.rewards[name] for episode in episodes if name in episode.rewards]
        statuses = Counter(result.status for result in results if result.score is None)
        for status, count in statuses.most_common():
            details = (result.detail for result in results if result.status == status and result.detail)
            found.append(MissingScores(name, status, count, len(results), next(details, None)))
    return found
