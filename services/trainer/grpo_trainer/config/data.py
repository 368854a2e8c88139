"""The section `data` of a run file."""

import math
from collections.abc import Sequence
from itertools import combinations
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from .section import Section, Share
from .teacher import TeacherConfig

RecipeName = Annotated[str, Field(min_length=1)]
"""Name of a conversion from rows to prompts, or a user's own as FILE.py:NAME; see `data/recipes/`."""


class DifficultyConfig(Section):
    """Sample a prompt the less often, the more surely the policy solves it or fails; see `data/difficulty.py`."""

    min_weight: float = Field(
        0.25, gt=0.0, le=1.0, description="Chance of a prompt with a solve rate of 0 or 1 to be sampled in an epoch."
    )
    rest_epochs: int = Field(
        1, ge=0, le=100, description="Epochs without a prompt whose completions were all correct, or all wrong."
    )
    memory: Share = Field(0.5, description="Weight of earlier epochs in the solve rate of a prompt.")


SetName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
"""Name of a set of rows: part of the names of metrics, and of a file in the run folder."""


class NamedDataset(Section):
    """Rows with a name of their own. What is absent is that of `data`."""

    dataset: str = Field(
        min_length=1, description="A .jsonl, .json, .csv or .parquet file, or a Hub name. `name#500` takes 500 rows."
    )
    recipe: RecipeName | None = Field(None, description="How a row becomes a prompt; absent: data.recipe.")
    recipe_params: dict[str, Any] | None = Field(
        None, description="Keyword arguments of the recipe; absent: data.recipe_params, if the recipe is data.recipe."
    )
    prompt_column: str | None = Field(None, description="Column of the prompt; absent: data.prompt_column.")
    prompt_template: str | None = Field(None, description="Text of the prompt; absent: data.prompt_template.")
    system: str | None = Field(None, description="System prompt, or a file that holds it; absent: data.system.")
    rewards: dict[str, float] | None = Field(
        None, min_length=1, description="Reward → weight, some of reward.reward_funcs; absent: all with their weights."
    )

    @property
    def own_prompt(self) -> dict[str, Any]:
        """What decides the prompts of this set in place of what `data` has."""
        own = {name: value for name in OWN_PROMPT if (value := getattr(self, name)) is not None}
        return own if self.recipe is None else {"recipe_params": {}} | own


class EvalDataset(NamedDataset):
    """Held-out rows. What is absent is that of `data` or `eval`."""

    split: str = Field("test", description="Split of a Hub dataset, or of a folder.")
    max_rows: int | None = Field(None, ge=1, description="Rows that are evaluated; absent: eval.max_rows.")
    num_generations: int | None = Field(
        None, ge=1, description="Sampled completions per prompt, the k of avg@k; absent: eval.num_generations_eval."
    )
    pass_at: list[Annotated[int, Field(ge=1)]] | None = Field(
        None, min_length=1, description="Each k of pass@k, at most the sampled completions; absent: all of them."
    )


class TrainingDataset(NamedDataset):
    """One of several datasets to train on."""

    ratio: float = Field(gt=0.0, le=1.0, description="Share of the prompts; the ratios of all datasets add up to 1.")
    split: str = Field("train", description="Split of a Hub dataset, or of a folder.")
    rewards: dict[str, float] | None = Field(
        None,
        description="Reward → weight, some of reward.reward_funcs; absent: all with their weights; empty: none, for a "
        "dataset with a teacher.",
    )
    teacher: TeacherConfig | None = Field(
        None, description="The teacher of this dataset; absent: that of the section teacher, if there is one."
    )


OWN_PROMPT = {"recipe", "recipe_params", "prompt_column", "prompt_template", "system"}
"""What a set may have of its own in place of what `data` has."""
RATIO_TOLERANCE = 1e-6
"""How far the sum of the ratios may be from 1: thirds are written with six digits."""


