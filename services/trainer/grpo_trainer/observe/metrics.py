"""Groups → the numbers of one step, under TRL's names where TRL has one.

Null is never 0: samples without a score enter no mean, and the mean of nothing is absent from the result.
Standard deviations are unbiased (n - 1), as in TRL.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from ..algorithm.scores import accuracy, mean, standard_deviation
from ..algorithm.sequences import DROP_REASONS, Episode, Group
from .repetition import repeated_ratio


def rollout_metrics(
    groups: Sequence[Group],
    *,
    reward_names: Sequence[str],
    policy_version: int,
    mask_truncated: bool,
    too_small: Sequence[Group] = (),
    dropped_stale: int = 0,
    dropped_crash: int = 0,
) -> dict[str, float]:
    """Return the metrics of the groups of a step, except those of the advantage estimator, which must have run before.

    `policy_version` is the version the batch starts from. Groups that are `too_small` are in `samples/…` only, as are
    `dropped_stale` and `dropped_crash`: the samples of this step that are too old, and those whose prompts kill
    servers.
    """
    episodes, lost = ([episode for group in of for episode in group.episodes] for of in (groups, too_small))
    return {
        **reward_metrics(groups, reward_names),
        **optional("accuracy", accuracy(groups)),
        **length_metrics(episodes),
        **optional("completions/repeated_ratio", repeated_ratio(episode.sampled_token_ids for episode in episodes)),
        **staleness_metrics(episodes, policy_version),
        **(counts := sample_counts([*episodes, *lost], mask_truncated=mask_truncated)),
        "samples/dropped_stale": counts["samples/dropped_stale"] + dropped_stale,
        "samples/dropped_crash": dropped_crash,
    }


def reward_metrics(groups: Sequence[Group], reward_names: Sequence[str]) -> dict[str, float]:
    """Return the metrics of each reward, and the numbers that rewards report as `rewards/<name>/<number>`."""
    episodes = [episode for group in groups for episode in group.episodes]
    metrics: dict[str, float] = {}
    for name in reward_names:
        results = [episode.rewards[name] for episode in episodes if name in episode.rewards]
        scores = [result.score for result in results if result.score is not None]
        metrics |= optional(f"rewards/{name}/timed_out", mean(float(result.status == "timeout") for result in results))
        metrics |= optional(f"rewards/{name}/mean", mean(scores))
        metrics |= optional(f"rewards/{name}/std", standard_deviation(scores))
        reported = [result.metrics for result in results if result.metrics]
        for key in sorted({key for numbers in reported for key in numbers}):
            average = mean(numbers[key] for numbers in reported if key in numbers)
            # mean, std and timed_out are names of the trainer: curves of rewards are found by them.
            own = f"{key}_reported" if key.rpartition("/")[2] in ("mean", "std", "timed_out") else key
            metrics |= optional(f"rewards/{name}/{own}", average)
    return metrics


def length_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """Lengths of completions in tokens; `terminated` completions ended by themselves, not by a limit."""
    lengths = [episode.num_sampled for episode in episodes]
    terminated = [episode.num_sampled for episode in episodes if episode.ended_by_itself]
    metrics: dict[str, float] = {}
    for infix, values in (("", lengths), ("terminated_", terminated)):
        if values:
            metrics[f"completions/mean_{infix}length"] = math.fsum(values) / len(values)
            metrics[f"completions/min_{infix}length"] = min(values)
            metrics[f"completions/max_{infix}length"] = max(values)
    return metrics | optional("completions/clipped_ratio", mean(float(episode.truncated) for episode in episodes))


def staleness_metrics(episodes: Sequence[Episode], policy_version: int) -> dict[str, float]:
    """How many versions the oldest token of each completion lags behind; completions without tokens have no lag."""
    lags = staleness_of(episodes, policy_version)
    return {"staleness/mean": math.fsum(lags) / len(lags), "staleness/max": max(lags)} if lags else {}


def staleness_of(episodes: Sequence[Episode], policy_version: int) -> list[int]:
    """For each sample with tokens: how many versions its oldest token lags behind."""
    return [policy_version - oldest for episode in episodes if (oldest := episode.oldest_version) is not None]


def sample_counts(episodes: Sequence[Episode], *, mask_truncated: bool) -> dict[str, float]:
    """Count the samples that were trained on, those left out by reason, and those that lack a score of a reward.

    `samples/dropped_<reason>` counts every sample left out once.
    `samples/<status>` counts a sample once for every status of its rewards, rewards of weight 0 included.
    """
    statuses = [{result.status for result in episode.rewards.values()} for episode in episodes]
    left_out = Counter(episode.left_out_because(mask_truncated=mask_truncated) for episode in episodes)
    return {
        "samples/used": left_out[None],
        **{f"samples/dropped_{reason}": left_out[reason] for reason in DROP_REASONS},
        "samples/unscorable": sum("unscorable" in found for found in statuses),
        "samples/timeout": sum("timeout" in found for found in statuses),
        "samples/error": sum("error" in found for found in statuses),
    }


def count_tokens(groups: Iterable[Group]) -> int:
    """Tokens of prompts and completions; a prompt counts for each of its completions, as in TRL's `num_tokens`."""
    return sum(episode.num_tokens for group in groups for episode in group.episodes)


def merge_updates(updates: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Merge the metrics of a step's optimizer updates into one dict.

    Means, but `…min` is a minimum, `…max` a maximum, `learning_rate` and `entropy_coef` the last one. A metric that
    some updates lack is merged over the updates that have it. A value that is not finite makes the mean not finite, and
    so stays visible.
    """
    merged: dict[str, float] = {}
    for key in dict.fromkeys(key for update in updates for key in update):
        values = [update[key] for update in updates if key in update]
        if key in ("learning_rate", "entropy_coef"):
            merged[key] = values[-1]
        elif key.endswith("min"):
            merged[key] = min(values)
        elif key.endswith("max"):
            merged[key] = max(values)
        else:
            merged[key] = sum(values) / len(values)
    return merged


def optional(key: str, value: float | None) -> dict[str, float]:
    """Return a metric that may not exist, to be merged into others."""
    return {} if value is None else {key: value}
