"""The demo's start and its two servers, for benchmarks of whole runs."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.processes import BIN, ROLLOUT_ENVIRONMENT, free_port, reward_command, rollout_command, service

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples" / "countdown"
BATCH_FLAGS = ("--max-num-seqs", "256", "--max-num-batched-tokens", "8192")
"""With them vLLM samples the whole batch of a step at once; its own default on a CPU is 128 sequences."""


def make_start(seed: int, folder: Path) -> None:
    """`data`, `base-model` and `cold-start` in `folder`, as `make demo` makes them."""
    start = {"model.name_or_path": folder / "base-model", "data.dataset": folder / "data" / "cold_start.jsonl"}
    run(BIN / "python", EXAMPLES / "make_data.py", folder / "data")
    run(BIN / "python", EXAMPLES / "make_model.py", folder / "base-model", "--seed", seed)
    flags = {"seed": seed, "output_dir": folder / "cold-start", **start}
    run(BIN / "grpo-train", "cold-start", EXAMPLES / "cold_start.yaml", *as_flags(flags))


@contextmanager
def servers(model: Path, logs: Path, *flags: str, plugin: Path | None = None) -> Iterator[dict[str, str]]:
    """A rollout server of `model` with these flags, and a reward server; yields the settings that name them."""
    rollout_port, reward_port = free_port(), free_port()
    command = rollout_command(model, rollout_port, "--dtype", "float32", "--enforce-eager", *flags)
    plugins = ("--plugin", plugin) if plugin is not None else ()
    with (
        service(command, logs / "rollout.log", port=rollout_port, environment=ROLLOUT_ENVIRONMENT) as rollout,
        service(reward_command(reward_port, *plugins), logs / "reward.log", port=reward_port) as reward,
    ):
        rollout.wait_until_live()
        reward.wait_until_live()
        yield {"rollout.urls": rollout.url, "reward.url": reward.url}


def as_flags(settings: dict[str, object]) -> list[object]:
    return [word for name, value in settings.items() for word in (f"--{name}", value)]


def run(*command: object) -> None:
    ended = subprocess.run([str(word) for word in command], cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
