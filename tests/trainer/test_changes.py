"""What a resumed run has otherwise than before."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.trainer.test_settings import read, run_file

from grpo_trainer.config.changes import changed_settings
from grpo_trainer.config.run_config import RunConfig
from grpo_trainer.config.settings import write_resolved

__all__ = ["run_file"]


def test_a_resume_names_each_setting_that_changed_and_no_parameter_of_own_code(run_file: Path, tmp_path: Path):
    before = tmp_path / "before.yaml"
    write_resolved(read(run_file), before)
    assert changed_settings(before, read(run_file)) == []
    flags = (
        "--max_steps",
        "77",
        "--algorithm.loss_type",
        "sapo",
        "--algorithm.params",
        '{"sapo_temperature_pos": 0.5}',
    )
    flags += ("--reward.params", '{"format": {"api_key": "not-to-be-shown"}}', "--model.lora.r", "4")
    changes = changed_settings(before, read(run_file, *flags))
    assert [line.split(" is ")[0] for line in changes] == [
        "max_steps", "model.lora", "reward.params.format", "algorithm.loss_type",
        "algorithm.params.sapo_temperature_pos",
    ]  # fmt: skip
    assert "algorithm.loss_type is sapo, was dapo" in changes
    assert "not-to-be-shown" not in str(changes)


def test_a_resume_names_what_changed_of_each_dataset(run_file: Path, tmp_path: Path):
    before, sets = tmp_path / "before.yaml", tmp_path / "sets.yaml"

    def with_sets(**datasets: dict[str, Any]) -> RunConfig:
        sets.write_text(yaml.safe_dump({"data": {"dataset": None, "datasets": datasets}}))
        return read(run_file, sets)

    one, two = {"dataset": "a.jsonl", "ratio": 0.5}, {"dataset": "b.jsonl", "ratio": 0.5}
    write_resolved(with_sets(first=one, second=two), before)
    changes = changed_settings(before, with_sets(first={**one, "ratio": 0.25}, third={**two, "ratio": 0.75}))
    assert changes == [
        "data.datasets.first.ratio is 0.25, was 0.5",
        "data.datasets.second is gone",
        "data.datasets.third is new",
    ]


def test_a_resume_compares_the_biases_of_tokens_whose_ids_are_texts_in_a_file(run_file: Path, tmp_path: Path):
    before = tmp_path / "before.yaml"
    biases = ("--algorithm.importance_sampling_correction", "false", "--rollout.logit_bias")
    was = read(run_file, *biases, '{"1": 100, "7": 1}')
    write_resolved(was, before)
    assert changed_settings(before, was) == []
    changes = changed_settings(before, read(run_file, *biases, '{"1": 5, "8": 1}'))
    assert changes == [f"rollout.logit_bias.{what}" for what in ("1 is another one", "7 is gone", "8 is new")]


@pytest.mark.parametrize("text", ["a: 'half", "- a list", "", "\ttab: 1"])
def test_a_run_file_that_cannot_be_read_holds_no_resume_up(text: str, run_file: Path, tmp_path: Path):
    before = tmp_path / "before.yaml"
    assert changed_settings(before, read(run_file)) == []
    before.write_text(text)
    assert changed_settings(before, read(run_file)) == []
