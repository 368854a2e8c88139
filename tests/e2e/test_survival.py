"""A run survives the death of any part, and a resumed run is the same run."""

import fcntl
import json
import os
import pty
import select
import signal
import subprocess
import termios
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from tests.e2e.conftest import PLUGIN, TRAINER_ENVIRONMENT, Stack, read_jsonl
from tests.e2e.runs import assert_same_run, wait_for_rows, wait_for_step
from tests.processes import BIN, free_port, gone_within, reward_command, service

pytestmark = [pytest.mark.e2e, pytest.mark.faults, pytest.mark.timeout(900), pytest.mark.xdist_group("stack")]


@pytest.mark.parametrize("async_save", [False, True])
def test_a_killed_and_resumed_run_equals_the_undisturbed_one_to_the_bit(
    stack: Stack, undisturbed: Path, tmp_path: Path, async_save: bool
):
    run_dir, flags = tmp_path / "killed", ("--max_steps", 4, "--checkpoint.async_save", async_save)
    trainer = stack.start_trainer(run_dir, tmp_path / "trainer.log", *flags)
    wait_for_step(run_dir, 2, trainer)
    os.killpg(trainer.pid, signal.SIGKILL)
    trainer.wait(30)
    resumed = stack.train(run_dir, *flags, "--resume")
    assert resumed.returncode == 0, resumed.stdout
    assert_same_run(undisturbed, run_dir)


def test_sigterm_saves_and_exits_cleanly_and_the_run_goes_on_from_there(
    stack: Stack, undisturbed: Path, tmp_path: Path
):
    run_dir, log = tmp_path / "terminated", tmp_path / "trainer.log"
    trainer = stack.start_trainer(run_dir, log, "--max_steps", 4, "--checkpoint.save_steps", 0)
    wait_for_rows(run_dir, 2, trainer)
    trainer.send_signal(signal.SIGTERM)
    assert trainer.wait(60) == 0, log.read_text()
    assert list((run_dir / "checkpoints").glob("checkpoint-*"))
    resumed = stack.train(run_dir, "--max_steps", 4, "--resume")
    assert resumed.returncode == 0, resumed.stdout
    assert_same_run(undisturbed, run_dir)


def behind_a_terminal() -> None:
    """Between fork and exec: the terminal at standard input is its own, and its end is not ignored."""
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def drain(terminal: int, closing: threading.Event) -> None:
    """Read what is printed there, until it is to be closed."""
    while not closing.is_set():
        if select.select([terminal], [], [], 0.05)[0]:
            with suppress(OSError):
                os.read(terminal, 4096)


def test_a_run_whose_terminal_is_closed_saves(stack: Stack, tmp_path: Path):
    """A dropped ssh: SIGHUP, and nothing can be printed any more."""
    run_dir = tmp_path / "hung-up"
    terminal, end = pty.openpty()
    words = (BIN / "grpo-train", stack.run_file, "--run_dir", run_dir, "--max_steps", 500, "--checkpoint.save_steps", 0)
    with subprocess.Popen(
        list(map(str, words)), stdin=end, stdout=end, stderr=end, env=os.environ | TRAINER_ENVIRONMENT,
        preexec_fn=behind_a_terminal,
    ) as trainer:  # fmt: skip
        try:
            os.close(end)
            closing = threading.Event()
            reading = threading.Thread(target=drain, args=(terminal, closing), daemon=True)
            reading.start()
            wait_for_rows(run_dir, 3, trainer)
            closing.set()
            reading.join()
            os.kill(trainer.pid, signal.SIGHUP)
            os.close(terminal)
            assert trainer.wait(60) == 0
        finally:
            trainer.kill()
    assert list((run_dir / "checkpoints").glob("checkpoint-*"))


