"""Whole runs through the three services, vLLM on the trainer's GPU: of text, and of pictures."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from .check import Check, Figures, Needs, Place, check
from .runner import ROOT

STEPS, TIMEOUT_S = 3, 400.0
PICTURE_STEPS = 12
PLUGIN = ROOT / "tests/e2e/letters_reward.py"
COLOURS = ROOT / "examples/colours"


@check(
    needs=Needs(memory_gib=16.0, packages=("deepspeed", "peft", "vllm", "grpo_rollout", "grpo_reward")),
    timeout_s=1200.0,
    light=False,
)
def whole_run_on_one_gpu(place: Place) -> Figures:
    """A run of three steps, with vLLM on the trainer's GPU and a reward server"""
    # Import here what the trainer's checks do without: the servers' libraries.
    from tests.processes import free_port, reward_command, service

    from .served import rollout_server, save_served, state_of, visible_gpus, wait_until_live

    model = save_served(place.folder / "model", place)
    asked = [{"prompt": f"write {number}", "target": number} for number in range(16)]
    (place.folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in asked))
    gpus, port = visible_gpus()[:1], free_port()
    scoring = reward_command(port, "--plugin", PLUGIN)
    with (
        rollout_server(model, place, gpus=gpus) as rollout,
        service(scoring, place.folder / "reward.log", port=port) as reward,
    ):
        wait_until_live(reward)
        wait_until_live(rollout)
        _train(place, gpus, _written(place.folder, _settings(place.folder, rollout.url, reward.url)))
        state = state_of(rollout.url)
    rows = [json.loads(line) for line in (place.folder / "run/metrics.jsonl").read_text().splitlines()]
    return {
        "steps": float(len(rows) - 1),
        "steps without a finite reward": float(sum(not math.isfinite(row.get("reward", math.nan)) for row in rows[1:])),
        "canary, mean difference": max(row.get("canary/logprob_difference_mean", math.nan) for row in rows),
        "pushes that the server lacks": float(rows[-1]["policy_version"] - state.version)
        if state.state == "current"
        else None,
    }


@check(
    needs=Needs(memory_gib=16.0, packages=("deepspeed", "vllm", "grpo_rollout", "grpo_reward")),
    timeout_s=1200.0,
    light=False,
)
def pictures_on_one_gpu(place: Place) -> Figures:
    """The example of colours, whose questions are answered by who looks at their pictures, with vLLM on the same GPU"""
    from tests.processes import free_port, reward_command, service

    from .served import rollout_server, visible_gpus, wait_until_live

    for script, made in (("make_model.py", "model"), ("make_data.py", "data")):
        command = [sys.executable, str(COLOURS / script), str(place.folder / made)]
        subprocess.run(command, cwd=ROOT, check=True, stdout=sys.stderr, timeout=TIMEOUT_S)
    gpus, port = visible_gpus()[:1], free_port()
    with (
        rollout_server(place.folder / "model", place, gpus=gpus) as rollout,
        service(reward_command(port), place.folder / "reward.log", port=port) as reward,
    ):
        wait_until_live(reward)
        wait_until_live(rollout)
        here: dict[str, Any] = {
            "run_dir": str(place.folder / "run"),
            "max_steps": PICTURE_STEPS,
            "model": {"name_or_path": str(place.folder / "model"), "dtype": "bfloat16"},
            "data": {"dataset": str(place.folder / "data/train.jsonl"), "eval_dataset": None},
            "rollout": {"urls": [rollout.url]},
            "reward": {"url": reward.url},
            "canary": {"steps": 1},
            "eval": {"eval_steps": 0},
            "server": {"port": 0},
        }
        _train(place, gpus, COLOURS / "run.yaml", _written(place.folder, here))
        here |= {"run_dir": str(place.folder / "seeing"), "max_steps": STEPS}
        here["model"]["train_vision_tower"] = True
        _train(place, gpus, COLOURS / "run.yaml", _written(place.folder, here))
    rows, seeing = (
        [json.loads(line) for line in (place.folder / run / "metrics.jsonl").read_text().splitlines()]
        for run in ("run", "seeing")
    )
    return {
        "steps": float(len(rows) - 1),
        "canary, mean difference": max(row.get("canary/logprob_difference_mean", math.nan) for row in rows),
        "accuracy at the end": rows[-1].get("accuracy", math.nan),
        "steps that train the tower": float(len(seeing) - 1),
        "canary of these": max(row.get("canary/logprob_difference_mean", math.nan) for row in seeing),
    }


def _written(folder: Path, settings: dict[str, Any]) -> Path:
    run_file = folder / "run.yaml"
    run_file.write_text(yaml.safe_dump(settings))
    return run_file


def _train(place: Place, gpus: list[str], *run_files: Path) -> None:
    """Raises RuntimeError when the run ends with another status than 0. Its output goes to this process's errors."""
    command = [sys.executable, "-m", "grpo_trainer", *map(str, run_files)]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ",".join(gpus)}
    ended = subprocess.run(command, cwd=ROOT, env=environment, stdout=sys.stderr, timeout=TIMEOUT_S)
    if ended.returncode != 0:
        raise RuntimeError(f"grpo-train ended with status {ended.returncode}; its output is above")


def _settings(folder: Path, rollout_url: str, reward_url: str) -> dict[str, Any]:
    return {
        "run_dir": str(folder / "run"),
        "max_steps": STEPS,
        "model": {"name_or_path": str(folder / "model"), "dtype": "bfloat16"},
        "data": {"dataset": str(folder / "rows.jsonl")},
        "rollout": {
            "urls": [rollout_url], "num_generations": 4, "generation_batch_size": 32, "max_completion_length": 12,
        },
        "reward": {"url": reward_url, "reward_funcs": ["letters"]},
        "optimizer": {"learning_rate": 1e-3},
        "canary": {"steps": 1},
        "eval": {"eval_steps": 0},
        "guards": {"clipped": "warn"},  # a model of random weights seldom ends by itself
        "server": {"port": 0},
    }  # fmt: skip


CHECKS: list[Check] = [whole_run_on_one_gpu, pictures_on_one_gpu]
