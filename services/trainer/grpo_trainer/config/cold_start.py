"""The file of a cold start: one pydantic model, which refuses unknown keys. Names are those of TRL and run files."""

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from .data import RecipeName
from .lora import LoraConfig
from .section import Positive, Section, Share


class ColdStartModel(Section):
    """The model to start from."""

    name_or_path: str = Field(min_length=1, description="Hugging Face name or folder of the model and its tokenizer.")
    dtype: Literal["bfloat16", "float32"] = Field(
        "bfloat16",
        description="Dtype of the saved weights, and of computing on a GPU. The trained weights are float32.",
    )
    chat_template: str | None = Field(
        None,
        min_length=1,
        description="Jinja template, or a file that holds it; replaces the tokenizer's own, in the saved model, too.",
    )
    attn_implementation: Literal["sdpa", "eager", "flash_attention_2"] = "sdpa"
    gradient_checkpointing: bool = Field(False, description="Recompute activations: less memory, slower backward.")
    trust_remote_code: bool = False
    lora: LoraConfig | None = Field(
        None, description="Train an adapter: saved in output_dir/adapter, and added to the model in output_dir."
    )


class Answers(Section):
    """Where the answers of a row are that are learned."""

    completion_column: str = Field("completion", description="Text, or a list of a single assistant message.")
    messages_column: str = Field(
        "messages",
        description="Whole conversations, for a dataset without completions; the last message is learned.",
    )
    learned_messages: Literal["last", "all"] = Field(
        "last",
        description="all: every message of the assistant in a conversation, each behind what came before it.",
    )


class ColdStartData(Answers):
    """Prompts as in a run file, and completions. The loss covers the completions alone."""

    dataset: str = Field(
        min_length=1, description="A .jsonl, .json, .csv or .parquet file, or a Hub name. `name#500` takes 500 rows."
    )
    split: str = Field("train", description="Split of a Hub dataset, or of a folder.")
    recipe: RecipeName = Field("none", description="Recipe of the run that follows.")
    recipe_params: dict[str, Any] = Field(default_factory=dict, description="Its parameters in the run that follows.")
    prompt_column: str = Field("prompt", description="Text or a list of messages, for recipe `none`.")
    prompt_template: str | None = Field(None, description="Template of the run that follows.")
    system: str | None = Field(None, description="System prompt of the run that follows.")
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    max_length: int = Field(
        2048, ge=2, description="Limit of a prompt with its completion, in tokens; longer rows are refused."
    )


class ColdStartConfig(Section):
    """Supervised fine-tuning before the first run."""

    output_dir: Path = Field(description="Where model and tokenizer are saved, for transformers and vLLM.")
    model: ColdStartModel
    data: ColdStartData
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto: a GPU if there is one.")
    seed: int = Field(42, ge=0, lt=2**31)
    num_train_epochs: Positive = 1.0
    max_steps: int | None = Field(None, ge=1, description="Optimizer updates; num_train_epochs when absent.")
    per_device_train_batch_size: int = Field(8, ge=1)
    gradient_accumulation_steps: int = Field(1, ge=1)
    learning_rate: Positive = 2e-5
    lr_scheduler_type: Literal["constant", "constant_with_warmup", "linear", "cosine"] = "cosine"
    warmup_steps: int = Field(0, ge=0, description="Updates with a growing learning rate.")
    weight_decay: float = Field(0.0, ge=0.0)
    adam_beta2: Share = 0.999
    max_grad_norm: Positive = 1.0
    logging_steps: int = Field(50, ge=1, description="Print a progress line every so many updates, off a terminal.")
