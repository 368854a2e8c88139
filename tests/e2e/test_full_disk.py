"""The disk of the run folder is full: the run ends with a readable line, and goes on from its checkpoint."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import Stack
from tests.e2e.runs import assert_same_run, wait_for_step

pytestmark = [pytest.mark.e2e, pytest.mark.faults, pytest.mark.timeout(600), pytest.mark.xdist_group("stack")]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 32 MiB: a checkpoint of this run takes 4."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", folder], capture_output=True, text=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", folder], check=True)


def fill(disk: Path, *, free_bytes: int) -> Path:
    filler, usage = disk / "filler", os.statvfs(disk)
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, usage.f_bavail * usage.f_frsize - free_bytes)
    return filler


def test_a_disk_that_fills_up_ends_the_run_with_one_line(disk: Path, stack: Stack, undisturbed: Path, tmp_path: Path):
    run_dir, log = disk / "run", tmp_path / "trainer.log"
    trainer = stack.start_trainer(run_dir, log, "--max_steps", 4)
    wait_for_step(run_dir, 1, trainer)
    filler = fill(disk, free_bytes=0)
    assert trainer.wait(120) == 1, log.read_text()
    said = log.read_text()
    assert "Traceback" not in said, said
    assert "error: the checkpoint of step" in said, said
    filler.unlink()
    resumed = stack.train(run_dir, "--max_steps", 4, "--resume")
    assert resumed.returncode == 0, resumed.stdout
    assert_same_run(undisturbed, run_dir)


def test_a_disk_without_room_for_a_checkpoint_is_told_before_the_first_step(disk: Path, stack: Stack, tmp_path: Path):
    run_dir = disk / "run"
    fill(disk, free_bytes=5 * 2**19)  # for the final model alone
    ended = stack.train(run_dir, "--max_steps", 4)
    assert ended.returncode == 3, ended.stdout
    assert "a checkpoint takes about" in ended.stdout
    assert "step 1/" not in ended.stdout
