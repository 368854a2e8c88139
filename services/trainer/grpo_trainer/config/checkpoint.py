"""The section `checkpoint` of a run file: when a run is saved, and what is kept."""

from pydantic import Field

from .section import Section


class CheckpointConfig(Section):
    """Checkpoints are complete or absent."""

    save_steps: int = Field(100, ge=0, description="Save every so many steps and at the end; 0: only at the end.")
    save_total_limit: int = Field(2, ge=1, description="Number of newest checkpoints that are kept.")
    async_save: bool = Field(
        False,
        description="Write checkpoints while training goes on, from a copy in host memory of what each rank saves.",
    )
    metric_for_best: str | None = Field(
        None,
        description="Evaluation metric, such as eval_accuracy, whose best checkpoint is kept, too; absent: none.",
    )
    greater_is_better: bool = Field(True, description="Whether a greater metric_for_best is better.")
    load_best_at_end: bool = Field(
        False, description="The final model is that of the best checkpoint, not that of the last step."
    )
    patience: int | None = Field(
        None, ge=1, description="End the run after so many evaluations without a better one; absent: at max_steps."
    )
    save_merged: bool = Field(
        False, description="With model.lora: write model-merged/ beside model/, the model with the adapter added."
    )
