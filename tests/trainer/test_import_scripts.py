"""Scripts that take arguments, the rewards of open-r1's script, and the schedules that both trainers have."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.trainer.importing import TRL, imported, refused

from grpo_trainer.config.run_config import RunConfig


def test_a_script_is_given_its_arguments_and_those_that_are_missing_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    script = tmp_path / "swift_train.sh"
    script.write_text(
        "NPROC_PER_NODE=${2:-1} swift rlhf --rlhf_type grpo --model $1 --dataset d --reward_funcs format "
        '--num_generations 1 "${@:3}"\n'
    )
    run = RunConfig.model_validate(yaml.safe_load(imported(capsys, script, "m", 2, "--beta", "0.5")[0]))
    assert (run.model.name_or_path, run.deepspeed.nproc_per_node, run.algorithm.beta) == ("m", 2, 0.5)
    assert "$1 is not set in what is imported: give the arguments of the script" in imported(capsys, script)[1]
    script.write_text("trl grpo --model_name_or_path m --dataset_name d --num_generations $1 --reward_funcs f\n")
    said = refused(capsys, "import-trl", script)
    assert "--num_generations" in said
    assert "$1 is not set in what is imported" in said


def test_commas_between_values_are_left_out_and_named(capsys: pytest.CaptureFixture[str]):
    text, said = imported(capsys, *TRL, "--use_peft", "--lora_target_modules", "q_proj,", "v_proj")
    assert yaml.safe_load(text)["model"]["lora"]["target_modules"] == ["q_proj", "v_proj"]
    assert "the commas in --lora_target_modules q_proj, v_proj are left out" in said


def test_what_open_r1_pays_without_reward_funcs(capsys: pytest.CaptureFixture[str]):
    command = ["python", "src/open_r1/grpo.py", "--model_name_or_path", "m", "--dataset_name", "d"]
    text, said = imported(capsys, *command)
    assert yaml.safe_load(text)["reward"]["reward_funcs"] == ["accuracy", "format", "tag_count"]
    assert "--plugin" not in said


@pytest.mark.parametrize(
    ("given", "settings", "remark"),
    [
        (["constant", "--warmup_ratio", "0.1"], {}, "not needed: --warmup_ratio 0.1: the schedule constant"),
        (["constant_with_warmup", "--warmup_steps", "5"], {"warmup_steps": 5}, ""),
        (["polynomial", "--lr_scheduler_kwargs", '{"power": 2}'],
         {"lr_scheduler_type": "polynomial", "lr_scheduler_kwargs": {"power": 2.0}}, ""),
        (["reduce_lr_on_plateau", "--lr_scheduler_kwargs", '{"factor": 0.5}', "--warmup_steps", "5"], {},
         "there is no schedule reduce_lr_on_plateau, which follows a metric"),
    ],
)  # fmt: skip
def test_schedules_are_those_of_transformers(
    given: list[str], settings: dict[str, Any], remark: str, capsys: pytest.CaptureFixture[str]
):
    text, said = imported(capsys, *TRL, "--lr_scheduler_type", *given)
    optimizer = yaml.safe_load(text)["optimizer"]
    named = ("lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps", "warmup_ratio")
    assert {name: optimizer[name] for name in named if name in optimizer} == {
        "lr_scheduler_type": "constant"
    } | settings
    assert remark in said
    assert "there is no schedule cosin" in refused(capsys, "import-trl", *TRL, "--lr_scheduler_type", "cosin")
    why = refused(capsys, "import-trl", *TRL, "--lr_scheduler_type", "cosine", "--lr_scheduler_kwargs", '{"min_lr": 1}')
    assert "min_lr is of cosine_with_min_lr, cosine_warmup_with_min_lr, not of cosine" in why
