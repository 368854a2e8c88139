"""The section `data` of a run file."""

from typing import Any, Literal

from pydantic import Field

from .section import Section, Share

RecipeName = Literal["none", "countdown", "numina_math"]
"""Name of a conversion from rows to prompts; see `data/recipes/`."""


class DifficultyConfig(Section):
    """Sample a prompt the less often, the more surely the policy solves it or fails; see `data/difficulty.py`."""

    min_weight: float = Field(
        0.25, gt=0.0, le=1.0, description="Chance of a prompt with a solve rate of 0 or 1 to be sampled in an epoch."
    )
    rest_epochs: int = Field(
        1, ge=0, le=100, description="Epochs without a prompt whose completions were all correct, or all wrong."
    )
    memory: Share = Field(0.5, description="Weight of earlier epochs in the solve rate of a prompt.")


class DataConfig(Section):
    """Where the prompts come from."""

    dataset: str = Field(
        min_length=1, description="A .jsonl, .json, .csv or .parquet file, or a Hub name. `name#500` takes 500 rows."
    )
    split: str = Field("train", description="Split of a Hub dataset.")
    eval_dataset: str | None = Field(None, description="Held-out rows, in the same forms; absent: no evaluation.")
    eval_split: str = "test"
    recipe: RecipeName = Field("none", description="How a row becomes a prompt; `none` takes `prompt_column` as it is.")
    prompt_column: str = Field("prompt", description="Text or a list of messages, for recipe `none`.")
    prompt_template: str | None = Field(
        None, description="Replaces the recipe's question text; {column} is filled in from the row."
    )
    system: str | None = Field(None, description="System prompt, or a file that holds it; replaces the recipe's own.")
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    max_prompt_length: int = Field(512, ge=1, description="Tokens; a longer prompt stops the run before it starts.")
    shuffle: bool = Field(True, description="Shuffle the rows in every epoch, as a function of the seed.")
    difficulty: DifficultyConfig | None = Field(
        None, description="Remember which prompts are solved, and prefer those that sometimes are; absent: all alike."
    )
