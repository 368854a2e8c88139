"""Rules that stop or go back, in real runs."""

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.e2e.conftest import Stack, read_jsonl
from tests.e2e.runs import completions, trajectory

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900), pytest.mark.xdist_group("stack")]


GUARDS = {"kl": "rollback", "kl_limit": 1e-12, "with_fallen_reward": "false", "steps": 1, "clipped": "ignore"}
BACK_FROM_STEP_2 = (
    *("--algorithm.beta", 0.01, "--eval.eval_steps", 0),
    *(word for name, value in GUARDS.items() for word in (f"--guards.{name}", value)),
)
LOST_CHECKPOINT = """
from pathlib import Path

from grpo_trainer.rank_work import RankWork


def load_engine(self, folder):
    raise OSError("the disk is gone")


RankWork.load_engine = load_engine


class Watch:
    def on_end(self, step):
        Path(__file__).with_name("ended").write_text(str(step))
"""


def test_a_completion_limit_that_cuts_nearly_everything_ends_the_run_by_default(stack: Stack, tmp_path: Path):
    flags = ("--guards.clipped", "stop", "--guards.steps", 1, "--rollout.max_completion_length", 1)
    ended = stack.train(tmp_path / "run", *flags)
    assert ended.returncode == 2, ended.stdout
    assert "guards.clipped stops the run after step 1" in ended.stdout
    assert (tmp_path / "run/checkpoints/checkpoint-1").exists()


def test_a_run_goes_back_to_a_checkpoint_to_the_bit_and_on_with_prompts_that_it_has_not_drawn(
    stack: Stack, tmp_path: Path
):
    """The KL is 0 in step 1 and above its limit in each step 2: back to step 1 twice, and the third time it stops."""
    run_dir, flags = tmp_path / "run", BACK_FROM_STEP_2
    ended = stack.train(run_dir, *flags)
    assert ended.returncode == 2, ended.stdout
    assert "gone back 2 times" in ended.stdout
    decided = [(line["step"], line["rule"], line["action"]) for line in read_jsonl(run_dir / "decisions.jsonl")]
    assert decided == [(1, "kl", "rollback"), (1, "kl", "rollback"), (2, "kl", "stop")]
    assert "went back from step 2 to the checkpoint of step 1" in (run_dir / "report.html").read_text()

    rows, samples = trajectory(run_dir), completions(run_dir)
    assert [row[0] for row in rows] == [0, 1, 2], "no row of an abandoned step"
    groups = {step: sorted({int(str(line[1])) for line in samples if line[0] == step}) for step in (1, 2)}
    assert groups == {1: list(range(8)), 2: list(range(24, 32))}, "8 to 23 were drawn by policies that are given up"
    assert {line[4][0][0] for line in samples} == {1, 2}  # type: ignore[index]
    sessions = [int(number) for number in re.findall(r"weight session (\d+) with", ended.stdout)]
    assert len(sessions) == 3
    assert sessions == sorted(set(sessions)), "servers take a version again in a newer session alone"

    # As if it had been killed after its last rollback: a new process goes on from the checkpoint in the same way.
    shutil.rmtree(run_dir / "checkpoints/checkpoint-2")
    resumed = stack.train(run_dir, *flags, "--resume")
    assert resumed.returncode == 2, resumed.stdout
    assert "gone back 2 times" in resumed.stdout
    assert trajectory(run_dir) == rows
    assert completions(run_dir) == samples
    state = json.loads((run_dir / "checkpoints/checkpoint-2/state.json").read_text())
    assert (state["rollbacks"], state["cursor"]["next_position"]) == (2, 32)


@pytest.mark.faults
def test_a_run_that_cannot_load_its_way_back_has_ended_for_its_callbacks(stack: Stack, tmp_path: Path):
    (tmp_path / "own.py").write_text(LOST_CHECKPOINT)
    ended = stack.train(tmp_path / "run", *BACK_FROM_STEP_2, "--callbacks", f"{tmp_path}/own.py:Watch")
    assert ended.returncode == 1, ended.stdout
    assert "the disk is gone" in ended.stdout
    assert (tmp_path / "ended").read_text() == "1"
