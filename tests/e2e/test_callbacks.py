"""A user's own callback, in a real run."""

from pathlib import Path

import pytest

from tests.e2e.conftest import Stack, read_jsonl

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900), pytest.mark.xdist_group("stack")]

OWN = """
from pathlib import Path

from grpo_trainer.callbacks import StopRun


class Watch:
    def on_step(self, step, metrics):
        self.reward = metrics["reward"]
        if step == 2:
            raise StopRun("two are enough")

    def on_end(self, step):
        folder = Path(__file__).parent
        (folder / "ended").write_text(f"{step} {self.reward} {(folder / 'run/model/config.json').exists()}")
"""


def test_a_callback_ends_a_run_that_is_then_done(stack: Stack, tmp_path: Path):
    (tmp_path / "own.py").write_text(OWN)
    run_dir = tmp_path / "run"
    ended = stack.train(run_dir, "--callbacks", f"{tmp_path}/own.py:Watch", "--checkpoint.save_steps", 0)
    assert ended.returncode == 0, ended.stdout
    steps = read_jsonl(run_dir / "metrics.jsonl")
    assert [step["step"] for step in steps] == [0, 1, 2]
    assert (tmp_path / "ended").read_text() == f"2 {steps[2]['reward']} True", "after the final model"
    [decision] = read_jsonl(run_dir / "decisions.jsonl")
    assert decision == {
        "step": 2,
        "rule": "callbacks",
        "action": "stop",
        "text": f"{tmp_path}/own.py:Watch: two are enough",
    }
    assert (run_dir / "checkpoints" / "checkpoint-2").exists()
