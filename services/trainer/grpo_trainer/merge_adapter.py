"""`grpo-train merge-adapter ADAPTER FOLDER`: write the sum of a LoRA adapter and its model.

The sum is a model like any other, computed in float32 and rounded once, as a run with `checkpoint.save_merged` writes
it. No server is asked.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from .atomic_file import check_new_folder, rehearse_folder, save_folder
from .config.lora import described_by
from .config.model import ModelConfig
from .errors import UsageError
from .model_files import NF4_MARK, ModelFiles, refuse_missing_folder


def main(argv: Sequence[str]) -> int:
    """Read the arguments, merge, return the exit status. Raises TrainerError."""
    parser = argparse.ArgumentParser(prog="grpo-train merge-adapter", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "adapter", metavar="ADAPTER", type=Path, help="folder of an adapter: run_dir/model of a run with model.lora"
    )
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="where the merged model is written")
    parser.add_argument(
        "--model", help="name or folder of the model that the adapter was trained on (default: the one it names)"
    )
    parser.add_argument(
        "--dtype", choices=["bfloat16", "float32"], default="bfloat16", help="of the merged model (default: bfloat16)"
    )
    parser.add_argument("--trust-remote-code", action="store_true")
    options = parser.parse_args(argv)
    count = merge_adapter(
        options.adapter,
        options.folder,
        model=options.model,
        dtype=options.dtype,
        trust_remote_code=options.trust_remote_code,
    )
    print(f"merged model saved in {options.folder}: an adapter was added to {count} of its weights")
    return 0


def merge_adapter(adapter: Path, folder: Path, *, model: str | None, dtype: str, trust_remote_code: bool) -> int:
    """Write the model with the adapter added into `folder`, complete or absent. Returns how many weights it changed.

    Args:
        model: what the adapter was trained on; None: what its configuration names.
        dtype: of the model below while it is read, and of the sum.

    Raises UsageError, UnavailableError and RunError.
    """
    check_new_folder(folder, named="FOLDER")
    from .lora.files import read_adapter, write_merged_card

    saved_config, factors = read_adapter(adapter)
    base = model or saved_config.get("base_model_name_or_path")
    if not base:
        raise UsageError(f"the adapter {adapter} names no model that it was trained on", hint="name it: --model MODEL")
    try:
        refuse_missing_folder(base)
    except UsageError as error:
        raise UsageError(
            f"the model of {adapter} is not here: {error.message}", hint="name it: --model MODEL"
        ) from error
    lora = described_by(saved_config, adapter)
    config = ModelConfig(
        name_or_path=base,
        dtype=dtype,
        trust_remote_code=trust_remote_code,
        lora=lora,
        load_in_4bit=(Path(base) / NF4_MARK).is_file(),
    )

    import torch
    from transformers.utils import logging as transformers_logging

    from .data.tokenizer import load_tokenizer
    from .engine.model import load_policy
    from .lora.adapter import Adapter

    transformers_logging.disable_progress_bar()
    with_tokenizer = adapter if (adapter / "tokenizer_config.json").is_file() else base
    tokenizer = load_tokenizer(config.model_copy(update={"name_or_path": str(with_tokenizer)}))
    files = ModelFiles.of(base, tokenizer)
    policy = load_policy(config, temperature=1.0, zero3=None).model
    num_bytes = sum(parameter.nbytes for parameter in policy.parameters())
    added = Adapter(policy, lora, base_name=base, seed=0)
    for name, parameter in added.tensors().items():
        parameter.data = factors[name].float()  # as it was saved, whatever the model's dtype

    def write(part: Path, state: dict[str, torch.Tensor]) -> None:
        files.write(part, policy, state)
        write_merged_card(part, added.saved_config(), config)

    rehearse_folder(folder, lambda part: write(part, {}), num_bytes=num_bytes)
    state = added.merged_state(getattr(torch, dtype))
    save_folder(folder, lambda part: write(part, state))
    return len(added.layers)
