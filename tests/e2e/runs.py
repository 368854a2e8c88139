"""Having a run go on, waiting for it to get somewhere, and comparing one with another."""

import time
from pathlib import Path

import torch
from safetensors.torch import load_file

from grpo_proto.log_parts import parts_of
from tests.e2e.conftest import read_jsonl

UNTIL_STOPPED = (
    "--max_steps", 1000, "--checkpoint.save_steps", 0, "--eval.eval_steps", 0,
    "--callbacks", f"{Path(__file__).with_name('pause.py')}:pause", "--callbacks_params", '{"pause": {"seconds": 1.0}}',
)  # fmt: skip
"""Flags of a run that trains until it is stopped. It pauses 1 s after each step: servers that start meanwhile get the
processors."""
COMPARED = ("reward", "loss", "grad_norm", "entropy", "completions/mean_length", "learning_rate", "num_tokens")


def wait_for_step(run_dir: Path, step: int, process: object, timeout_s: float = 150.0) -> None:
    """Wait until the checkpoint of `step` is there."""
    deadline = time.monotonic() + timeout_s
    while not (run_dir / "checkpoints" / f"checkpoint-{step}").exists():
        assert process.poll() is None, "the trainer ended before"  # type: ignore[attr-defined]
        assert time.monotonic() < deadline, f"no checkpoint of step {step} within {timeout_s} s"
        time.sleep(0.02)


def wait_for_rows(run_dir: Path, count: int, process: object, timeout_s: float = 150.0) -> None:
    """Wait until so many steps are written; step 0 is one of them. The last line may be half written."""
    deadline = time.monotonic() + timeout_s
    file = run_dir / "metrics.jsonl"
    while not file.exists() or file.read_bytes().count(b"\n") < count:
        assert process.poll() is None, "the trainer ended before"  # type: ignore[attr-defined]
        assert time.monotonic() < deadline, f"no {count} steps within {timeout_s} s"
        time.sleep(0.02)


def trajectory(run_dir: Path) -> list[tuple[object, ...]]:
    return [tuple(step.get(key) for key in ("step", *COMPARED)) for step in read_jsonl(run_dir / "metrics.jsonl")]


def completions(run_dir: Path) -> list[tuple[object, ...]]:
    keys = ("step", "group", "index", "completion", "versions", "advantage")
    return [tuple(line[key] for key in keys) for line in completion_lines(run_dir)]


def completion_lines(run_dir: Path) -> list[dict[str, object]]:
    return [line for part in parts_of(run_dir / "completions.jsonl") for line in read_jsonl(part)]


def assert_same_run(one: Path, other: Path) -> None:
    assert trajectory(one) == trajectory(other)
    ours, theirs = (load_file(next((run_dir / "model").glob("*.safetensors"))) for run_dir in (one, other))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    texts = [[(c["step"], c["group"], c["index"], c["completion"]) for c in completion_lines(r)] for r in (one, other)]
    assert texts[0] == texts[1]
