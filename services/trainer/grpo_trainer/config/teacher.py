"""A teacher, of a run or of one dataset: a rollout server whose model scores what the policy samples, or the policy
itself, which then reads a prompt that says more."""

from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, model_validator

from .section import Positive, Seconds, Section, ServerUrl

if TYPE_CHECKING:
    from .run_config import RunConfig


OF_FORM = {"reweight_clip": "reweight", "negative_only": "reweight", "gate_beta": "gate"}
"""The form that reads a setting."""
OF_SERVERS = ("timeout_s", "retry_for_s", "startup_timeout_s")


class TeacherConfig(Section):
    """On-policy distillation: what a teacher finds of a token, d = log π_teacher − log π, enters its advantage."""

    url: ServerUrl | None = Field(
        None, description="A rollout server that serves the teacher; none of rollout.urls. Absent: see of_itself."
    )
    of_itself: bool = Field(
        False,
        description="The policy is its own teacher, with the weights that a batch is trained from, and reads another "
        "prompt than it sampled from: self-distillation.",
    )
    prompt_column: str | None = Field(
        None,
        description="Column with what the teacher reads in place of the last message of the user, or a whole list of "
        "messages; absent: it reads the policy's prompt.",
    )
    prompt_template: str | None = Field(
        None, description="The same as a text with {column} in it, or the file that holds it."
    )
    coef: Positive = Field(1.0, description="Weight of the teacher beside the advantages of the rewards.")
    form: Literal["add", "reweight", "gate"] = Field(
        "add",
        description="How d enters an advantage A: add A + coef · d; reweight A · (1 − coef + coef · w) with "
        "w = exp(sign(A) · d), clipped; gate A + coef · sigmoid(gate_beta · d).",
    )
    reweight_clip: float = Field(0.2, ge=0.0, description="With reweight: w is clipped to 1 ± reweight_clip.")
    negative_only: bool = Field(False, description="With reweight: advantages above 0 stay as they are.")
    gate_beta: Positive = Field(5.0, description="With gate: how sharp the gate is.")
    only: bool = Field(False, description="Learn from the teacher alone: rewards are measured and enter no advantage.")
    timeout_s: Seconds = Field(300.0, description="Limit for scoring the tokens of one request.")
    retry_for_s: Seconds = Field(
        300.0, description="Retry budget for an absent or busy teacher, from the first failure on; then the run stops."
    )
    startup_timeout_s: Seconds = Field(900.0, description="Time for the server to come up.")

    @property
    def teaches_equal_rewards(self) -> bool:
        """Whether a group of equal rewards has something to learn: an advantage of 0 times anything has not."""
        return self.form != "reweight"

    @property
    def has_own_prompt(self) -> bool:
        return self.prompt_column is not None or self.prompt_template is not None

    @model_validator(mode="after")
    def _somebody_teaches(self) -> Self:
        if (self.url is None) is not self.of_itself:
            found = "has both a url and of_itself" if self.of_itself else "has neither a url nor of_itself"
            raise ValueError(f"a teacher {found}: name a rollout server, or let the policy teach itself")
        if self.prompt_column is not None and self.prompt_template is not None:
            raise ValueError("prompt_column and prompt_template both say what the teacher reads; leave one out")
        if self.of_itself and not self.has_own_prompt:
            raise ValueError(
                "a policy that reads its own prompt finds of its tokens what it found when it sampled them: set "
                "prompt_column or prompt_template to what the teacher knows more"
            )
        return self

    @model_validator(mode="after")
    def _settings_are_those_of_the_form(self) -> Self:
        for name in OF_SERVERS if self.of_itself else ():
            if getattr(self, name) != TeacherConfig.model_fields[name].default:
                raise ValueError(f"{name} is for a teacher that is a server, and of_itself is true; leave it out")
        for name, form in OF_FORM.items():
            if self.form != form and getattr(self, name) != TeacherConfig.model_fields[name].default:
                raise ValueError(f"{name} is read with form {form}, and form is {self.form}")
        if self.form == "reweight" and self.only:
            raise ValueError("form reweight multiplies the advantages of rewards, and only leaves them out")
        if self.form == "reweight" and self.coef > 1.0:
            raise ValueError(f"with form reweight coef is a share of the weights, at most 1, not {self.coef:g}")
        return self


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
            raise ValueError(
                "reward.reward_funcs is empty: name a reward, or set teacher.url or teacher.of_itself to learn from a "
                "teacher"
            )
        else:
            raise ValueError(
                f"data.datasets.{dataset} has neither a reward nor a teacher: name a reward in reward.reward_funcs, or "
                f"set data.datasets.{dataset}.teacher.url"
            )


def _check_teacher(dataset: str, config: "RunConfig", *, has_rewards: bool) -> None:
    setting, teacher = teacher_setting(dataset, config), config.teachers[dataset]
    rollout, algorithm = config.rollout, config.algorithm
    if (teacher.url or "").rstrip("/") in [url.rstrip("/") for url in rollout.urls]:
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
    if teacher.form == "reweight" and not has_rewards:
        raise ValueError(f"{setting}.form reweight multiplies the advantages of rewards, and there are none")
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
