"""Checkpoints are complete or absent."""

import errno
import json
import math
import shutil
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from grpo_trainer.checkpoint.best import BestCheckpoint, load_best
from grpo_trainer.checkpoint.files import (
    begin_checkpoint,
    checkpoint_folder,
    describe_files,
    find_latest,
    finish_checkpoint,
    list_files,
    list_steps,
)
from grpo_trainer.checkpoint.run_folder import trainer_id
from grpo_trainer.config.checkpoint import CheckpointConfig
from grpo_trainer.errors import UnavailableError, UsageError


def save(run_dir: Path, step: int, *, keep: int = 10) -> Path:
    folder = begin_checkpoint(run_dir, step)
    (folder / "engine").mkdir()
    (folder / "engine" / "weights.bin").write_bytes(bytes([step]) * 1000)
    files = describe_files(folder, list_files(folder))
    return finish_checkpoint(run_dir, step, {"step": step}, files, keep=keep)


def test_the_newest_is_found_with_its_state(tmp_path: Path):
    save(tmp_path, 2)
    newest = save(tmp_path, 10)
    assert find_latest(tmp_path) == (newest, {"step": 10})


def test_nothing_is_found_where_nothing_is(tmp_path: Path):
    assert find_latest(tmp_path) is None


def test_only_the_newest_are_kept(tmp_path: Path):
    for step in (1, 2, 3, 4):
        save(tmp_path, step, keep=2)
    assert list_steps(tmp_path) == [3, 4]


def judged(best: BestCheckpoint, *values: float | None) -> BestCheckpoint:
    for step, value in enumerate(values):
        best.judge(step, {} if value is None else {"eval_accuracy": value})
    return best


def test_the_best_is_kept_beside_the_newest(tmp_path: Path):
    best = BestCheckpoint("eval_accuracy")
    for step, value in enumerate((0.2, 0.5, 0.4, 0.4, 0.4), start=1):
        best.judge(step, {"eval_accuracy": value})
        folder = begin_checkpoint(tmp_path, step)
        finish_checkpoint(tmp_path, step, {}, describe_files(folder, []), keep=1, spared=[best.step or 0])
    assert list_steps(tmp_path) == [2, 5]
    assert best.facts() == {
        "best_metric": "eval_accuracy",
        "best_value": 0.5,
        "best_checkpoint": "checkpoints/checkpoint-2",
    }


@pytest.mark.parametrize(
    ("greater", "values", "step", "since"),
    [
        (True, [0.9, 0.1, 0.3, 0.3, 0.2], 2, 2),  # that before the first step has no checkpoint; equal is not better
        (True, [0.9, 0.1, None, math.nan, 0.0], 1, 1),
        (False, [0.9, 0.5, 0.4, 0.6], 2, 1),
        (True, [0.9, None], None, 0),
    ],
)
def test_the_best_evaluation(greater: bool, values: list[float | None], step: int | None, since: int):
    best = judged(BestCheckpoint("eval_accuracy", greater), *values)
    assert (best.step, best.evaluations_since) == (step, since)
    assert best.is_exhausted(since)
    assert not best.is_exhausted(since + 1)
    assert not best.is_exhausted(None)


def test_a_resume_knows_the_best_of_the_same_settings_while_it_is_there(tmp_path: Path):
    best = judged(BestCheckpoint("eval_accuracy"), 0.0, 0.5, 0.4)
    known = json.loads(json.dumps(asdict(best)))
    config = CheckpointConfig(metric_for_best="eval_accuracy")
    assert BestCheckpoint.of(config, known, run_dir=tmp_path) == BestCheckpoint("eval_accuracy"), "it is gone"
    save(tmp_path, 1)
    assert BestCheckpoint.of(config, known, run_dir=tmp_path) == best
    other = CheckpointConfig(metric_for_best="eval_greedy")
    assert BestCheckpoint.of(other, known, run_dir=tmp_path) == BestCheckpoint("eval_greedy")
    assert BestCheckpoint.of(CheckpointConfig(), None, run_dir=tmp_path).facts() == {}


