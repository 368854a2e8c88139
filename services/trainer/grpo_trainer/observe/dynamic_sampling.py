"""What dynamic sampling replaced: the metrics of a batch are those of the groups that are trained on."""

from collections.abc import Sequence

from ..algorithm.scores import accuracy, mean
from ..algorithm.sequences import Group
from ..algorithm.spread import teaches
from .metrics import optional


def dynamic_sampling_metrics(trained: Sequence[Group], replaced: Sequence[Group]) -> dict[str, float]:
    """Return how much was replaced, and what rewards would have been without: over all groups sampled for the batch.

    `dynamic_sampling/refills` is in batches, as `algorithm.max_refills`.
    """
    sampled = [*trained, *replaced]
    scores = [(episode.total, teaches(group)) for group in sampled for episode in group.episodes]
    return {
        "dynamic_sampling/replaced_groups": len(replaced),
        "dynamic_sampling/refills": len(replaced) / len(trained),
        **optional(
            "dynamic_sampling/frac_reward_zero_std",
            mean(float(not in_spread) for total, in_spread in scores if total is not None),
        ),
        **optional("dynamic_sampling/reward", mean(total for total, _ in scores if total is not None)),
        **optional("dynamic_sampling/accuracy", accuracy(sampled)),
    }
