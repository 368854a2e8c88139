"""Episodes of several turns → the numbers of one step: how they went, and where each sampled token went.

Every sampled token is accounted for, in tokens: `tokens/sampled` = `tokens/trained` + all `tokens/masked_<reason>`.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import get_args

from ..algorithm.scores import mean
from ..algorithm.sequences import Cause, Episode, EpisodeStatus, Group, was_broken
from .metrics import optional


def episode_metrics(
    groups: Sequence[Group],
    replaced: Sequence[Group],
    *,
    too_small: Sequence[Group],
    dropped_tokens: Mapping[str, int],
    mask_truncated: bool,
) -> dict[str, float]:
    """Means and extremes of the `groups` of a batch, whose advantages are known.

    Counts of statuses, causes, attempts and tokens also of the groups that were sampled for it and are not in it: those
    that were `replaced`, and those with too few totals. `dropped_tokens`: sampled tokens by the reason for which their
    groups were dropped.
    """
    episodes = [episode for group in groups for episode in group.episodes]
    played = [episode for group in [*groups, *replaced, *too_small] for episode in group.episodes]
    turns = [sum(1 for _ in episode.turns) for episode in episodes]
    statuses, causes = Counter(one.status for one in played), Counter(one.cause for one in played)
    metrics: dict[str, float] = {
        **optional("episodes/mean_turns", mean(turns)),
        **optional("episodes/max_turns", max(turns, default=None)),
        **optional("episodes/mean_segments", mean(len(one.segments) for one in episodes)),
        **{f"episodes/{status}": statuses[status] for status in get_args(EpisodeStatus)},
        **{f"episodes/cause_{cause}": causes[cause] for cause in get_args(Cause)},
        "episodes/run_again": sum(one.attempt for one in played),
        "episodes/groups_dropped": len(too_small),
    }
    reported = [episode.metrics for episode in episodes if episode.metrics]
    for name in sorted({name for numbers in reported for name in numbers}):
        metrics |= optional(f"episodes/{name}", mean(numbers[name] for numbers in reported if name in numbers))
    return metrics | token_counts(episodes, replaced, dropped_tokens=dropped_tokens, mask_truncated=mask_truncated)


def token_counts(
    episodes: Sequence[Episode],
    replaced: Sequence[Group],
    *,
    dropped_tokens: Mapping[str, int],
    mask_truncated: bool,
) -> dict[str, float]:
    """Where the sampled tokens went."""
    counts = Counter[str | None](dropped_tokens)
    for episode in episodes:
        counts += episode.tokens_by_reason(otherwise=_left_out(episode, mask_truncated=mask_truncated))
    for group in replaced:
        for episode in group.episodes:
            counts += episode.tokens_by_reason(otherwise="replaced")
    sampled, trained = counts.total(), counts.pop(None, 0)
    masked = {f"tokens/masked_{reason}": counts[reason] for reason in sorted(map(str, counts))}
    return {"tokens/sampled": sampled, "tokens/trained": trained, **masked}


def _left_out(episode: Episode, *, mask_truncated: bool) -> str | None:
    reason = episode.left_out_because(mask_truncated=mask_truncated)
    if reason in (None, "truncated"):
        return reason
    return "failed" if was_broken(episode.status, episode.cause) else "unscored"
