"""A run folder on a real disk that is too small or fills up: one readable line, on all ranks, and the run goes on."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from grpo_proto.log_parts import older_parts
from tests.e2e.conftest import Stack, read_jsonl
from tests.e2e.runs import assert_same_run, wait_for_rows, wait_for_step
from tests.processes import free_port
from tests.small_disk import fill, small_disk

pytestmark = [pytest.mark.e2e, pytest.mark.faults, pytest.mark.timeout(900), pytest.mark.xdist_group("network")]

FILLING = """
from pathlib import Path

from tests.small_disk import fill


def at_step(step, metrics, *, full_at: int, leave: int = 0):
    if step == full_at:
        fill(Path(__file__).parent / "disk", leave=leave)
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "filling.py").write_text(FILLING)
    with small_disk(tmp_path / "disk", "24m") as disk:
        yield disk


def filled(disk: Path, params: str) -> tuple[str, ...]:
    """Flags of a run that ends a step, and then has no room on `disk`."""
    return ("--callbacks", f"{disk.parent}/filling.py:at_step", "--callbacks_params", f'{{"at_step": {params}}}')


def ends_of_two_ranks(stack: Stack, run_dir: Path, logs: Path, *flags: object) -> tuple[list[int], str]:
    """The exit status of each rank, and what rank 0 printed."""
    meet = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    files = [logs / f"rank-{rank}.log" for rank in range(2)]
    ranks = [
        stack.start_trainer(
            run_dir,
            file,
            *("--deepspeed.nproc_per_node", 2, *flags),
            environment=meet | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank, file in enumerate(files)
    ]
    try:
        statuses = [rank.wait(200) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert "Traceback" not in files[1].read_text()
    return statuses, files[0].read_text()


def errors_in(printed: str) -> list[str]:
    assert "Traceback" not in printed, printed
    assert "terminate called" not in printed, printed
    return [line for line in printed.splitlines() if line.startswith("error: ")]


def test_a_log_without_room_ends_all_ranks_with_every_step_saved(stack: Stack, disk: Path, tmp_path: Path):
    """The checkpoints lie on another disk, as many users have it."""
    run_dir, elsewhere = disk / "run", tmp_path / "elsewhere"
    elsewhere.mkdir()
    run_dir.mkdir()
    (run_dir / "checkpoints").symlink_to(elsewhere)
    # Without evaluations: their log would be the first to meet it.
    flags = ("--max_steps", 4, "--checkpoint.save_steps", 0, "--eval.eval_steps", 0)
    statuses, printed = ends_of_two_ranks(stack, run_dir, tmp_path, *flags, *filled(disk, '{"full_at": 1}'))
    assert statuses == [1, 1], printed
    assert errors_in(printed) == [f"error: {run_dir}/completions.jsonl could not be written: No space left on device"]
    assert "completions.jsonl: its last 32 lines are lost" in printed
    assert [path.name for path in elsewhere.iterdir()] == ["checkpoint-2"]
    assert {line["step"] for line in read_jsonl(run_dir / "completions.jsonl")} == {1}, "whole lines alone"
    (disk / "ballast").unlink()
    resumed = stack.train(run_dir, *flags, "--resume")
    assert resumed.returncode == 0, resumed.stdout
    assert [line["step"] for line in read_jsonl(run_dir / "metrics.jsonl")] == [0, 1, 3, 4]


def test_a_checkpoint_without_room_ends_all_ranks_and_the_run_goes_on_from_the_one_before(
    stack: Stack, disk: Path, tmp_path: Path
):
    run_dir = disk / "run"
    flags = ("--max_steps", 4, *filled(disk, '{"full_at": 2, "leave": 262144}'))
    statuses, printed = ends_of_two_ranks(stack, run_dir, tmp_path, *flags)
    assert statuses == [1, 1], printed
    [error] = errors_in(printed)
    assert error.startswith("error: the checkpoint of step 2 could not be written: rank 0: [Errno 28] "), error
    assert "MiB are needed, and 0." in error, error
    assert [path.name for path in (run_dir / "checkpoints").iterdir()] == ["checkpoint-1"]
    (disk / "ballast").unlink()
    resumed = stack.train(run_dir, "--max_steps", 4, "--resume")
    assert resumed.returncode == 0, resumed.stdout
    assert [line["step"] for line in read_jsonl(run_dir / "metrics.jsonl")] == [0, 1, 2, 3, 4]


def test_a_run_that_another_process_has_filled_the_disk_of_goes_on_as_if_it_had_not(
    stack: Stack, undisturbed: Path, disk: Path, tmp_path: Path
):
    run_dir, log = disk / "run", tmp_path / "trainer.log"
    trainer = stack.start_trainer(run_dir, log, "--max_steps", 4)
    wait_for_step(run_dir, 1, trainer)
    ballast = fill(disk)
    assert trainer.wait(120) == 1, log.read_text()
    assert len(errors_in(log.read_text())) == 1, log.read_text()
    ballast.unlink()
    resumed = stack.train(run_dir, "--max_steps", 4, "--resume")
    assert resumed.returncode == 0, resumed.stdout
    assert_same_run(undisturbed, run_dir)


def test_a_disk_that_has_no_room_for_a_checkpoint_ends_the_run_before_its_first_step(stack: Stack, tmp_path: Path):
    with small_disk(tmp_path / "disk", "2m") as disk:
        ended = stack.train(disk / "run")
        assert ended.returncode == 3, ended.stdout
        [error] = errors_in(ended.stdout)
        assert error.startswith("error: the next checkpoint could not be written: [Errno 28] ")
        assert not (disk / "run/metrics.jsonl").exists()


def test_a_log_in_parts_is_cut_back_and_goes_on_as_if_the_run_had_not_been_killed(
    stack: Stack, undisturbed: Path, tmp_path: Path
):
    run_dir, flags = tmp_path / "killed", ("--max_steps", 4, "--logging.completions_part_mib", 0.001)
    trainer = stack.start_trainer(run_dir, tmp_path / "trainer.log", *flags)
    wait_for_step(run_dir, 3, trainer)
    os.killpg(trainer.pid, signal.SIGKILL)
    trainer.wait(30)
    for step in (2, 3, 4):  # what a kill right after the first step would have left
        if (newer := run_dir / f"checkpoints/checkpoint-{step}").exists():
            newer.rename(tmp_path / newer.name)
    resumed = stack.train(run_dir, *flags, "--resume")
    assert resumed.returncode == 0, resumed.stdout
    assert_same_run(undisturbed, run_dir)
    assert [part.name for part in older_parts(run_dir / "completions.jsonl")] == [
        f"completions-part-000{number}.jsonl" for number in (1, 2, 3)
    ]


def test_a_run_resumed_without_a_checkpoint_keeps_the_files_of_the_one_before(
    stack: Stack, undisturbed: Path, tmp_path: Path
):
    run_dir, flags = tmp_path / "run", ("--max_steps", 4, "--checkpoint.save_steps", 0)
    trainer = stack.start_trainer(run_dir, tmp_path / "trainer.log", *flags)
    try:
        wait_for_rows(run_dir, 2, trainer)
    finally:
        os.killpg(trainer.pid, signal.SIGKILL)
        trainer.wait(30)
    before = {name: (run_dir / name).read_bytes() for name in ("metrics.jsonl", "completions.jsonl")}
    resumed = stack.train(run_dir, *flags, "--resume")
    assert resumed.returncode == 0, resumed.stdout
    assert_same_run(undisturbed, run_dir)
    assert {name: (run_dir / "earlier-1" / name).read_bytes() for name in before} == before
