"""Hold what the pipeline hands over: the groups of a step, and its counts of groups."""

from dataclasses import dataclass, field

from ..algorithm.sequences import Group


@dataclass
class Batch:
    """The groups of one step, and where their time went."""

    groups: list[Group]
    reward_s: float
    """Waiting time for rewards after the last group was sampled: the part of scoring that sampling did not hide."""
    epoch: float
    """Prompts of the run up to this batch, trained on or not, in passes over the dataset; none that are in flight or
    wait for a later batch."""
    of_prompts: dict[str, float] = field(default_factory=dict)
    """Metrics of the prompts drawn until then: passes over each of several datasets, and the memory of difficulty."""
    teacher_s: float = 0.0
    """Waiting time for teachers after the last group was sampled, a part of `reward_s`."""
    replaced: list[Group] = field(default_factory=list)
    """Groups that were sampled and scored for this batch, and are not trained on: they teach nothing."""
    too_small: list[Group] = field(default_factory=list)
    """Groups of episodes that were dropped since the last batch, because too few of their episodes have a total."""
    dropped_tokens: dict[str, int] = field(default_factory=dict)
    """Sampled tokens of all groups that were dropped since the last batch, by the reason."""


@dataclass
class Counts:
    """Numbers of groups since this process began or went back.

    issued = used + replaced + dropped_stale + dropped_crash + dropped_small + waiting + in flight
    """

    issued: int = 0
    used: int = 0
    replaced: int = 0
    dropped_stale: int = 0
    dropped_crash: int = 0
    """Their prompts kill rollout servers: never sampled, and the next prompts took their places."""
    dropped_small: int = 0
    """Groups of episodes with fewer totals than `min_group_size`: not repeated, the next prompts took their places."""
