"""The three real services, on a model that is made here."""

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.processes import (
    BIN,
    ROLLOUT_ENVIRONMENT,
    Service,
    free_port,
    reward_command,
    rollout_command,
    service,
)
from tests.tiny_model import save_tiny_model

PLUGIN = Path(__file__).with_name("letters_reward.py")
TRAINER_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "GRPO_LOG_LEVEL": "INFO", "WANDB_MODE": "offline"}


@dataclass(frozen=True)
class Stack:
    """Running servers, and the run file that fits them."""

    folder: Path
    model: Path
    rollout: Service
    reward: Service
    run_file: Path

    def command(self, run_dir: Path, *flags: object) -> list[str]:
        return [str(BIN / "grpo-train"), str(self.run_file), "--run_dir", str(run_dir), *(str(flag) for flag in flags)]

    def train(self, run_dir: Path, *flags: object, timeout_s: float = 200.0) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            self.command(run_dir, *flags),
            env=os.environ | TRAINER_ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def start_trainer(self, run_dir: Path, log: Path, *flags: object) -> "subprocess.Popen[bytes]":
        with log.open("ab") as output:
            return subprocess.Popen(
                self.command(run_dir, *flags),
                env=os.environ | TRAINER_ENVIRONMENT,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("stack")
    model = save_tiny_model(folder / "model")
    rows = [{"prompt": f"write {word}", "target": number} for number, word in enumerate(["ab", "cde", "f", "ghij"] * 6)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    rollout_port, reward_port = free_port(), free_port()
    run_file = folder / "run.yaml"
    run_file.write_text(
        yaml.safe_dump(
            {
                "run_dir": str(folder / "run"),
                "max_steps": 3,
                "model": {"name_or_path": str(model), "dtype": "float32"},
                "data": {"dataset": str(folder / "rows.jsonl"), "eval_dataset": str(folder / "rows.jsonl")},
                "rollout": {
                    "urls": [f"http://127.0.0.1:{rollout_port}"],
                    "num_generations": 4,
                    "generation_batch_size": 32,
                    "max_completion_length": 12,
                    "prompts_per_request": 4,
                    "startup_timeout_s": 60,
                    "retry_for_s": 120,
                },
                "reward": {"url": f"http://127.0.0.1:{reward_port}", "reward_funcs": ["letters"]},
                "optimizer": {"learning_rate": 1e-3},
                "deepspeed": {"zero_stage": 0, "tokens_per_micro_batch": 512},
                "weights": {"bucket_timeout_s": 20, "push_deadline_s": 120},
                "canary": {"steps": 1},
                "eval": {"eval_steps": 2},
                "checkpoint": {"save_steps": 1, "save_total_limit": 10},
                "server": {"port": 0},
            }
        )
    )
    with (
        service(
            rollout_command(model, rollout_port, "--dtype", "float32", "--enforce-eager"),
            folder / "rollout.log",
            port=rollout_port,
            environment=ROLLOUT_ENVIRONMENT,
        ) as rollout,
        service(reward_command(reward_port, "--plugin", PLUGIN), folder / "reward.log", port=reward_port) as reward,
    ):
        reward.wait_until_live(60)
        rollout.wait_until_live()
        yield Stack(folder, model, rollout, reward, run_file)


@pytest.fixture(scope="session")
def undisturbed(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("runs") / "undisturbed"
    result = stack.train(run_dir, "--max_steps", 4)
    assert result.returncode == 0, result.stdout
    return run_dir


def read_jsonl(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
