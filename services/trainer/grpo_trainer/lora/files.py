"""The files of an adapter, as PEFT saves and loads them, and the digest of the model that the adapter belongs to."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from grpo_proto.checkpoint_files import checkpoint_digest, checkpoint_folder

from ..config.lora import served_rank
from ..config.model import ModelConfig
from ..errors import UsageError, model_error_class, storage_error_class
from ..model_files import refuse_missing_folder, what_it_is

CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
CHECKPOINT_FILES = ["*.safetensors", "*.safetensors.index.json", "config.json"]
UNSUPPORTED = {
    "use_dora": "DoRA", "lora_bias": "a bias", "modules_to_save": "whole modules", "rank_pattern": "several ranks",
    "alpha_pattern": "several alphas", "alora_invocation_tokens": "activation by tokens (aLoRA)",
    "layer_replication": "repeated layers", "use_qalora": "QALoRA", "use_bdlora": "BD-LoRA", "kasa_config": "KaSA",
    "arrow_config": "Arrow", "trainable_token_indices": "trained tokens",
}  # fmt: skip
"""Settings of a saved adapter that the trainer cannot continue, and their words."""
PLAIN_INITS = ("gaussian", "eva", "orthogonal", "mica", "lora_ga")
"""The words of init_lora_weights that leave the model below as it is, see vLLM's `PEFTHelper`. With other words (pissa,
olora, corda, loftq) PEFT changes the model below when it loads the adapter, so that A and B alone mean nothing."""


def read_adapter(folder: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Return the configuration and the tensors of a LoRA adapter.

    Raises UsageError when the folder holds none, or one of a kind that the trainer does not train; UnavailableError
    when the disk is unavailable.
    """
    try:
        config = json.loads((folder / CONFIG).read_text())
        tensors = load_file(folder / TENSORS)
    except OSError as error:
        raise storage_error_class(error)(
            f"the adapter {folder} cannot be read: {error}", hint=f"give a folder with {CONFIG} and {TENSORS}"
        ) from error
    except (ValueError, SafetensorError) as error:
        raise UsageError(f"the folder {folder} is no adapter: {error}") from error
    if config.get("peft_type") != "LORA":
        raise UsageError(f"the adapter {folder} is of type {config.get('peft_type')}, not LORA")
    kinds = [word for name, word in UNSUPPORTED.items() if config.get(name)]
    if config.get("bias", "none") != "none":
        kinds.append("a bias")
    init = config.get("init_lora_weights")
    if isinstance(init, str) and init.lower() not in PLAIN_INITS:
        kinds.append(f"init_lora_weights {init}")
    if kinds:
        raise UsageError(
            f"the adapter {folder} has {' and '.join(kinds)}, which no rollout server serves as it is trained",
            hint="start from an adapter with plain A and B matrices of one rank; PEFT's save_pretrained converts PiSSA "
            "and the like to one with path_initial_model_for_weight_conversion",
        )
    return config, tensors


def write_adapter(
    folder: Path, config: Mapping[str, Any], tensors: dict[str, torch.Tensor], *, trained_by: str
) -> None:
    """Write an adapter and its model card into `folder`, which is made. Raises OSError and SafetensorError.

    `trained_by`: the method, for the card.
    """
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / TENSORS, {"format": "pt"})
    (folder / CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True))
    (folder / "README.md").write_text(_adapter_card(config, trained_by))


def write_merged_card(folder: Path, config: Mapping[str, Any], model: ModelConfig) -> None:
    """Write the model card of the model to which the adapter of `config` was added."""
    base, quantized = config["base_model_name_or_path"], model.load_in_4bit
    note = f"The linear layers of `{base}` have the values of NF4; the sum is not quantized.\n" if quantized else ""
    (folder / "README.md").write_text(
        f"---\nbase_model: {json.dumps(base)}\nlibrary_name: transformers\npipeline_tag: text-generation\n"
        "tags: [grpo, lora]\n---\n\n# A policy trained by GRPO, its adapter merged\n\n"
        f"The weights of `{base}` with a LoRA adapter of rank {config['r']} added.\n"
        f"The sum was computed in float32 and rounded once to {model.dtype}. It needs no PEFT: load it with\n"
        f"`transformers` or serve it with vLLM like any model.\n{note}"
    )


def _adapter_card(config: Mapping[str, Any], trained_by: str) -> str:
    base, rank = config["base_model_name_or_path"], served_rank(config["r"])
    flags = f"--enable-lora --max-lora-rank {rank} --lora-modules policy=THIS_FOLDER"
    serves = f"or serve them with\n`vllm serve {base} {flags}`."
    if config.get("target_parameters"):
        serves = "and serve their sum\nwith vLLM, which does not take an adapter on fused parameters as it stands."
    return (
        f"---\nbase_model: {json.dumps(base)}\nlibrary_name: peft\npipeline_tag: text-generation\n"
        f"tags: [lora]\n---\n\n# A LoRA adapter trained by {trained_by}\n\n"
        f"It belongs to `{base}`: rank {config['r']}, alpha {config['lora_alpha']}. Load both with\n"
        f"`peft.AutoPeftModelForCausalLM.from_pretrained(THIS_FOLDER)`, {serves}\n"
    )


def base_digest_of(name_or_path: str) -> str:
    """Return the digest of a model's checkpoint; downloads what is not here yet of a model of the Hub.

    Reads every byte. Raises UsageError or UnavailableError when there is no checkpoint in safetensors.
    """
    refuse_missing_folder(name_or_path)
    try:
        try:
            return checkpoint_digest(checkpoint_folder(name_or_path))
        except FileNotFoundError:  # of a download that broke off, some files are here
            if Path(name_or_path).is_dir():
                raise
            from huggingface_hub import snapshot_download

            return checkpoint_digest(Path(snapshot_download(name_or_path, allow_patterns=CHECKPOINT_FILES)))
    except (OSError, ValueError) as error:
        raise model_error_class(name_or_path, error)(
            f"the model {name_or_path} has no checkpoint whose digest can be computed: {error}",
            hint=what_it_is(name_or_path)
            or "model.lora needs a model in safetensors: its servers check that they serve the same one",
        ) from error
