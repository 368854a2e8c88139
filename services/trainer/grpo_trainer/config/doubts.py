"""What a run file says that may be meant so and seldom is: told when the run starts. Run files of before have some."""

from .run_config import RunConfig

TIME_OUTS = (
    ("reward", "timeout_s", "reward", "deadline_s", "one slow sample ends the request of all"),
    ("weights", "bucket_timeout_s", "weights", "push_deadline_s", "a late bucket leaves no time to repeat a push"),
    ("weights", "bucket_timeout_s", "weights", "lease_s", "a late bucket outlasts the lease"),
)
"""Section and key of a time-out, of one that has to be longer, and what comes of it when it is not."""


def doubts(config: RunConfig) -> list[str]:
    """A sentence for each."""
    found = []
    if config.rollout.distorting:
        names = ", ".join(config.rollout.distorting)
        found.append(f"{names}: the policy is trained as if it had sampled without, from all tokens")
    for section, name, longer_section, longer, why in TIME_OUTS:
        value, limit = getattr(getattr(config, section), name), getattr(getattr(config, longer_section), longer)
        if value >= limit:
            found.append(f"{section}.{name} {value:g} is not below {longer_section}.{longer} {limit:g}: {why}")
    return found
