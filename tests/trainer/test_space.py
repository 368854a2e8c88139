"""The disk has room for the next checkpoint, or that is said before anything is written."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.small_disk import fill, small_disk
from tests.trainer.made_run_file import write_run_file
from tests.trainer.test_saving import alone
from tests.warm_python import warm_python

from grpo_trainer.checkpoint.files import list_steps
from grpo_trainer.checkpoint.run_folder import make_run_folder
from grpo_trainer.checkpoint.saving import CheckpointSaver
from grpo_trainer.checkpoint.space import check_space
from grpo_trainer.config.checkpoint import CheckpointConfig
from grpo_trainer.errors import RunError, UnavailableError


class Engine:
    """Saves 256 KiB."""

    beat = staticmethod(lambda: None)

    def save(self, folder: Path, write: Any) -> None:
        folder.mkdir()
        write(torch.zeros(2**16), folder / "weights.pt")


def saver_of(run_dir: Path, *, num_bytes: int, async_save: bool = False) -> CheckpointSaver:
    settings = CheckpointConfig(async_save=async_save, save_total_limit=5)
    config: Any = SimpleNamespace(run_dir=run_dir, checkpoint=settings)
    return CheckpointSaver(config, alone(Engine()), num_bytes=num_bytes)


def test_a_checkpoint_without_room_is_not_begun(tmp_path: Path):
    """The first is as large as the engine says, the others are as large as the one before."""
    with small_disk(tmp_path / "disk", "1m") as disk:
        with pytest.raises(RunError, match=r"step 1 could not be written: .*2\.00 MiB are needed, and [01]\.\d\d MiB"):
            saver_of(disk, num_bytes=2**21).save(1, {})
        saver = saver_of(disk, num_bytes=0)
        saver.save(1, {})
        fill(disk, leave=2**17)
        with pytest.raises(RunError, match=r"step 2 could not be written: .*0\.25 MiB are needed, and 0\.1\d MiB"):
            saver.save(2, {})
        assert [path.name for path in (disk / "checkpoints").iterdir()] == ["checkpoint-1"]


def save_at_once(saver: CheckpointSaver) -> None:
    saver.save(1, {})
    saver.complete()


@pytest.mark.parametrize("async_save", [False, True])
def test_a_disk_that_fills_up_meanwhile_is_named_as_such(tmp_path: Path, async_save: bool):
    """torch itself says `unexpected pos 576 vs 534`."""
    with small_disk(tmp_path / "disk", "128k") as disk:
        saver = saver_of(disk, num_bytes=0, async_save=async_save)
        with pytest.raises(RunError, match=r"step 1 could not be written: \[Errno 28\] No space left on device"):
            save_at_once(saver)
        assert list_steps(disk) == []
        assert list((disk / "checkpoints").iterdir()) == []


def check(run_dir: Path, num_bytes: int, **settings: Any) -> None:
    check_space(run_dir, CheckpointConfig(**settings), num_bytes, final_bytes=2**17)


def test_a_run_does_not_begin_without_room_for_its_first_checkpoint(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    with small_disk(tmp_path / "disk", "1m") as disk:
        make_run_folder(disk)
        with pytest.raises(
            UnavailableError, match=r"the next checkpoint .*2\.00 MiB are needed, and 1\.00 MiB are free"
        ):
            check(disk, 2**21)
        check(disk, 2**18)
        assert not caplog.records
        check(disk, 2**19)
        assert "1.00 MiB are free, and checkpoints and the final model may take 1.62 MiB" in caplog.text


@pytest.mark.deepspeed
def test_a_run_that_starts_on_a_full_disk_says_so_in_one_line(tmp_path: Path):
    with small_disk(tmp_path / "disk", "64k") as disk:
        file = write_run_file(tmp_path, rollout={"urls": ["http://127.0.0.1:9"]}, run_dir=str(disk / "run"))
        fill(disk)
        ended = warm_python.run("-m", "grpo_trainer", file, "--server.port", 0, folder=tmp_path, timeout_s=120)
        assert ended.returncode == 1
        assert f"error: a file of {disk}/run could not be written: No space left on device" in ended.stderr
        assert "Traceback" not in ended.stderr


def test_what_a_crash_left_of_a_checkpoint_counts_as_free(tmp_path: Path):
    """The next checkpoint removes it."""
    with small_disk(tmp_path / "disk", "1m") as disk:
        make_run_folder(disk)
        left = disk / "checkpoints/.tmp-checkpoint-4/engine"
        left.mkdir(parents=True)
        (left / "weights.pt").write_bytes(bytes(900_000))
        check(disk, 2**19)
        saver_of(disk, num_bytes=2**19).save(5, {})
        assert list_steps(disk) == [5]
