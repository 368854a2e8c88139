"""TensorBoard and Weights & Biases, with their real libraries and without a network."""

import json
from pathlib import Path

import pytest

from grpo_trainer.config import LoggingConfig
from grpo_trainer.observe.sinks import open_sinks
from grpo_trainer.observe.wandb_sink import run_id


def test_tensorboard_shows_a_resumed_run_as_one_curve(tmp_path: Path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    config = LoggingConfig(report_to=["tensorboard"])
    for resumed_step, steps, value in ((None, range(1, 6), 0.0), (3, range(4, 7), 1.0)):
        sinks = open_sinks(config, tmp_path, resumed_step=resumed_step, facts={})
        for step in steps:
            sinks.write(step, {"reward": value, "rewards/countdown/mean": value})
        sinks.close()
        assert sinks.failures == {"tensorboard": 0}
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert {"reward", "rewards/countdown/mean"} <= set(events.Tags()["scalars"])
    curve = [(event.step, event.value) for event in events.Scalars("reward")]
    assert curve == [(1, 0.0), (2, 0.0), (3, 0.0), (4, 1.0), (5, 1.0), (6, 1.0)]


def test_a_wandb_id_is_kept_on_resume_and_new_otherwise(tmp_path: Path):
    first = run_id(tmp_path, resumed=False)
    assert run_id(tmp_path, resumed=True) == first
    assert run_id(tmp_path, resumed=False) != first


def test_wandb_offline_continues_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    config = LoggingConfig(report_to=["wandb"], project="test-project")
    for resumed_step in (None, 1):
        sinks = open_sinks(config, tmp_path, resumed_step=resumed_step, facts={"seed": 1})
        sinks.write(1 if resumed_step is None else 2, {"reward": 0.25})
        sinks.close()
        assert sinks.failures == {"wandb": 0}
    folders = sorted((tmp_path / "wandb").glob("offline-run-*"))
    identity = (tmp_path / "wandb_id.txt").read_text().strip()
    assert folders
    assert all(folder.name.endswith(identity) for folder in folders)
    assert len(list((tmp_path / "wandb").glob(f"offline-run-*/run-{identity}.wandb"))) >= 1
    steps = [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert steps == [1, 2]


def test_wandb_that_cannot_start_does_not_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("wandb.init", lambda **_: (_ for _ in ()).throw(RuntimeError("no API key")))
    sinks = open_sinks(LoggingConfig(report_to=["wandb"]), tmp_path, resumed_step=None, facts={})
    sinks.write(1, {"reward": 0.5})
    sinks.close()
    assert sinks.failures == {"wandb": 1}
