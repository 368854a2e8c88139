"""A dataset with a teacher beside one with rewards, through four real services, until the teacher dies."""

import json
import os
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e.conftest import Stack, read_jsonl
from tests.e2e.runs import wait_for_rows
from tests.processes import free_port
from tests.tiny_model import save_tiny_model
from tests.trainer.test_live_server import Stream

pytestmark = [pytest.mark.e2e, pytest.mark.faults, pytest.mark.timeout(900), pytest.mark.xdist_group("stack")]


def test_a_dataset_learns_from_its_teacher_whose_death_ends_the_run_with_every_step_saved(stack: Stack, tmp_path: Path):
    port, page, run_dir, log = free_port(), free_port(), tmp_path / "run", tmp_path / "trainer.log"
    model = save_tiny_model(tmp_path / "teacher", seed=1)
    rows, teacher = str(stack.folder / "rows.jsonl"), {"url": f"http://127.0.0.1:{port}", "retry_for_s": 3}
    sets = {
        "taught": {"dataset": rows, "ratio": 0.5, "rewards": {}, "teacher": teacher},
        "free": {"dataset": rows, "ratio": 0.5},
    }
    flags = ("--data.dataset", "null", "--data.datasets", json.dumps(sets), "--eval.eval_steps", 0)
    flags += ("--checkpoint.save_steps", 0, "--server.port", page)
    with stack.rollout_server(tmp_path / "teaching.log", port, model=model) as teaching:
        trainer = stack.start_trainer(run_dir, log, *flags, "--max_steps", 1000)
        wait_for_rows(run_dir, 2, trainer)
        with ExitStack() as open_streams:
            shown = Stream(f"http://127.0.0.1:{page}", open_streams).until("hello")["sections"]["teachers"]
        os.killpg(teaching.process.pid, signal.SIGKILL)
        assert trainer.wait(120) == 1, log.read_text()
    assert [(one["name"], one["url"]) for one in shown] == [("teacher of taught", teacher["url"])]
    assert "error: the teacher of taught could not score within 3 s" in log.read_text()

    steps = [line for line in read_jsonl(run_dir / "metrics.jsonl") if "loss" in line]
    lines = [line for line in read_jsonl(run_dir / "completions.jsonl") if line["step"] == 1]
    of_taught = [line for line in lines if line["dataset"] == "taught"]
    assert len(of_taught) == len(lines) / 2
    assert all((line["total"], line["advantage"]) == (None, 0.0) for line in of_taught)
    assert steps[0]["teacher/tokens"] == sum(line["num_tokens"] for line in of_taught)  # type: ignore[misc]
    assert steps[0]["data/taught/teacher/kl"] == steps[0]["teacher/kl"] > 0  # type: ignore[operator]
    assert not {"data/free/teacher/kl", "data/taught/reward"} & steps[0].keys()
    assert [path.name for path in (run_dir / "checkpoints").iterdir()] == [f"checkpoint-{len(steps)}"]
