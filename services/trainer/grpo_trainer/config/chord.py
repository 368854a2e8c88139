"""The section `chord` of a run file: demonstrations that are imitated beside the samples."""

from typing import Self

from pydantic import Field, model_validator

from .cold_start import Answers, ColdStartData
from .data import DataConfig, RecipeName
from .section import Share


class ChordConfig(Answers):
    """CHORD (arXiv 2508.11408): the loss is (1 − μ) times that of the samples plus μ times that of demonstrations. μ
    rises from 0 to its peak and falls to its valley, counted in optimizer updates."""

    sft_dataset: str = Field(
        min_length=1,
        description="Prompts with completions, or conversations, as for a cold start: a .jsonl, .json, .csv or "
        ".parquet file, or a Hub name. `name#500` takes 500 rows.",
    )
    sft_split: str = Field("train", description="Split of a Hub dataset, or of a folder.")
    sft_recipe: RecipeName | None = Field(
        None,
        description="Recipe of the prompts. Without it, sft_prompt_template and sft_prompt_column they are made as "
        "`data` says; none takes rows as they are, conversations, too.",
    )
    sft_prompt_template: str | None = Field(None, description="Template of the prompts, a text or a file.")
    sft_prompt_column: str | None = Field(None, description="Column of the prompts.")
    sft_max_length: int = Field(
        2048, ge=2, description="Limit of a prompt with its completion, in tokens; longer rows are refused."
    )
    sft_batch_size: int = Field(ge=1, description="Demonstrations of an optimizer update, over all ranks.")
    mu_peak: float = Field(gt=0.0, le=1.0, description="The largest μ.")
    mu_valley: Share | None = Field(None, description="μ after the decay; absent: mu_peak, which then stays.")
    mu_warmup_steps: int = Field(0, ge=0, description="Updates in which μ rises to mu_peak, along a line.")
    mu_decay_steps: int = Field(0, ge=0, description="Updates in which it then falls to mu_valley, along a cosine.")
    enable_phi_function: bool = Field(
        False,
        description="CHORD-φ: weigh a token by p · (1 − p), with its probability p, so that those that the policy "
        "knows, and those that are far from it, count little.",
    )

    @property
    def valley(self) -> float:
        """μ after the decay."""
        return self.mu_peak if self.mu_valley is None else self.mu_valley

    @model_validator(mode="after")
    def _falls(self) -> Self:
        valley = self.valley
        if valley < self.mu_peak and not self.mu_decay_steps:
            raise ValueError(
                f"mu_valley {valley:g} without mu_decay_steps: μ would be there as soon as the warm-up ends; set "
                "mu_decay_steps, or mu_peak alone for a μ that stays"
            )
        if valley > self.mu_peak:
            raise ValueError(f"mu_valley {valley:g} is above mu_peak {self.mu_peak:g}, and μ falls from peak to valley")
        if self.mu_decay_steps and valley == self.mu_peak:
            raise ValueError(
                f"mu_decay_steps {self.mu_decay_steps} has no effect: mu_valley is mu_peak {valley:g}; set mu_valley "
                "below it, or leave mu_decay_steps out"
            )
        return self

    def rows_of(self, data: DataConfig) -> ColdStartData:
        """Return how the demonstrations are read: their prompts are made as those of the run are."""
        own = (self.sft_recipe, self.sft_prompt_template, self.sft_prompt_column) != (None, None, None)
        return ColdStartData(
            dataset=self.sft_dataset,
            split=self.sft_split,
            recipe=self.sft_recipe or "none" if own else data.recipe,
            recipe_params={} if own else data.recipe_params,
            prompt_column=self.sft_prompt_column or data.prompt_column,
            **self.model_dump(include=set(Answers.model_fields)),
            prompt_template=self.sft_prompt_template if own else data.prompt_template,
            system=data.system,
            chat_template_kwargs=data.chat_template_kwargs,
            max_length=self.sft_max_length,
        )
