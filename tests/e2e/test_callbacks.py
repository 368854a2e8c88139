"""A user's own callback, in a real run."""

from pathlib import Path

import pytest
import yaml

from tests.e2e.conftest import Stack, read_jsonl

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900), pytest.mark.xdist_group("stack")]

OWN = """
import gc
from pathlib import Path

from grpo_trainer.callbacks import StopRun


class Watch:
    def __init__(self, last: int):
        self.last = last

    def on_step(self, step, metrics):
        self.reward = metrics["reward"]
        if step == self.last:
            raise StopRun(f"{step} are enough")

    def on_end(self, step):
        folder = Path(__file__).parent
        (folder / "ended").write_text(f"{step} {self.reward} {(folder / 'run/model/config.json').exists()}")
        (folder / "looked through").write_text(str(any(tracked is Path for tracked in gc.get_objects())))


def reinforce(logprobs_N, batch, algorithm, tally, *, scale: float = 1.0):
    tally.mean("scale", logprobs_N * 0 + scale)
    return -batch.advantage_N * logprobs_N * scale
"""


def test_a_callback_ends_a_run_that_is_then_done_and_parameters_are_those_of_the_run_file(stack: Stack, tmp_path: Path):
    (tmp_path / "own.py").write_text(OWN)
    run_dir = tmp_path / "run"
    own = ["--callbacks", f"{tmp_path}/own.py:Watch", "--algorithm.loss", f"{tmp_path}/own.py:reinforce"]
    params = ["--callbacks_params", '{"Watch": {"last": 2}}', "--algorithm.params", '{"scale": 0.5}']
    ended = stack.train(run_dir, *own, *params, "--checkpoint.save_steps", 0)
    assert ended.returncode == 0, ended.stdout
    steps = read_jsonl(run_dir / "metrics.jsonl")
    assert [step["step"] for step in steps] == [0, 1, 2]
    assert (tmp_path / "ended").read_text() == f"2 {steps[2]['reward']} True", "after the final model"
    assert (tmp_path / "looked through").read_text() == "False", "collecting garbage skips what was imported"
    [decision] = read_jsonl(run_dir / "decisions.jsonl")
    assert decision == {
        "step": 2,
        "rule": "callbacks",
        "action": "stop",
        "text": f"{tmp_path}/own.py:Watch: 2 are enough",
    }
    assert (run_dir / "checkpoints" / "checkpoint-2").exists()

    params = ["--callbacks_params", '{"Watch": {"last": 3}}', "--algorithm.params", '{"scale": 2}']
    resumed = stack.train(run_dir, *own, *params, "--resume")
    assert resumed.returncode == 0, resumed.stdout
    assert [step.get("scale") for step in read_jsonl(run_dir / "metrics.jsonl")[1:]] == [0.5, 0.5, 2.0]
    assert yaml.safe_load((run_dir / "run.yaml").read_text())["algorithm"]["params"] == {"scale": 2}
