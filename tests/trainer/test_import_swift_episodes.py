"""ms-swift's gym environments and schedulers of turns: what plays the episodes of the run file, and what pays them."""

from pathlib import Path

import pytest
import yaml
from tests.trainer.importing import imported, setting

from grpo_trainer.config.run_config import RunConfig

PLUGIN = """
from swift.rewards import ORM, orms
from swift.rollout.gym_env import Env, envs
from swift.rollout.multi_turn import MultiTurnScheduler, multi_turns


class Won(ORM):
    pass


class Lake(Env):
    pass


class Tips(MultiTurnScheduler):
    pass


envs["lake"] = Lake
multi_turns.update({"tips": Tips})
"""
SWIFT = [
    "--rlhf_type", "grpo", "--model", "m", "--dataset", "d", "--per_device_train_batch_size", "8",
    "--max_completion_length", "100",
]  # fmt: skip


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plays.py").write_text(PLUGIN)
    return tmp_path


def run_of(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[RunConfig, str]:
    text, said = imported(capsys, "swift", "rlhf", *SWIFT, *options)
    return RunConfig.model_validate(yaml.safe_load(text)), text + said


def test_a_gym_environment_pays_alone_and_needs_no_reward_server(capsys: pytest.CaptureFixture[str]):
    run, said = run_of(capsys, "--external_plugins", "plays.py", "--use_gym_env", "true", "--reward_weights", "2.0")
    assert setting(run, "episodes") == {
        "environment": "plays.py:Lake", "max_turn_tokens": 100, "reward_weights": {"environment": 2.0},
    }  # fmt: skip
    assert run.rollout.max_completion_length == 1600
    assert run.reward.reward_weights is None
    assert "grpo-reward serve" not in said
    assert "max_turns is not given: ms-swift has no limit, and an episode here has at most 16 turns" in said


def test_a_scheduler_plays_and_the_rewards_of_the_command_pay(folder: Path, capsys: pytest.CaptureFixture[str]):
    (folder / "won.py").write_text(PLUGIN.split("class Lake")[0] + "orms['won'] = Won\n")
    run, said = run_of(
        capsys, "--external_plugins", "plays.py", "won.py", "--multi_turn_scheduler", "tips", "--max_turns", "3",
        "--completion_length_limit_scope", "total", "--reward_funcs", "won",
    )  # fmt: skip
    assert setting(run, "episodes") == {
        "multi_turn_scheduler": "plays.py:Tips", "max_turns": 3, "reward_weights": {"environment": 0.0},
    }  # fmt: skip
    assert (run.decides_accuracy, run.optional_rewards) == ("won", {"environment"})
    assert run.rollout.max_completion_length == 100
    assert "grpo-reward serve --plugin won.py &" in said
    assert "total: counted are the tokens that the policy samples" in said


def test_a_scheduler_derived_of_the_gyms_plays_and_its_environment_pays(
    folder: Path, capsys: pytest.CaptureFixture[str]
):
    (folder / "mine.py").write_text(
        "class Sea(Env):\n    pass\nenvs['sea'] = Sea\nclass Mine(GYMScheduler):\n    pass\n"
        "multi_turns['gym_scheduler'] = Mine\n"
    )
    words = ["--multi_turn_scheduler", "gym_scheduler", "--gym_env", "sea", "--use_gym_env", "true"]
    run, said = run_of(capsys, "--external_plugins", "mine.py", *words)
    episodes = setting(run, "episodes")
    assert episodes["multi_turn_scheduler"] == "mine.py:Mine"
    assert "reward_weights" not in episodes
    assert "env_config" not in said
    _, said = run_of(capsys, "--external_plugins", "mine.py", "plays.py", *words)
    assert '--gym_env sea: a scheduler is not told it, and lake is registered, too: write {"name": "sea"}' in said


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--multi_turn_scheduler", "math_tip_trick"], "math_tip_trick is registered in multi_turns by none of"),
        (["--gym_env", "math_env"], "math_env is registered in envs by none of --external_plugins"),
        (["--max_turns", "3"], "--max_turns 3: each completion is one turn"),
    ],
)
def test_without_a_class_that_plays_completions_are_single_turns(
    options: list[str], told: str, capsys: pytest.CaptureFixture[str]
):
    run, said = run_of(capsys, "--reward_funcs", "format", *options)
    assert run.episodes is None
    assert told in said
