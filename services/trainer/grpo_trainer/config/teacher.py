"""The section `teacher` of a run file: a rollout server whose model scores what the policy samples."""

from typing import TYPE_CHECKING

from pydantic import Field

from .algorithm import AlgorithmConfig
from .section import Positive, Seconds, Section, ServerUrl

if TYPE_CHECKING:
    from .run_config import RewardConfig, RolloutConfig


class TeacherConfig(Section):
    """On-policy distillation: the advantage of a token gets coef · (log π_teacher − log π) of it."""

    url: ServerUrl = Field(description="A rollout server that serves the teacher; none of rollout.urls.")
    coef: Positive = Field(1.0, description="Weight of the teacher beside the advantages of the rewards.")
    only: bool = Field(False, description="Learn from the teacher alone: rewards are measured and enter no advantage.")
    timeout_s: Seconds = Field(300.0, description="Limit for scoring the tokens of one request.")
    retry_for_s: Seconds = Field(
        300.0, description="Retry budget for an absent or busy teacher, from the first failure on; then the run stops."
    )
    startup_timeout_s: Seconds = Field(900.0, description="Time for the server to come up.")


def check_teacher(
    teacher: TeacherConfig | None, rollout: "RolloutConfig", reward: "RewardConfig", algorithm: AlgorithmConfig
) -> None:
    """Raise ValueError for settings that do not go together with a teacher, and for none to learn from."""
    if teacher is None:
        if not reward.reward_funcs:
            raise ValueError("reward.reward_funcs is empty: name a reward, or set teacher.url to learn from a teacher")
        return
    if teacher.url.rstrip("/") in [url.rstrip("/") for url in rollout.urls]:
        raise ValueError(
            f"teacher.url {teacher.url} is one of rollout.urls, which serve the policy: start a server of its own for "
            "the teacher"
        )
    distorting = [f"rollout.temperature {rollout.temperature:g}"] if rollout.temperature != 1.0 else []
    if distorting := distorting + rollout.distorting:
        raise ValueError(
            f"{', '.join(distorting)}: a teacher's logprobs are of temperature 1 without truncation, and the "
            "policy's would be of another distribution; sample so, or leave the section teacher out"
        )
    alone = "teacher.only true" if teacher.only else "a teacher without rewards"
    if (teacher.only or not reward.reward_funcs) and algorithm.dynamic_sampling:
        raise ValueError(f"algorithm.dynamic_sampling looks at rewards, which teach nothing with {alone}")
    if (teacher.only or not reward.reward_funcs) and algorithm.kl_in_reward:
        raise ValueError(f"algorithm.kl_in_reward subtracts from rewards, which teach nothing with {alone}")
    for setting, differs in (
        ("loss gmpo", algorithm.surrogate_name == "gmpo"),
        ("off_policy_mask_threshold", algorithm.off_policy_mask_threshold is not None),
    ):
        if differs:
            raise ValueError(
                f"algorithm.{setting} reads one advantage for a whole completion, and a teacher gives each token "
                "its own; choose another loss, or leave the section teacher out"
            )
