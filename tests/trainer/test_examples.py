"""Every run file that ships is one that the trainer accepts."""

import re
from pathlib import Path

import pytest
import yaml

from grpo_trainer.config.run_config import RunConfig
from grpo_trainer.config.settings import read_config

EXAMPLES = Path(__file__).parents[2] / "examples"
DISTILLATION = Path(__file__).parents[2] / "docs" / "distillation.md"
FULL_SIZE = EXAMPLES / "countdown_3b"
CALCULATOR = EXAMPLES / "calculator" / "run.yaml"
RUNS = {
    "demo": [EXAMPLES / "countdown" / "run.yaml"],
    "the demo with an adapter": [EXAMPLES / "countdown" / "lora.yaml"],
    "the demo on two datasets": [EXAMPLES / "countdown" / "run.yaml", EXAMPLES / "countdown" / "mixed.yaml"],
    "the demo without a cold start": [EXAMPLES / "countdown" / "run.yaml", EXAMPLES / "countdown" / "chord.yaml"],
    "the demo with a teacher": [EXAMPLES / "countdown" / "distil.yaml"],
    "the demo with hints for its teacher": [EXAMPLES / "countdown" / "self_distil.yaml"],
    "three GPUs": [FULL_SIZE / "run.yaml"],
    "one GPU": [FULL_SIZE / "run.yaml", FULL_SIZE / "one_gpu.yaml"],
    "eight GPUs": [FULL_SIZE / "run.yaml", FULL_SIZE / "eight_gpus.yaml"],
    "mathematics": [EXAMPLES / "numina_math" / "run.yaml"],
    "the demo of episodes": [CALCULATOR],
    "the same by a program": [CALCULATOR, EXAMPLES / "agent" / "agent.yaml"],
    "the same by a class for TRL": [CALCULATOR, EXAMPLES / "agent" / "trl.yaml"],
    "pictures": [EXAMPLES / "colours" / "run.yaml"],
    "pictures in every turn": [EXAMPLES / "colours" / "run.yaml", EXAMPLES / "colours" / "two_pictures.yaml"],
    "a game of several turns": [EXAMPLES / "textarena" / "run.yaml"],
}


@pytest.mark.parametrize("files", RUNS.values(), ids=RUNS.keys())
def test_the_run_file_is_accepted(files: list[Path]):
    read_config(RunConfig, [str(file) for file in files], program="grpo-train", env_prefix="GRPO_TRAIN__")


def test_the_teachers_of_the_documentation_are_accepted():
    blocks = re.findall(r"```yaml\n(data:.*?)```", DISTILLATION.read_text(), re.DOTALL)
    config, of_itself = (
        RunConfig.model_validate({"run_dir": "run", "model": {"name_or_path": "any"}} | yaml.safe_load(block))
        for block in blocks
    )
    assert (of_itself.teachers[""].of_itself, of_itself.teachers[""].form) == (True, "reweight")
    assert {name: teacher.coef for name, teacher in config.teachers.items()} == {"math": 1.0, "code": 0.1}
    assert config.data.own_rewards == {"math": {}, "code": {"tests": 1.0}, "chat": {"judge": 1.0}}


def test_no_run_file_is_forgotten():
    cold_starts = {EXAMPLES / game / "cold_start.yaml" for game in ("countdown", "calculator")}
    known = {file for files in RUNS.values() for file in files} | cold_starts
    assert set(EXAMPLES.rglob("*.yaml")) == known
