"""summary.json: its keys, null where nothing was measured, whole or absent."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from grpo_trainer.atomic_file import write_text_atomically
from grpo_trainer.config.run_config import RunConfig
from grpo_trainer.observe.summary import RunTotals, write_report_and_summary, write_summary


def test_the_summary_has_every_key(tmp_path: Path):
    returned = write_summary(
        tmp_path,
        steps=7,
        wall_s=12.34567,
        seconds_per_stage={"train": 3.00049},
        evaluation_before={"eval_accuracy": 0.25, "eval_greedy": 0.5},
        evaluation_after={"eval_accuracy": 0.5},
        facts={"seed": 42},
    )
    written = json.loads((tmp_path / "summary.json").read_text())
    assert written == returned
    assert written == {
        "eval_accuracy_before": 0.25,
        "eval_accuracy_after": 0.5,
        "eval_greedy_before": 0.5,
        "eval_greedy_after": None,
        "steps": 7,
        "wall_s": 12.346,
        "seconds_per_stage": {"train": 3.0},
        "seed": 42,
    }
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "summary.json"
    path.write_text("old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match=f"No space left on device: '{path}'"):
        write_text_atomically(path, "new")
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["summary.json"]


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    return RunConfig.model_validate(
        {
            "run_dir": tmp_path,
            "seed": 7,
            "model": {"name_or_path": "tiny"},
            "data": {"dataset": "rows.jsonl"},
            "reward": {"reward_funcs": ["countdown"]},
        }
    )


def totals(**changes: object) -> RunTotals:
    return replace(RunTotals(num_tokens=900, seconds_per_stage={"train": 2.0}, wall_s=5.0), **changes)


def test_a_run_ends_with_its_summary_and_its_page(config: RunConfig):
    summary = write_report_and_summary(config, totals(), steps=3)
    assert summary["eval_accuracy_before"] is summary["eval_greedy_after"] is None
    assert (summary["seed"], summary["model"], summary["num_tokens"], summary["steps"]) == (7, "tiny", 900, 3)
    assert json.loads((config.run_dir / "summary.json").read_text()) == summary
    assert (config.run_dir / "report.html").read_text().startswith("<!DOCTYPE html>")


@pytest.mark.parametrize(("evaluated_step", "after"), [(3, 0.5), (2, None), (None, None)])
def test_an_evaluation_of_an_earlier_step_is_not_that_of_the_end(
    config: RunConfig, evaluated_step: int | None, after: float | None
):
    made = totals(evaluation_after={"eval_accuracy": 0.5}, evaluated_step=evaluated_step)
    assert write_report_and_summary(config, made, steps=3)["eval_accuracy_after"] == after


def test_a_page_that_cannot_be_made_does_not_make_a_finished_run_fail(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def broken(_: Path) -> Path:
        raise KeyError("template")

    monkeypatch.setattr("grpo_trainer.observe.report.write_report", broken)
    assert write_report_and_summary(config, totals(), steps=3)["steps"] == 3
    assert "python -m grpo_trainer.observe.report" in caplog.text
    assert (config.run_dir / "summary.json").exists()
