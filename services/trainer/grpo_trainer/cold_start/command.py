"""`grpo-train cold-start FILE.yaml`: supervised fine-tuning with TRL's SFTTrainer, before a run.

`data/demonstrations.py` makes the tokens as a run makes them, so that sampling begins from exactly the prompts of the
fine-tuning.
Several GPUs: `torchrun --nproc-per-node 8 -m grpo_trainer cold-start FILE.yaml`.
"""

import copy
import logging
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..atomic_file import check_new_folder, rehearse_folder, save_folder
from ..config.cold_start import ColdStartConfig
from ..config.settings import read_config
from ..data.demonstrations import load_examples
from ..errors import RunError, UsageError, model_error_class
from ..model_class import auto_class_of
from ..model_files import ModelFiles
from ..ranks.launch import environment_rank

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from ..lora.adapter import Adapter

log = logging.getLogger(__name__)


def main(argv: Sequence[str]) -> int:
    """Read the configuration from files and flags, run, return the exit status. Raises TrainerError."""
    config = read_config(
        ColdStartConfig, argv, program="grpo-train cold-start FILE.yaml", env_prefix="GRPO_COLD_START__"
    )
    folder = run_cold_start(config)
    print(f"cold start saved in {folder}")
    return 0


def run_cold_start(config: ColdStartConfig) -> Path:
    """Fine-tune, and save model and tokenizer in `output_dir`, which is complete or absent. Returns the folder."""
    import torch

    check_new_folder(config.output_dir, named="output_dir")
    _no_bars()
    on_cpu = _on_cpu(config, gpu_present=torch.cuda.is_available())
    model, tokenizer = _load(config)
    adapter = _adapter(config, model)
    examples = load_examples(config.data, tokenizer)
    ends = list(dict.fromkeys(example["input_ids"][-1] for example in examples))
    files = replace(ModelFiles.of(config.model.name_or_path, tokenizer), ends=ends)
    saved = _Saved(config, model, adapter, files)
    if environment_rank() == 0:
        print("completions end with", " or ".join(tokenizer.convert_ids_to_tokens(ends)), flush=True)
        saved.rehearse()
    started = time.monotonic()
    trainer = _trainer(config, model, tokenizer, examples, on_cpu=on_cpu)
    loss = trainer.train().training_loss
    if not loss < float("inf"):
        raise RunError(f"the loss is {loss}: nothing was saved", hint="lower learning_rate")
    log.info("%d steps in %.0f s", trainer.state.global_step, time.monotonic() - started)
    if trainer.is_world_process_zero():
        saved.save()
    return config.output_dir


def _no_bars() -> None:
    """Disable the progress bars of loading and saving, which garble a log."""
    import datasets
    from transformers.utils import logging as transformers_logging

    datasets.disable_progress_bars()
    transformers_logging.disable_progress_bar()


def _on_cpu(config: ColdStartConfig, *, gpu_present: bool) -> bool:
    if config.device == "cuda" and not gpu_present:
        raise UsageError("device is cuda, and torch finds no GPU here", hint="set device to auto or cpu")
    return config.device == "cpu" or not gpu_present


def _load(config: ColdStartConfig) -> tuple["PreTrainedModel", "PreTrainedTokenizerBase"]:
    import torch
    from transformers import AutoConfig, AutoTokenizer, set_seed

    from ..data.tokenizer import chat_template

    set_seed(config.seed)
    name, trusted = config.model.name_or_path, config.model.trust_remote_code
    template = chat_template(config.model)
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=trusted)
        family = AutoConfig.from_pretrained(name, trust_remote_code=trusted)
        model = auto_class_of(family).from_pretrained(
            name,
            # bfloat16 weights would lose Adam's small updates.
            dtype=torch.float32,
            attn_implementation=config.model.attn_implementation,
            trust_remote_code=trusted,
        )
    except (OSError, ValueError) as error:
        raise model_error_class(name, error)(
            f"model.name_or_path {name} cannot be loaded: {str(error).strip().splitlines()[0]}",
            hint="give a folder with config.json, weights and tokenizer, or a Hugging Face name",
        ) from error
    if template is not None:
        tokenizer.chat_template = template
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return model, tokenizer


def _adapter(config: ColdStartConfig, model: "PreTrainedModel") -> "Adapter | None":
    """Put a new adapter on the model and freeze the model; None when all weights are trained."""
    if config.model.lora is None:
        return None
    from ..lora.adapter import Adapter

    return Adapter(model, config.model.lora, base_name=config.model.name_or_path, seed=config.seed)


