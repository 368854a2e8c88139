"""Whether a run that has begun gets nowhere because its servers are gone, and when it ends by itself."""

from dataclasses import dataclass

from ..config.run_config import RunConfig


@dataclass(frozen=True)
class Servers:
    """What the trainer knows of its servers at one moment. Times are in seconds since the epoch."""

    with_policy: int
    """Rollout servers that have the current weights: only these are asked for samples."""
    answering: int
    """Rollout servers that answered one of the last two probes."""
    asked_for_samples: int
    """Requests in flight."""
    reward_answers: bool
    """Whether it answered the last probe; True before the first one."""
    sampling_since_s: float | None = None
    """Since when the group that has waited longest waits for its samples."""
    failing_since_s: float | None = None
    """Since when the group whose requests fail for the longest time is sent again and again."""
    scoring_since_s: float | None = None
    """Since when the group that has waited longest waits for its scores."""


def standing_still(
    stage: str, stage_since_s: float, servers: Servers, config: RunConfig
) -> tuple[str, float | None] | None:
    """(what does not answer, when the run ends by itself); None while the run moves on. The end is None when unknown.

    A server that comes back in time ends the wait, too. In every other stage the trainer works by itself.
    """
    nobody = "no rollout server answers" if servers.answering == 0 else "no rollout server has the current weights"
    no_reward = "the reward server does not answer"
    if stage == "push" and servers.answering == 0:
        return nobody, stage_since_s + config.weights.push_deadline_s
    if stage == "wait" and servers.with_policy == 0:
        return nobody, _after(servers.failing_since_s or servers.sampling_since_s, config.rollout.retry_for_s)
    if stage == "score" and not servers.reward_answers:
        return no_reward, _after(servers.scoring_since_s, config.reward.retry_for_s)
    if stage == "eval" and servers.with_policy == 0:
        return nobody, stage_since_s + config.rollout.retry_for_s  # an evaluation asks for all its samples at once
    if stage == "eval" and not servers.reward_answers and servers.asked_for_samples == 0:
        return no_reward, None
    return None


def _after(since_s: float | None, limit_s: float) -> float | None:
    return None if since_s is None else since_s + limit_s
