"""A run never writes into the files of another run."""

from pathlib import Path

import pytest

from grpo_trainer.checkpoint.run_folder import find_start, make_run_folder
from grpo_trainer.errors import UsageError

WRITTEN = ("metrics.jsonl", "completions.jsonl", "completions-part-0001.jsonl", "decisions.jsonl", "tensorboard")
KEPT = ("run.yaml", "trainer_id", "train.jsonl")


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """Of a run that ended before its first checkpoint."""
    make_run_folder(tmp_path)
    for name in (*WRITTEN, *KEPT):
        (tmp_path / name).write_text(f"{name} of the first\n")
    return tmp_path


def test_a_resume_without_a_checkpoint_moves_the_files_of_the_earlier_run_aside(
    run_dir: Path, caplog: pytest.LogCaptureFixture
):
    assert find_start(run_dir, resume=True) is None
    assert (
        f"moved the files of the run that ended there before its first checkpoint to {run_dir}/earlier-1" in caplog.text
    )
    assert {path.name for path in run_dir.iterdir()} == {*KEPT, "checkpoints", "earlier-1"}
    (run_dir / "metrics.jsonl").write_text("of the second\n")
    assert find_start(run_dir, resume=True) is None
    assert (run_dir / "earlier-2/metrics.jsonl").read_text() == "of the second\n"
    assert {path.name: path.read_text() for path in (run_dir / "earlier-1").iterdir()} == {
        name: f"{name} of the first\n" for name in WRITTEN
    }


def test_a_run_that_wrote_nothing_leaves_nothing_aside(tmp_path: Path):
    make_run_folder(tmp_path)
    (tmp_path / "metrics.jsonl").touch()
    assert find_start(tmp_path, resume=True) is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoints", "metrics.jsonl"]


@pytest.mark.parametrize("name", WRITTEN[:-1])
def test_a_new_run_is_refused_beside_any_log_of_another(tmp_path: Path, name: str):
    make_run_folder(tmp_path)
    (tmp_path / name).touch()
    with pytest.raises(UsageError, match="already holds a run"):
        find_start(tmp_path, resume=False)