def _trainer(
    config: ColdStartConfig,
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    examples: Sequence[Any],
    *,
    on_cpu: bool,
) -> Any:
    from datasets import Dataset
    from transformers import PrinterCallback, ProgressCallback

    with warnings.catch_warnings():
        # Silence deprecations that torch and transformers warn of when TRL imports them.
        warnings.simplefilter("ignore")
        from trl import SFTConfig, SFTTrainer

    on_terminal = sys.stderr.isatty()
    arguments = SFTConfig(
        # Unused: checkpoints and reports are off.
        output_dir=str(config.output_dir),
        save_strategy="no",
        report_to="none",
        max_steps=config.max_steps or -1,
        num_train_epochs=config.num_train_epochs,
        per_device_train_batch_size=config.per_device_train_batch_size,
        gradient_accumulation_steps=config.gradient_accumulation_steps,
        learning_rate=config.learning_rate,
        lr_scheduler_type=config.lr_scheduler_type,
        warmup_steps=config.warmup_steps,
        weight_decay=config.weight_decay,
        adam_beta2=config.adam_beta2,
        max_grad_norm=config.max_grad_norm,
        gradient_checkpointing=config.model.gradient_checkpointing,
        # `examples.py` has checked all lengths; TRL would truncate without a warning.
        max_length=None,
        completion_only_loss=True,
        use_cpu=on_cpu,
        bf16=not on_cpu and config.model.dtype == "bfloat16",
        seed=config.seed,
        logging_steps=config.logging_steps,
        disable_tqdm=not on_terminal,
        dataloader_pin_memory=not on_cpu,
    )
    trainer = SFTTrainer(
        model=model,
        args=arguments,
        train_dataset=Dataset.from_list(list(examples)),
        processing_class=tokenizer,
    )
    if not on_terminal:
        trainer.remove_callback(PrinterCallback)
        trainer.remove_callback(ProgressCallback)
        trainer.add_callback(_progress_lines())
    return trainer


def _progress_lines() -> Any:
    """Return a callback that prints `step 50/300  loss 0.412  18 s left` instead of a bar."""
    from transformers import TrainerCallback

    class ProgressLines(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.started = time.monotonic()

        def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> None:
            if not state.is_world_process_zero or not logs or "loss" not in logs:
                return
            left_s = (time.monotonic() - self.started) / state.global_step * (state.max_steps - state.global_step)
            loss = float(logs["loss"])
            print(f"step {state.global_step}/{state.max_steps}  loss {loss:.4f}  {left_s:.0f} s left", flush=True)

    return ProgressLines()


class _Saved:
    """What the cold start leaves: `output_dir` with the model and, for an adapter, the folder `adapter` inside.

    A run begins from `output_dir`, or from the model below the adapter and the folder inside.
    """

    def __init__(self, config: ColdStartConfig, model: "PreTrainedModel", adapter: "Adapter | None", files: ModelFiles):
        import torch

        self._config, self._model, self._adapter, self._files = config, model, adapter, files
        self._dtype: torch.dtype = getattr(torch, config.model.dtype)
        self._settings = copy.deepcopy(model.config)  # TRL switches the cache off, which sampling needs

    def rehearse(self) -> None:
        """Write all but the tensors, and remove it. Raises UsageError and UnavailableError."""
        num_bytes = sum(parameter.numel() for parameter in self._model.parameters()) * self._dtype.itemsize
        rehearse_folder(self._config.output_dir, lambda part: self._write(part, {}, {}), num_bytes=num_bytes)

    def save(self) -> None:
        """Write the folder whole or not at all. Raises RunError."""
        # Cast before the adapter is added: the sum is that of what is saved, and a run may begin from either.
        self._model.to(self._dtype)
        state = self._adapter.merged_state(self._dtype) if self._adapter else None
        tensors = self._adapter.tensors() if self._adapter else {}
        save_folder(self._config.output_dir, lambda part: self._write(part, state, tensors))

    def _write(self, part: Path, state: dict[str, Any] | None, tensors: dict[str, Any]) -> None:
        from ..lora.files import write_adapter

        trained, self._model.config = self._model.config, self._settings
        try:
            self._files.write(part, self._model, state)
        finally:
            self._model.config = trained
        if self._adapter is not None:
            method = "supervised fine-tuning"
            write_adapter(part / "adapter", self._adapter.saved_config(), tensors, trained_by=method)
            self._files.write_tokenizer(part / "adapter")
