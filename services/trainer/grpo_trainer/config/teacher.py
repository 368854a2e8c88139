"""A teacher, of a run or of one dataset: a rollout server whose model scores what the policy samples."""

from typing import TYPE_CHECKING

from pydantic import Field

from .section import Positive, Seconds, Section, ServerUrl

if TYPE_CHECKING:
    from .run_config import RunConfig


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


def teacher_setting(dataset: str, config: "RunConfig") -> str:
    """The key of the teacher of `dataset`; the empty name is that of a run's only dataset."""
    chosen = config.data.datasets.get(dataset)
    return "teacher" if chosen is None or chosen.teacher is None else f"data.datasets.{dataset}.teacher"


def check_teachers(config: "RunConfig") -> None:
    """Raise ValueError for settings that do not go together with a teacher, and for a dataset with nothing to learn
    from."""
    for dataset in config.data.datasets or [""]:
        rewards = config.data.own_rewards.get(dataset, config.reward.weights)
        if dataset in config.teachers:
            _check_teacher(dataset, config, has_rewards=bool(rewards))
        elif rewards or (config.episodes is not None and any(config.episodes.weights.values())):
            continue
        elif not dataset:
            raise ValueError("reward.reward_funcs is empty: name a reward, or set teacher.url to learn from a teacher")
        else:
            raise ValueError(
                f"data.datasets.{dataset} has neither a reward nor a teacher: name a reward in reward.reward_funcs, or "
                f"set data.datasets.{dataset}.teacher.url"
            )


def _check_teacher(dataset: str, config: "RunConfig", *, has_rewards: bool) -> None:
    setting, teacher = teacher_setting(dataset, config), config.teachers[dataset]
    rollout, algorithm = config.rollout, config.algorithm
    if teacher.url.rstrip("/") in [url.rstrip("/") for url in rollout.urls]:
        raise ValueError(
            f"{setting}.url {teacher.url} is one of rollout.urls, which serve the policy: start a server of its own "
            "for the teacher"
        )
    distorting = [f"rollout.temperature {rollout.temperature:g}"] if rollout.temperature != 1.0 else []
    if distorting := distorting + rollout.distorting:
        raise ValueError(
            f"{', '.join(distorting)}: a teacher's logprobs are of temperature 1 without truncation, and the "
            f"policy's would be of another distribution; sample so, or leave {setting} out"
        )
    if teacher.only or not has_rewards:
        alone = f"{setting}.only true" if teacher.only else "a teacher without rewards"
        alone += f" (dataset {dataset})" if dataset else ""
        if algorithm.dynamic_sampling:
            raise ValueError(f"algorithm.dynamic_sampling looks at rewards, which teach nothing with {alone}")
        if config.data.difficulty is not None:
            raise ValueError(f"data.difficulty looks at rewards, which teach nothing with {alone}")
        if algorithm.kl_in_reward:
            raise ValueError(f"algorithm.kl_in_reward subtracts from rewards, which teach nothing with {alone}")
    if algorithm.off_policy_mask_threshold is not None:
        raise ValueError(
            "algorithm.off_policy_mask_threshold reads one advantage for a whole completion, and a teacher gives each "
            f"token its own; leave it out, or {setting}"
        )
