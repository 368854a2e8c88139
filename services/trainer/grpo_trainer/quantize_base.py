"""`grpo-train quantize-base MODEL FOLDER`: write the model that a run with `model.load_in_4bit` trains on and serves.

Its linear layers have the values of NF4, in an ordinary checkpoint: a rollout server needs no quantization method, and
the digest by which trainer and servers compare their models is of these values.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from .atomic_file import check_new_folder, rehearse_folder, save_folder
from .config.model import ModelConfig
from .errors import UsageError
from .model_files import NF4_MARK, ModelFiles


def main(argv: Sequence[str]) -> int:
    """Read the arguments, quantize, return the exit status. Raises TrainerError."""
    parser = argparse.ArgumentParser(prog="grpo-train quantize-base", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", metavar="MODEL", help="Hugging Face name or folder")
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="where the new model is written")
    parser.add_argument(
        "--dtype",
        choices=["bfloat16", "float32"],
        default="bfloat16",
        help="model.dtype of the run (default: bfloat16)",
    )
    parser.add_argument("--trust-remote-code", action="store_true")
    options = parser.parse_args(argv)
    config = ModelConfig(name_or_path=options.model, dtype=options.dtype, trust_remote_code=options.trust_remote_code)
    print(f"quantized base saved in {options.folder}: {quantize_base(config, options.folder)}")
    return 0


def quantize_base(config: ModelConfig, folder: Path) -> str:
    """Write the model of `config` with its linear layers rounded to NF4 into `folder`, complete or absent.

    Returns how much of the model that is. Raises UsageError, UnavailableError and RunError.
    """
    check_new_folder(folder, named="FOLDER")
    from transformers.utils import logging as transformers_logging

    from .data.tokenizer import load_tokenizer
    from .engine.model import load_policy
    from .lora.nf4 import BLOCK, round_to_nf4

    transformers_logging.disable_progress_bar()
    files = ModelFiles.of(config.name_or_path, load_tokenizer(config))
    model = load_policy(config, temperature=1.0, zero3=None).model
    num_bytes = sum(parameter.nbytes for parameter in model.parameters())
    rehearse_folder(folder, lambda part: files.write(part, model, {}), num_bytes=num_bytes)
    rounded = round_to_nf4(model)
    if not rounded:
        raise UsageError(f"{config.name_or_path} has no linear layers below its output head: NF4 would keep none of it")
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    count, total = sum(sizes[name] for name in rounded), sum(sizes.values())
    mark = {"quant_type": "nf4", "block_size": BLOCK, "dtype": config.dtype, "base_model": config.name_or_path}

    def write(part: Path) -> None:
        files.write(part, model, None)
        (part / NF4_MARK).write_text(json.dumps(mark | {"weights": rounded}, indent=1) + "\n")
        (part / "README.md").write_text(_card(config))

    save_folder(folder, write)
    return f"{len(rounded)} linear layers, {count:,} of {total:,} weights, have the values of NF4"


def _card(config: ModelConfig) -> str:
    return (
        f"---\nbase_model: {json.dumps(config.name_or_path)}\nlibrary_name: transformers\n"
        "pipeline_tag: text-generation\ntags: [nf4, qlora]\n---\n\n# A model with the values of NF4\n\n"
        f"The linear layers of `{config.name_or_path}` below the output head, quantized to NF4 in blocks of 64 and\n"
        f"converted back to {config.dtype}; all else is as it was. `{NF4_MARK}` names them. Quantized again, they\n"
        "stay the same. Load it with `transformers` or serve it with vLLM like any model; it takes as much memory as\n"
        "before. An adapter trained on it in four bits belongs to these values.\n"
    )
