"""`prepare.py RUN.yaml …`: have the model and the data of a run here before anything needs them.

Reads the same files and environment as `grpo-train` and puts what they name into the Hugging Face cache (HF_HOME, a
volume), so that rollout server and trainer find the same bytes. A folder or file is only looked for.
"""

import sys
from pathlib import Path

from grpo_trainer.config.run_config import RunConfig
from grpo_trainer.config.settings import read_config
from grpo_trainer.data.sources import find_source
from grpo_trainer.errors import TrainerError, UsageError, model_error_class


def prepare_model(name_or_path: str) -> None:
    """Raises UsageError for a folder that is no model, UnavailableError for a name that cannot be downloaded."""
    if name_or_path.startswith(("/", ".")):
        if not (Path(name_or_path) / "config.json").is_file():
            raise UsageError(f"model {name_or_path}: no config.json in it", hint="mount the folder into the container")
        return
    from huggingface_hub import snapshot_download

    try:
        folder = snapshot_download(name_or_path, ignore_patterns=["*.pth", "*.gguf", "original/*", "*.onnx"])
    except OSError as error:  # all of the Hub's errors are some
        raise model_error_class(name_or_path, error)(
            f"model {name_or_path} cannot be downloaded: {error}",
            hint="check the name, the network, and HF_TOKEN_FILE for a gated model",
        ) from error
    print(f"model {name_or_path} is in {folder}")


def count(dataset: str, split: str) -> int:
    """Read all rows of `dataset`, and count them."""
    return sum(1 for _ in find_source(dataset, split).rows())


def main() -> int:
    try:
        config = read_config(RunConfig, sys.argv[1:], program="prepare.py RUN.yaml", env_prefix="GRPO_TRAIN__")
        prepare_model(config.model.name_or_path)
        data = config.data
        print(f"data {data.dataset}: {count(data.dataset, data.split):,} rows")
        if data.eval_dataset:
            print(f"data {data.eval_dataset}: {count(data.eval_dataset, data.eval_split):,} rows")
    except TrainerError as error:
        print(f"error: {error.message}" + (f"\nhint: {error.hint}" if error.hint else ""), file=sys.stderr)
        return error.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main())
