"""Rewards that some nodes of a cluster cannot compute: a chunk may go to any node, so none computes them."""

from collections.abc import Mapping

from .base import LoadedReward


def refused(node: str, rewards: Mapping[str, LoadedReward]) -> dict[str, str]:
    """Rewards that a node does not compute, and why."""
    reasons = {name: reward.description.unavailable for name, reward in rewards.items()}
    return {name: f"on the Ray node {node}: {reason}" for name, reason in reasons.items() if reason is not None}


def unavailable(reward: LoadedReward, reason: str | None) -> LoadedReward:
    """`reward`, unavailable for `reason` as well: a chunk may go to any node."""
    if reason is None:
        return reward
    return reward.model_copy(update={"description": reward.description.model_copy(update={"unavailable": reason})})


def without_reasons(rewards: Mapping[str, LoadedReward]) -> dict[str, LoadedReward]:
    nothing = {"unavailable": None}
    return {
        name: reward.model_copy(update={"description": reward.description.model_copy(update=nothing)})
        for name, reward in rewards.items()
    }