def test_a_checkpoint_cut_off_in_the_middle_is_skipped(stack: Stack, undisturbed: Path, tmp_path: Path):
    run_dir = tmp_path / "cut"
    first = stack.train(run_dir, "--max_steps", 3)
    assert first.returncode == 0, first.stdout
    newest = run_dir / "checkpoints" / "checkpoint-3"
    victim = max((path for path in newest.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    victim.write_bytes(victim.read_bytes()[: victim.stat().st_size // 2])
    resumed = stack.train(run_dir, "--max_steps", 4, "--resume")
    assert resumed.returncode == 0, resumed.stdout
    assert "checkpoint-3" in resumed.stdout
    assert_same_run(undisturbed, run_dir)


def test_a_rollout_server_killed_and_started_again_gets_the_weights_before_it_gets_traffic(
    stack: Stack, undisturbed: Path, tmp_path: Path
):
    port = free_port()
    run_dir, log = tmp_path / "bereft", tmp_path / "trainer.log"
    patience = ("--rollout.startup_timeout_s", 600, "--rollout.retry_for_s", 600, "--weights.push_deadline_s", 600)
    flags = ("--max_steps", 4, "--rollout.urls", f"http://127.0.0.1:{port}", *patience)
    with stack.rollout_server(tmp_path / "first.log", port) as first:
        trainer = stack.start_trainer(run_dir, log, *flags)
        wait_for_step(run_dir, 2, trainer, timeout_s=300)
        engine = first.engine()
        first.process.kill()
        assert gone_within([engine], 10.0), "it would keep the GPU"
    with stack.rollout_server(tmp_path / "second.log", port) as second:
        second.wait_until_live()
        assert trainer.wait(400) == 0, log.read_text()
    said = log.read_text()
    assert "gets no more traffic until the next push" in said or "the push of version" in said, said
    # A server that was away is no reason for another result: the prompts and seeds are the same.
    assert_same_run(undisturbed, run_dir)


def test_a_stop_while_no_server_is_there_saves_and_the_run_goes_on_from_there(stack: Stack, tmp_path: Path):
    """As a drain does that takes the servers first."""
    port = free_port()
    run_dir, log = tmp_path / "drained", tmp_path / "trainer.log"
    flags = ("--rollout.urls", f"http://127.0.0.1:{port}", "--checkpoint.save_steps", 0, "--max_steps", 1000)
    with stack.rollout_server(tmp_path / "first.log", port) as first:
        trainer = stack.start_trainer(run_dir, log, *flags, "--rollout.startup_timeout_s", 600)
        wait_for_rows(run_dir, 2, trainer)
        os.killpg(first.process.pid, signal.SIGKILL)
    deadline = time.monotonic() + 120
    while not any(words in log.read_text() for words in ("the push of version", "gets no more traffic")):
        assert trainer.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)
    trainer.send_signal(signal.SIGTERM)
    assert trainer.wait(60) == 0, log.read_text()
    done = [line["step"] for line in read_jsonl(run_dir / "metrics.jsonl") if "loss" in line]
    assert [path.name for path in (run_dir / "checkpoints").iterdir()] == [f"checkpoint-{done[-1]}"]
    resumed = stack.train(run_dir, "--max_steps", done[-1] + 2, "--resume")
    assert resumed.returncode == 0, resumed.stdout
    steps = [line["step"] for line in read_jsonl(run_dir / "metrics.jsonl") if "loss" in line]
    assert steps == list(range(1, done[-1] + 3))
    lines = read_jsonl(run_dir / "completions.jsonl")
    assert Counter(line["step"] for line in lines) == dict.fromkeys(steps, 32)


def test_a_server_that_stays_away_ends_the_run_with_every_step_saved(stack: Stack, undisturbed: Path, tmp_path: Path):
    port = free_port()
    run_dir, log = tmp_path / "forsaken", tmp_path / "trainer.log"
    flags = ("--max_steps", 4, "--checkpoint.save_steps", 0, "--reward.url", f"http://127.0.0.1:{port}")
    with service(reward_command(port, "--plugin", PLUGIN), tmp_path / "first.log", port=port) as reward:
        trainer = stack.start_trainer(run_dir, log, *flags, "--reward.retry_for_s", 5)
        wait_for_rows(run_dir, 3, trainer)
        os.killpg(reward.process.pid, signal.SIGKILL)
        assert trainer.wait(120) == 1, log.read_text()
    assert "error: the reward server could not score within 5 s" in log.read_text()
    done = [line["step"] for line in read_jsonl(run_dir / "metrics.jsonl")]
    assert [path.name for path in (run_dir / "checkpoints").iterdir()] == [f"checkpoint-{done[-1]}"]
    with service(reward_command(port, "--plugin", PLUGIN), tmp_path / "second.log", port=port):
        resumed = stack.train(run_dir, *flags, "--resume")
    assert resumed.returncode == 0, resumed.stdout
    assert_same_run(undisturbed, run_dir)


def test_one_of_two_rollout_servers_killed_leaves_the_run_to_the_other(stack: Stack, tmp_path: Path):
    port = free_port()
    run_dir, log = tmp_path / "halved", tmp_path / "trainer.log"
    mortal = f"http://127.0.0.1:{port}"
    with stack.rollout_server(tmp_path / "mortal.log", port) as second:
        second.wait_until_live()
        urls = json.dumps([stack.rollout.url, mortal])
        trainer = stack.start_trainer(run_dir, log, "--max_steps", 6, "--rollout.urls", urls)
        wait_for_step(run_dir, 2, trainer, timeout_s=300)
        engine = second.engine()
        engine.kill()
        assert second.process.wait(30.0) == 1
        assert "the engine process has died" in second.log.read_text()
        assert gone_within([engine], 5.0)
        assert trainer.wait(300) == 0, log.read_text()
    said = log.read_text()
    # One group spanned both, then one was formed anew with the survivor alone.
    assert f"with {stack.rollout.url}, {mortal} over gloo" in said, said
    assert f"with {stack.rollout.url} over gloo" in said, said
    assert f"rollout server {mortal} gets no more traffic" in said, said
    # Nothing is missing and nothing was trained on twice.
    lines = read_jsonl(run_dir / "completions.jsonl")
    assert Counter(line["step"] for line in lines) == dict.fromkeys(range(1, 7), 32)
    assert len({(line["step"], line["group"], line["index"]) for line in lines}) == 6 * 32
    assert all(version == line["step"] for line in lines for version, _ in line["versions"])
    assert [step["step"] for step in read_jsonl(run_dir / "metrics.jsonl") if "loss" in step] == [1, 2, 3, 4, 5, 6]


def test_a_reward_server_that_is_away_for_a_while_is_waited_for(stack: Stack, undisturbed: Path, tmp_path: Path):
    port = free_port()
    run_dir, log = tmp_path / "unrewarded", tmp_path / "trainer.log"
    command = reward_command(port, "--plugin", PLUGIN)
    with service(command, tmp_path / "first.log", port=port) as first:
        trainer = stack.start_trainer(run_dir, log, "--max_steps", 4, "--reward.url", f"http://127.0.0.1:{port}")
        wait_for_step(run_dir, 1, trainer)
        os.killpg(first.process.pid, signal.SIGKILL)
    with service(command, tmp_path / "second.log", port=port):
        assert trainer.wait(200) == 0, log.read_text()
    assert_same_run(undisturbed, run_dir)
