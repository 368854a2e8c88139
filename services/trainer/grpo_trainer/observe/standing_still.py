"""Whether a run that has begun makes no progress because its servers are gone, and when it ends by itself."""

from dataclasses import dataclass

from ..config.run_config import RunConfig


@dataclass(frozen=True)
class Servers:
    """The state of the servers at one moment, as the trainer sees it. Times are in seconds since the epoch."""

    with_policy: int
    """Rollout servers with the current weights: only these get requests for samples."""
    answering: int
    """Rollout servers that answered one of the last two probes."""
    asked_for_samples: int
    """Requests in flight."""
    reward_answers: bool
    """Whether the reward server answered the last probe; True before the first probe."""
    silent_teacher: tuple[str, float] | None = None
    """A teacher that did not answer the last probe, by its name, and its retry budget in seconds."""
    sampling_since_s: float | None = None
    """Start of the longest wait of a group for its samples."""
    failing_since_s: float | None = None
    """Start of the longest row of failed requests of a group."""
    scoring_since_s: float | None = None
    """Start of the longest wait of a group for its scores, or for the teacher's logprobs."""


def standing_still(
    stage: str, stage_since_s: float, servers: Servers, config: RunConfig
) -> tuple[str, float | None] | None:
    """Return (what does not answer, when the run ends by itself), or None while the run makes progress. The end is None
    when unknown.

    A server that returns in time also ends the wait. In all other stages the trainer needs no server.
    """
    nobody = "no rollout server answers" if servers.answering == 0 else "no rollout server has the current weights"
    no_reward = "the reward server does not answer"
    if stage == "push" and servers.answering == 0:
        return nobody, stage_since_s + config.weights.push_deadline_s
    if stage == "wait" and servers.with_policy == 0:
        return nobody, _after(servers.failing_since_s or servers.sampling_since_s, config.rollout.retry_for_s)
    if stage == "score" and not servers.reward_answers:
        return no_reward, _after(servers.scoring_since_s, config.reward.retry_for_s)
    if stage == "score" and servers.silent_teacher is not None:
        name, retry_for_s = servers.silent_teacher
        return f"{name} does not answer", _after(servers.scoring_since_s, retry_for_s)
    if stage == "eval" and servers.with_policy == 0:
        return nobody, stage_since_s + config.rollout.retry_for_s  # an evaluation requests all its samples at once
    if stage == "eval" and not servers.reward_answers and servers.asked_for_samples == 0:
        return no_reward, None
    return None


def _after(since_s: float | None, limit_s: float) -> float | None:
    return None if since_s is None else since_s + limit_s