class DataConfig(Section):
    """Where the prompts come from."""

    dataset: str | None = Field(
        None,
        min_length=1,
        description="A .jsonl, .json, .csv or .parquet file, or a Hub name. `name#500` takes 500 rows.",
    )
    datasets: dict[SetName, TrainingDataset] = Field(
        default_factory=dict, description="In place of `dataset`: several by name, each with its share of the prompts."
    )
    split: str = Field("train", description="Split of a Hub dataset, or of a folder.")
    eval_dataset: str | None = Field(None, description="Held-out rows, in the same forms; absent: no evaluation.")
    eval_split: str = Field("test", description="Split of `eval_dataset`.")
    eval_datasets: dict[SetName, EvalDataset] = Field(
        default_factory=dict, description="Several held-out sets by name, each with its avg@k and pass@k."
    )
    recipe: RecipeName = Field(
        "none",
        description="How a row becomes a prompt: none (prompt_column as it is), countdown, numina_math; your own is "
        "FILE.py:NAME.",
    )
    recipe_params: dict[str, Any] = Field(
        default_factory=dict, description="Keyword arguments of a recipe of your own, where it takes any."
    )
    prompt_column: str = Field("prompt", description="Text or a list of messages, for recipe `none`.")
    prompt_template: str | None = Field(
        None,
        description="Replaces the recipe's question text; {column} and {column.key} are filled in from the row. Other "
        "braces, as in LaTeX and JSON, are text.",
    )
    system: str | None = Field(None, description="System prompt, or a file that holds it; replaces the recipe's own.")
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    max_prompt_length: int = Field(512, ge=1, description="Tokens. For longer prompts see `overlong_prompts`.")
    overlong_prompts: Literal["refuse", "drop"] = Field(
        "refuse",
        description="A prompt longer than max_prompt_length stops the run before it starts, or its row is left out, "
        "and counted in the log.",
    )
    image_column: str | None = Field(
        None,
        description="Column of a row's images, one or a list: paths, base64, or as the Hub's datasets have them; "
        "absent: images, or image, where the model sees images.",
    )
    image_folder: str | None = Field(
        None, description="Folder of images with relative paths; absent: that of the dataset's file."
    )
    max_image_pixels: int | None = Field(
        None, ge=1, description="Pixels of an image; larger ones are made smaller. Absent: as the model takes them."
    )
    shuffle: bool = Field(True, description="Shuffle the rows in every epoch, as a function of the seed.")
    difficulty: DifficultyConfig | None = Field(
        None, description="Remember which prompts are solved, and prefer those that sometimes are; absent: all alike."
    )

    @property
    def own_rewards(self) -> dict[str, dict[str, float]]:
        """The rewards and weights of each set that has its own. Names of sets are those of `PromptRow.dataset`."""
        held_out = {f"eval/{name}": chosen.rewards for name, chosen in self.eval_datasets.items()}
        of_sets = {name: chosen.rewards for name, chosen in self.datasets.items()} | held_out
        return {name: rewards for name, rewards in of_sets.items() if rewards is not None}

    def check_rewards(self, known: Sequence[str]) -> None:
        """Raises ValueError when a set has rewards of its own that are none of the `known` ones of the run."""
        for name, own in self.own_rewards.items():
            if unknown := [reward for reward in own if reward not in known]:
                raise ValueError(
                    f"the dataset {name} has rewards of its own, and {unknown[0]} is none of the reward.reward_funcs "
                    f"{', '.join(known)}; add it there"
                )

    @property
    def has_held_out_rows(self) -> bool:
        return self.eval_dataset is not None or bool(self.eval_datasets)

    @model_validator(mode="after")
    def _one_form_of_training_rows(self) -> Self:
        if self.dataset is not None and self.datasets:
            raise ValueError(
                f"data.dataset and data.datasets both name rows to train on; make data.dataset {self.dataset} one of "
                "data.datasets, and leave it out (null)"
            )
        return self

    @model_validator(mode="after")
    def _ratios_of_different_datasets(self) -> Self:
        total = math.fsum(chosen.ratio for chosen in self.datasets.values())
        if self.datasets and round(abs(total - 1.0), 9) > RATIO_TOLERANCE:
            each = ", ".join(f"{name} {chosen.ratio:g}" for name, chosen in self.datasets.items())
            raise ValueError(f"the ratios of data.datasets add up to {total:.7g} and have to add up to 1: {each}")
        for one, other in combinations(self.datasets, 2):
            both = self.datasets[one], self.datasets[other]
            if both[0].model_copy(update={"ratio": both[1].ratio}) == both[1]:
                raise ValueError(
                    f"data.datasets.{one} and data.datasets.{other} are the same rows with the same prompts; make them "
                    f"one with the ratio {both[0].ratio + both[1].ratio:.7g}"
                )
        return self

    @model_validator(mode="after")
    def _parameters_of_a_recipe_that_is_read(self) -> Self:
        sets = [*self.datasets.values(), *self.eval_datasets.values()]
        alone = self.dataset is not None or self.eval_dataset is not None
        if self.recipe_params and not alone and all(chosen.recipe is not None for chosen in sets):
            raise ValueError(
                "data.recipe_params are those of data.recipe, and every set has a recipe of its own: write "
                "recipe_params beside that"
            )
        return self

    def of_dataset(self, name: str) -> "DataConfig":
        """These settings with the dataset `name` as the only one to train on."""
        chosen = self.datasets[name]
        alone = {"dataset": chosen.dataset, "split": chosen.split, "datasets": {}}
        return self.model_copy(update=chosen.own_prompt | alone)

    @model_validator(mode="after")
    def _one_form_of_held_out_rows(self) -> Self:
        if self.eval_dataset is not None and self.eval_datasets:
            raise ValueError(
                "data.eval_dataset and data.eval_datasets both name held-out rows; make data.eval_dataset "
                f"{self.eval_dataset} one of data.eval_datasets, and leave it out"
            )
        return self

    def of_eval_dataset(self, name: str) -> "DataConfig":
        """These settings with the set `name` as the only held-out one."""
        chosen = self.eval_datasets[name]
        held_out = {"eval_dataset": chosen.dataset, "eval_split": chosen.split, "eval_datasets": {}}
        return self.model_copy(update=chosen.own_prompt | held_out)
