"""The run file: one pydantic model with bounded, documented fields, which refuses unknown keys.

Names are those of TRL and ms-swift where they have one. `settings.py` reads files, environment and flags.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from .algorithm import AlgorithmConfig
from .checkpoint import CheckpointConfig
from .chord import ChordConfig
from .data import DataConfig
from .episodes import EpisodesConfig, check_episodes
from .guards import GuardsConfig
from .model import ModelConfig
from .observing import LoggingConfig, ServerConfig
from .optimization import DeepSpeedConfig, OptimizerConfig
from .rollout import RolloutConfig
from .section import Positive, Seconds, Section, ServerUrl, Share
from .teacher import TeacherConfig, check_teachers
from .weights import CanaryConfig, WeightsConfig


def deciding_reward(weights: Mapping[str, float]) -> str:
    """Name the reward that decides what is correct where none is named for it: the first that enters the total, else
    the first; empty without any."""
    return next((name for name, weight in weights.items() if weight), next(iter(weights), ""))


class RewardConfig(Section):
    """The rewards, and the server that computes them."""

    accept_changed_code: bool = Field(
        False, description="Continue when the code of a reward differs from the code at the start of the run."
    )
    url: ServerUrl = "http://127.0.0.1:8001"
    reward_funcs: list[str] = Field(
        description="Names of rewards; `GET /v1/rewards` lists them. FILE.py:NAME also checks that the server has the "
        "reward NAME from this very file, byte for byte. Empty: none, for a run with a teacher, or whose episodes "
        "have rewards.",
    )
    reward_weights: list[float] | None = Field(None, description="One weight for every reward; all 1 when absent.")
    params: dict[str, dict[str, Any]] = Field(default_factory=dict, description="Reward name → its parameters.")
    accuracy_reward: str | None = Field(
        None,
        description="The reward whose score ≥ 1 means `correct`, one of reward_funcs, or an episodes' own with a "
        "weight; absent: the first whose weight is not 0, episodes' before others.",
    )
    timeout_s: Seconds = Field(10.0, description="Limit for one sample and one reward.")
    deadline_s: Seconds = Field(120.0, description="Limit for one batch.")
    retry_for_s: Seconds = Field(
        300.0, description="Retry budget for an absent server and for failed scores, from the first failure on."
    )
    startup_timeout_s: Seconds = Field(300.0, description="Time for the server to come up.")
    min_scored_share: Share = Field(0.5, description="Stop when a smaller share of a batch has a score.")

    @model_validator(mode="after")
    def _one_weight_each(self) -> Self:
        if self.reward_weights is not None and len(self.reward_weights) != len(self.reward_funcs):
            raise ValueError(f"{len(self.reward_weights)} reward_weights for {len(self.reward_funcs)} reward_funcs")
        if len(set(self.names)) != len(self.names):
            raise ValueError(f"reward_funcs has a name twice: {', '.join(self.names)}")
        for name in self.params:
            if name not in self.names:
                raise ValueError(f"{name} is none of the reward_funcs {', '.join(self.names)}")
        return self

    @property
    def names(self) -> list[str]:
        """The names of `reward_funcs`, without the files."""
        return [reward.rpartition(".py:")[2] for reward in self.reward_funcs]

    @property
    def weights(self) -> dict[str, float]:
        """Reward → its weight."""
        return dict(zip(self.names, self.reward_weights or [1.0] * len(self.names), strict=True))

    @property
    def files(self) -> dict[str, Path]:
        """Reward → its file, for rewards written as FILE.py:NAME."""
        pairs = (reward.rpartition(":") for reward in self.reward_funcs)
        return {name: Path(file) for file, _, name in pairs if file.endswith(".py")}


class EvalConfig(Section):
    """Held-out evaluation, greedy and sampled at temperature 1; all else is sampled as in the training."""

    eval_steps: int = Field(
        100, ge=0, description="Evaluate every so many steps, before the first and after the last; 0: never."
    )
    max_rows: int | None = Field(None, ge=1)
    num_generations_eval: int = Field(1, ge=1, description="Sampled completions per held-out prompt.")


class RunConfig(Section):
    """One training run."""

    run_dir: Path = Field(description="Folder of everything this run writes.")
    seed: int = Field(42, ge=0, lt=2**31)
    max_steps: int | None = Field(
        None, ge=1, description="Generation batches, each followed by one push; num_train_epochs when absent."
    )
    num_train_epochs: Positive = 1.0
    lock_timeout_s: float = Field(60.0, ge=0, description="Time for another trainer to release run_dir.")
    model: ModelConfig
    data: DataConfig
    rollout: RolloutConfig = RolloutConfig()
    reward: RewardConfig
    teacher: TeacherConfig | None = Field(
        None,
        description="Learn from another model's logprobs; absent: none, but for datasets with a teacher of their own.",
    )
    episodes: EpisodesConfig | None = Field(
        None, description="Several turns, with tools, an environment or a program; absent: one completion a prompt."
    )
    algorithm: AlgorithmConfig = AlgorithmConfig()
    chord: ChordConfig | None = Field(
        None, description="Imitate demonstrations beside the samples; absent: the samples alone."
    )
    optimizer: OptimizerConfig = OptimizerConfig()
    deepspeed: DeepSpeedConfig = DeepSpeedConfig()
    weights: WeightsConfig = WeightsConfig()
    canary: CanaryConfig = CanaryConfig()
    eval: EvalConfig = EvalConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    guards: GuardsConfig = GuardsConfig()
    callbacks: list[str] = Field(
        default_factory=list,
        description="Your own code beside the training, FILE.py:NAME: called after steps, evaluations and the end.",
    )
    callbacks_params: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description="NAME of a callback → its keyword arguments."
    )
    logging: LoggingConfig = LoggingConfig()
    server: ServerConfig = ServerConfig()

    @model_validator(mode="after")
    def _ratios_of_one_distribution(self) -> Self:
        """Refuse distorted sampling where a server's logprob enters the loss: it would bias every ratio."""
        if not self.rollout.distorting:
            return self
        enters = []
        if self.algorithm.importance_sampling_correction:
            enters.append("algorithm.importance_sampling_correction true")
        if self.algorithm.max_staleness:
            enters.append(f"algorithm.max_staleness {self.algorithm.max_staleness}")
        if self.algorithm.off_policy_mask_threshold is not None:
            enters.append(f"algorithm.off_policy_mask_threshold {self.algorithm.off_policy_mask_threshold:g}")
        if enters:
            raise ValueError(
                f"{', '.join(self.rollout.distorting)}: the servers' logprobs are then of another distribution than "
                f"the policy's, and {' and '.join(enters)} would compare the two; sample without it, or set "
                "algorithm.importance_sampling_correction false and algorithm.max_staleness 0, and leave "
                "algorithm.off_policy_mask_threshold out"
            )
        return self

    @model_validator(mode="after")
    def _an_optimizer_that_can_be_offloaded(self) -> Self:
        sharing = self.deepspeed
        if sharing.offload_optimizer and sharing.zero_stage == 0 and self.model.dtype == "float32":
            raise ValueError(
                "deepspeed.offload_optimizer has no effect with deepspeed.zero_stage 0 and model.dtype float32; set "
                "deepspeed.zero_stage to 1, 2 or 3, or leave deepspeed.offload_optimizer out"
            )
        return self

    @model_validator(mode="after")
    def _an_adapter_with_two_learning_rates(self) -> Self:
        if self.optimizer.loraplus_lr_ratio is not None and self.model.lora is None:
            raise ValueError("optimizer.loraplus_lr_ratio is of an adapter; add model.lora, or leave it out")
        return self

    @model_validator(mode="after")
    def _parameters_of_one_callback(self) -> Self:
        names = [callback.rpartition(":")[2] for callback in self.callbacks]
        for name in self.callbacks_params:
            if name not in names:
                raise ValueError(f"callbacks_params.{name} is none of the callbacks: {', '.join(names) or 'none'}")
            if names.count(name) > 1:
                raise ValueError(f"callbacks_params.{name} may be of {names.count(name)} callbacks; rename one of them")
        return self

    @model_validator(mode="after")
    def _quantized_and_whole(self) -> Self:
        if self.model.load_in_4bit and self.deepspeed.zero_stage == 3:
            raise ValueError(
                "model.load_in_4bit keeps the frozen weights whole on every rank, and deepspeed.zero_stage 3 would "
                "shard them; set deepspeed.zero_stage to 0, 1 or 2"
            )
        return self

    @model_validator(mode="after")
    def _rows_and_episodes(self) -> Self:
        check_episodes(self)
        return self

    @model_validator(mode="after")
    def _something_to_learn_from(self) -> Self:
        check_teachers(self)
        return self

    @model_validator(mode="after")
    def _groups_that_can_have_spread(self) -> Self:
        if self.algorithm.dynamic_sampling and self.rollout.num_generations < 2:
            raise ValueError(
                "algorithm.dynamic_sampling replaces groups with equal rewards, and every group of a single completion "
                "is one; set rollout.num_generations to 2 or more"
            )
        return self

    @model_validator(mode="after")
    def _rewards_of_sets_among_all(self) -> Self:
        self.data.check_rewards(self.reward.names)
        return self

    @model_validator(mode="after")
    def _correct_by_a_reward_of_the_run(self) -> Self:
        if (name := self.reward.accuracy_reward) is not None and name not in self.reward_weights:
            how = "; one of the episodes' own gets it in episodes.reward_weights, 0 to log it" if self.episodes else ""
            raise ValueError(
                f"reward.accuracy_reward {name} is none of the rewards with a weight: "
                f"{', '.join(self.reward_weights) or 'there are none'}{how}"
            )
        return self

    @model_validator(mode="after")
    def _enough_completions_for_pass_at_k(self) -> Self:
        for name, chosen in self.data.eval_datasets.items():
            n, most = chosen.num_generations or self.eval.num_generations_eval, max(chosen.pass_at or [1])
            if most > n:
                raise ValueError(
                    f"data.eval_datasets.{name}.pass_at {most} needs as many completions per prompt, and {n} are "
                    f"sampled; set data.eval_datasets.{name}.num_generations to {most} or more"
                )
        return self

    @model_validator(mode="after")
    def _best_by_a_metric_that_is_measured(self) -> Self:
        metric, known = self.checkpoint.metric_for_best, self.evaluation_metrics
        if self.checkpoint.patience is not None and metric is None:
            raise ValueError("checkpoint.patience needs checkpoint.metric_for_best, such as eval_accuracy")
        if metric is not None and not known:
            raise ValueError(
                f"checkpoint.metric_for_best {metric} needs an evaluation; set data.eval_dataset or "
                "data.eval_datasets, and eval.eval_steps above 0"
            )
        if metric is not None and metric not in known:
            raise ValueError(f"checkpoint.metric_for_best {metric} is not measured; known are {', '.join(known)}")
        return self

    @property
    def has_held_out_rows(self) -> bool:
        """Rows of `data`, or tasks of `episodes` behind those that are trained on: `eval.max_rows` of them."""
        tasks = self.episodes is not None and bool(self.episodes.num_tasks and self.eval.max_rows)
        return self.data.has_held_out_rows or tasks

    @property
    def brought_weights(self) -> dict[str, float]:
        """Weight of each reward that episodes bring themselves; none without episodes."""
        return self.episodes.weights if self.episodes else {}

    @property
    def optional_rewards(self) -> frozenset[str]:
        """Name the rewards that episodes may bring, and that one with other rewards need not bring."""
        return self.episodes.optional_rewards if self.episodes else frozenset()

    @property
    def reward_weights(self) -> dict[str, float]:
        """Weight of every reward of the run: those that episodes bring, and those of the reward server."""
        return {**self.brought_weights, **self.reward.weights}

    @property
    def own_rewards(self) -> dict[str, dict[str, float]]:
        """The same for each dataset that has rewards of its own."""
        return {name: {**self.brought_weights, **weights} for name, weights in self.data.own_rewards.items()}

    @property
    def decides_accuracy(self) -> str:
        """The reward that decides what is correct: the one that is named for it, else the first that enters
        the total; empty without any."""
        return self.reward.accuracy_reward or deciding_reward(self.reward_weights)

    @property
    def teachers(self) -> dict[str, TeacherConfig]:
        """The teacher of each dataset that has one; the empty name is that of a run's only dataset."""
        own = {name: chosen.teacher or self.teacher for name, chosen in self.data.datasets.items()}
        found = own or {"": self.teacher}
        return {name: teacher for name, teacher in found.items() if teacher is not None}

    @property
    def untaught(self) -> list[str] | None:
        """The datasets of which groups of equal rewards teach nothing, in a run in which a teacher may teach them; None
        without such a teacher."""
        taught = {name for name, teacher in self.teachers.items() if teacher.teaches_equal_rewards}
        return [name for name in self.data.datasets or [""] if name not in taught] if taught else None

    @property
    def evaluation_metrics(self) -> list[str]:
        """Names of all metrics of an evaluation; none without an evaluation."""
        if not self.eval.eval_steps or not self.has_held_out_rows:
            return []
        if not self.reward_weights:
            return ["eval_completions/mean_length"]
        names = ["eval_accuracy", "eval_greedy", "eval_reward", "eval_completions/mean_length"]
        for name, chosen in self.data.eval_datasets.items():
            n = chosen.num_generations or self.eval.num_generations_eval
            at_k = [f"avg@{n}", *(f"pass@{k}" for k in chosen.pass_at or [n]), "greedy", "reward", "mean_length"]
            names += [f"eval/{name}/{metric}" for metric in at_k]
        return names

    @model_validator(mode="after")
    def _checkpoints_to_go_back_to(self) -> Self:
        if (rules := self.guards.rollback_rules) and not self.checkpoint.save_steps:
            raise ValueError(
                f"guards.{rules[0]} rollback goes back to a checkpoint, and checkpoint.save_steps 0 writes none before "
                "the end; set it above 0"
            )
        return self

    @model_validator(mode="after")
    def _whole_mini_batches(self) -> Self:
        size, steps = self.rollout.generation_batch_size, self.algorithm.steps_per_generation
        if size % steps:
            raise ValueError(
                f"algorithm.steps_per_generation {steps} does not divide rollout.generation_batch_size {size}"
            )
        return self
