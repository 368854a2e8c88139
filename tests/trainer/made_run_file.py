"""A run file of a tiny model and two prompts, as small as a run can be."""

import json
from pathlib import Path
from typing import Any

import yaml
from tests.tiny_model import save_tiny_model


def write_run_file(folder: Path, *, rollout: dict[str, Any], **more: Any) -> Path:
    """Write `run.yaml`, the model and the rows into `folder`; `rollout` and `more` are settings on top."""
    rows = folder / "rows.jsonl"
    rows.write_text("".join(json.dumps({"prompt": f"write {word}"}) + "\n" for word in ("ab", "cd")))
    content = {
        "run_dir": str(folder / "run"),
        "model": {"name_or_path": str(save_tiny_model(folder / "model"))},
        "data": {"dataset": str(rows)},
        "rollout": {"num_generations": 2, "generation_batch_size": 2, "max_completion_length": 8} | rollout,
        "reward": {"reward_funcs": ["format"]},
    }
    file = folder / "run.yaml"
    file.write_text(yaml.safe_dump(content | more))
    return file