def test_a_resume_without_the_metric_keeps_the_best_one_and_looks_for_no_better(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    known = asdict(judged(BestCheckpoint("eval_accuracy"), 0.0, 0.5, 0.4))
    save(tmp_path, 1)
    paused = BestCheckpoint.of(CheckpointConfig(), known, run_dir=tmp_path)
    assert "the checkpoint of step 1, the best eval_accuracy until here, is kept" in caplog.text
    paused.judge(3, {"eval_accuracy": 0.9})
    assert (paused.step, paused.value) == (1, 0.5)
    again = BestCheckpoint.of(CheckpointConfig(metric_for_best="eval_accuracy"), asdict(paused), run_dir=tmp_path)
    again.judge(4, {"eval_accuracy": 0.9})
    assert (again.step, again.value) == (4, 0.9)


def test_an_evaluation_without_the_metric_is_named(caplog: pytest.LogCaptureFixture):
    BestCheckpoint("eval_accuracy").judge(2, {"eval_reward": 0.1, "loss": 1.0})
    assert (
        "the evaluation after step 2 has no eval_accuracy, which is checkpoint.metric_for_best: it has eval_reward"
        in (caplog.text)
    )


class Loading:
    """Stands for the crew."""

    def __init__(self) -> None:
        self.did: list[tuple[object, ...]] = []

    def do(self, *command: object) -> None:
        self.did.append(command)


@pytest.mark.parametrize(("best_step", "loads"), [(2, True), (4, False), (None, False), (3, False)])
def test_the_final_model_may_be_the_best_one(tmp_path: Path, best_step: int | None, loads: bool):
    """Not that of a checkpoint which is damaged, as that of step 3."""
    config, crew = SimpleNamespace(run_dir=tmp_path), Loading()
    for step in (2, 3, 4):
        save(tmp_path, step, keep=9)
    (checkpoint_folder(tmp_path, 3) / "engine" / "weights.bin").write_bytes(b"damaged")
    load_best(config, BestCheckpoint("eval_reward", step=best_step), crew, step=4)  # type: ignore[arg-type]
    assert crew.did == ([("load_engine", str(checkpoint_folder(tmp_path, 2) / "engine"))] if loads else [])


@pytest.mark.parametrize("keep", [1, 2])
def test_a_damaged_one_that_is_newer_takes_no_place_and_is_replaced(tmp_path: Path, keep: int):
    save(tmp_path, 1)
    (save(tmp_path, 4) / "engine" / "weights.bin").write_bytes(b"damaged")
    assert find_latest(tmp_path) == (tmp_path / "checkpoints/checkpoint-1", {"step": 1})
    for step, newest in ((2, 2), (3, 3), (4, 4)):
        save(tmp_path, step, keep=keep)
        latest = find_latest(tmp_path)
        assert latest is not None
        assert latest[1] == {"step": newest}


def test_one_that_was_never_finished_is_none(tmp_path: Path):
    save(tmp_path, 1)
    (begin_checkpoint(tmp_path, 2) / "engine.bin").write_bytes(b"half")
    latest = find_latest(tmp_path)
    assert latest is not None
    assert latest[1] == {"step": 1}


@pytest.mark.parametrize("damage", ["truncated", "flipped", "missing", "no manifest", "half a manifest"])
def test_a_damaged_one_is_skipped_with_a_warning(tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture):
    save(tmp_path, 1)
    folder = save(tmp_path, 2)
    weights, manifest = folder / "engine" / "weights.bin", folder / "manifest.json"
    match damage:
        case "truncated":
            weights.write_bytes(weights.read_bytes()[:500])
        case "flipped":
            weights.write_bytes(b"\x03" + weights.read_bytes()[1:])
        case "missing":
            weights.unlink()
        case "no manifest":
            manifest.unlink()
        case "half a manifest":
            manifest.write_text(manifest.read_text()[:20])
    latest = find_latest(tmp_path)
    assert latest is not None
    assert latest[1] == {"step": 1}
    assert "checkpoint-2" in caplog.text


def test_when_none_is_whole_the_run_does_not_start_over_silently(tmp_path: Path):
    (save(tmp_path, 1) / "manifest.json").unlink()
    with pytest.raises(UsageError, match="none of the 1 checkpoints"):
        find_latest(tmp_path)


@pytest.mark.parametrize(("read", "name"), [("read_text", "manifest.json"), ("open", "weights.bin")])
def test_a_disk_that_is_away_is_no_damage(read: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    save(tmp_path, 1)
    of_others = getattr(Path, read)

    def away(path: Path, *options: Any, **more: Any) -> Any:
        if path.name == name:
            raise OSError(errno.ESTALE, "Stale file handle")
        return of_others(path, *options, **more)

    monkeypatch.setattr(Path, read, away)
    with pytest.raises(UnavailableError, match="cannot be read now: Stale file handle"):
        find_latest(tmp_path)


def test_the_manifest_covers_every_file(tmp_path: Path):
    folder = save(tmp_path, 1)
    files = json.loads((folder / "manifest.json").read_text())["files"]
    assert set(files) == {"engine/weights.bin", "state.json"}
    assert folder == checkpoint_folder(tmp_path, 1)


def test_a_damaged_one_that_the_run_has_passed_takes_no_place(tmp_path: Path):
    save(tmp_path, 2)
    (save(tmp_path, 5) / "engine" / "weights.bin").write_bytes(b"damaged")
    find_latest(tmp_path)
    save(tmp_path, 6, keep=2)
    assert list_steps(tmp_path) == [2, 6]


def test_what_a_kill_left_of_another_step_is_removed(tmp_path: Path):
    (begin_checkpoint(tmp_path, 7) / "engine.bin").write_bytes(b"half")
    save(tmp_path, 10)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["checkpoint-10"]


def test_an_old_one_that_cannot_be_removed_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    save(tmp_path, 1)

    def rmtree(path: Path, ignore_errors: bool = False) -> None:
        if not ignore_errors:
            raise OSError(errno.ENOTEMPTY, "Directory not empty")  # NFS, where somebody reads a file of it

    monkeypatch.setattr("grpo_trainer.checkpoint.files.shutil.rmtree", rmtree)
    save(tmp_path, 2, keep=1)
    assert find_latest(tmp_path) is not None


def test_a_copy_of_a_run_folder_is_another_trainer_and_a_moved_one_the_same(tmp_path: Path, caplog):
    run_dir = tmp_path / "my run"
    run_dir.mkdir()
    name = trainer_id(run_dir)
    assert trainer_id(run_dir) == name
    assert name.startswith("my run-")
    copy = shutil.copytree(run_dir, tmp_path / "copy")
    assert trainer_id(copy) != name
    assert f"was copied from a run {name}" in caplog.text
    assert trainer_id(copy) == trainer_id(copy)
    assert trainer_id(run_dir.rename(tmp_path / "moved")) == name
    (copy / "trainer_id").write_text("of-an-older-release\n")
    assert trainer_id(copy) == "of-an-older-release"
