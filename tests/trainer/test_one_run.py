"""Rank 0's settings and code hold on every machine of a run."""

import json
import logging
from pathlib import Path

import pytest
from tests.trainer.made_run_file import write_run_file

from grpo_trainer.config.run_config import RunConfig
from grpo_trainer.config.settings import read_config
from grpo_trainer.errors import UsageError
from grpo_trainer.ranks.launch import check_environment, environment_rank, environment_world_size, needs_launch
from grpo_trainer.ranks.one_run import taken_over, told_of

VARIABLES = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "1"}


@pytest.fixture
def run_file(tmp_path: Path) -> str:
    return str(write_run_file(tmp_path, rollout={}))


def read(*words: str) -> RunConfig:
    return read_config(RunConfig, words, program="test", env_prefix="NONE__")


def test_another_setting_is_named_and_rank_0s_holds(run_file: str, caplog: pytest.LogCaptureFixture):
    first = read(run_file, "--optimizer.learning_rate", "4e-4", "--deepspeed.zero_stage", "3", "--seed", "7")
    told = json.loads(json.dumps(told_of(first)))
    here = read(run_file, "--optimizer.learning_rate", "4e-2", "--run_dir", "runs/here", "--server.port", "9999")
    with caplog.at_level(logging.WARNING):
        taken = taken_over(here, told)
    assert (taken.optimizer, taken.deepspeed, taken.seed) == (first.optimizer, first.deepspeed, 7)
    assert (str(taken.run_dir), taken.server.port) == ("runs/here", 9999)
    said = [record.getMessage().removeprefix("rank 0's settings hold on every machine: ") for record in caplog.records]
    assert f"optimizer.learning_rate is {4e-4}, was {4e-2} here" in said
    assert len(said) == 3, said


def test_the_same_settings_are_nothing_to_tell(run_file: str, caplog: pytest.LogCaptureFixture):
    config = read(run_file, "--model.lora.r", "4", "--algorithm.loss_type", "sapo")
    assert taken_over(config, json.loads(json.dumps(told_of(config)))) == config
    assert not caplog.records


@pytest.mark.parametrize("name", ["grpo_trainer", "torch"])
def test_other_code_is_refused(run_file: str, name: str):
    config = read(run_file)
    told = told_of(config)
    told["code"][name] = "another"
    with pytest.raises(UsageError, match=f"train by other code: {name} .* here, another there"):
        taken_over(config, told)


class TestEnvironment:
    """What launchers set, and leave behind."""

    @pytest.fixture(autouse=True)
    def clean(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in (*VARIABLES, "TORCHELASTIC_RUN_ID"):
            monkeypatch.delenv(name, raising=False)

    def set(self, monkeypatch: pytest.MonkeyPatch, **variables: str) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    def test_a_rank_of_two(self, monkeypatch: pytest.MonkeyPatch):
        self.set(monkeypatch, **VARIABLES)
        check_environment()
        assert (environment_rank(), environment_world_size(), needs_launch(2)) == (1, 2, False)

    @pytest.mark.parametrize("left", [{}, {"RANK": "0"}, {"RANK": "0", "WORLD_SIZE": "1"}, {"WORLD_SIZE": "8"}])
    def test_a_single_rank_needs_nothing_and_may_start_others(
        self, left: dict[str, str], monkeypatch: pytest.MonkeyPatch
    ):
        """As cluster systems leave it behind in every pod."""
        self.set(monkeypatch, **left)
        check_environment()
        assert (environment_rank(), environment_world_size(), needs_launch(2)) == (0, 1, True)

    @pytest.mark.parametrize("name", ["WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"])
    def test_what_is_missing_is_named(self, name: str, monkeypatch: pytest.MonkeyPatch):
        """As by srun, which sets none of them; without LOCAL_RANK all ranks of a machine would take its first GPU."""
        self.set(monkeypatch, **{key: value for key, value in VARIABLES.items() if key != name})
        with pytest.raises(UsageError, match=f"but {name} is not set .*SLURM_LOCALID"):
            check_environment()

    def test_one_rank_of_torchrun_stays_one(self, monkeypatch: pytest.MonkeyPatch):
        self.set(monkeypatch, RANK="0", WORLD_SIZE="1", TORCHELASTIC_RUN_ID="none")
        assert not needs_launch(2)

    def test_what_is_no_number_is_named(self, monkeypatch: pytest.MonkeyPatch):
        self.set(monkeypatch, **VARIABLES | {"WORLD_SIZE": "two"})
        with pytest.raises(UsageError, match="but WORLD_SIZE is 'two'"):
            check_environment()
