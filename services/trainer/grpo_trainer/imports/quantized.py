"""QLoRA: both trainers quantize a model while they load it; ours trains on one that was written in NF4."""

from .run_file import RunFile


def set_quantized(run: RunFile, shown: str) -> None:
    """Train on a model that `grpo-train quantize-base` writes first."""
    model = str(run.value("model.name_or_path"))
    folder = f"models/{model.rstrip('/').rpartition('/')[2]}-nf4"
    run.set("model.load_in_4bit", True, shown)
    run.set("model.name_or_path", folder, f"{model}, written in NF4 by the first of the lines above")
    run.starts.append(f"grpo-train quantize-base {model} {folder}")
