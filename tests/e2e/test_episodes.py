"""A run whose episodes a user's environment plays, against the real servers."""

import json
import os
import signal
import time
from pathlib import Path

import httpx
import pytest

from tests.e2e.conftest import Stack, read_jsonl
from tests.e2e.runs import assert_same_run, wait_for_step
from tests.waiting import PATIENCE_S

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900), pytest.mark.xdist_group("stack")]

GAME = Path(__file__).with_name("letters_game.py")
STOPS = list(range(57, 101))
"""Digits and punctuation end a turn: one of random weights would never end by itself."""
FLAGS = (
    "--episodes.environment", f"{GAME}:Letters", "--episodes.num_tasks", 24, "--episodes.max_turn_tokens", 8,
    "--rollout.max_completion_length", 14, "--rollout.stop_token_ids", STOPS,
    "--data.dataset", "null", "--data.eval_dataset", "null", "--eval.max_rows", 4,
    "--reward.reward_funcs", "[]",
)  # fmt: skip


@pytest.fixture(scope="module")
def played(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("runs") / "episodes"
    result = stack.train(run_dir, *FLAGS)
    assert result.returncode == 0, result.stdout
    return run_dir


def accounted_for(step: dict[str, object]) -> bool:
    parts = [step[name] for name in step if name.startswith(("tokens/trained", "tokens/masked_"))]
    return step["tokens/sampled"] == sum(parts) > 0  # type: ignore[arg-type]


def test_every_sampled_token_is_accounted_for_and_conversations_are_logged(played: Path):
    steps = [step for step in read_jsonl(played / "metrics.jsonl") if step["step"]]
    assert [step["policy_version"] for step in steps] == [2, 3, 4]
    for step in steps:
        assert accounted_for(step)
        assert step["samples/used"] == 32
        assert step["episodes/completed"] + step["episodes/truncated"] == 32
        assert step["rewards/environment/mean"] > 0
    lines = read_jsonl(played / "completions.jsonl")
    assert sum(step["tokens/sampled"] for step in steps) == sum(line["num_tokens"] for line in lines)
    whole = [line for line in lines if len(line["turns"]) == 2]
    assert whole, "some episodes have both turns"
    for line in whole:
        assert [message["role"] for message in line["messages"]][:4] == ["user", "assistant", "user", "assistant"]
        assert line["completion"] == line["turns"][-1]["text"]
        assert line["rewards"]["environment"]["score"] == pytest.approx(sum(turn["reward"] for turn in line["turns"]))
    by_group: dict[int, set[str]] = {}
    for line in lines:
        by_group.setdefault(line["group"], set()).add(line["messages"][0]["content"])
    assert {len(openings) for openings in by_group.values()} == {1}, "a group starts in one state"
    assert len(set.union(*by_group.values())) > 1


def test_held_out_rows_are_played_as_episodes(played: Path):
    first, *_, last = read_jsonl(played / "metrics.jsonl")
    assert {"eval_reward", "eval_accuracy", "eval_greedy"} <= first.keys() & last.keys()


def open_sessions(url: str) -> int:
    return httpx.get(f"{url}/info", trust_env=False, timeout=PATIENCE_S).json()["sessions"]["open"]  # type: ignore[no-any-return]


def test_the_sessions_of_a_run_are_forgotten(played: Path, stack: Stack):
    assert open_sessions(stack.rollout.url) == 0


def test_a_run_killed_in_mid_episode_and_resumed_is_the_same_to_the_bit(played: Path, stack: Stack, tmp_path: Path):
    run_dir = tmp_path / "killed"
    slowly = {"LETTERS_PAUSE_S": "0.5"}
    trainer = stack.start_trainer(run_dir, tmp_path / "trainer.log", *FLAGS, environment=slowly)
    wait_for_step(run_dir, 1, trainer)
    deadline = time.monotonic() + 60
    while not open_sessions(stack.rollout.url):
        assert time.monotonic() < deadline, "no episode is played"
        time.sleep(0.02)
    os.killpg(trainer.pid, signal.SIGKILL)
    trainer.wait(30)
    resumed = stack.train(run_dir, *FLAGS, "--resume")
    assert resumed.returncode == 0, resumed.stdout
    assert_same_run(played, run_dir)
    assert open_sessions(stack.rollout.url) == 0, (
        "those of the killed process are replaced, or ended with its weights session"
    )


def test_pushes_in_mid_episode_lose_no_token(stack: Stack, tmp_path: Path):
    run_dir, log = tmp_path / "overlapped", tmp_path / "trainer.log"
    across_pushes = ("--episodes.environment", f"{GAME}:AcrossPushes")
    flags = (*across_pushes, "--algorithm.max_staleness", 1, "--max_steps", 4, "--eval.eval_steps", 0)
    trainer = stack.start_trainer(run_dir, log, *FLAGS, *flags, environment={"LETTERS_SERVER": stack.rollout.url})
    assert trainer.wait(200) == 0, log.read_text()
    steps = [step for step in read_jsonl(run_dir / "metrics.jsonl") if step["step"]]
    for step in steps:
        assert accounted_for(step)
    lines = read_jsonl(run_dir / "completions.jsonl")
    mixed = [line for line in lines if len({version for version, _ in line["versions"]}) > 1]
    assert mixed, "some episodes were played by two policies"
    for line in lines:
        of_batch = line["step"]
        for turn in line["turns"]:
            is_stale = any(version < of_batch - 1 for version, _ in turn["versions"])
            assert turn["masked"] == ("stale" if is_stale else None)


def test_a_dry_run_imports_what_plays(stack: Stack, tmp_path: Path):
    result = stack.train(tmp_path / "dry", *FLAGS, "--dry-run")
    assert result.returncode == 0, result.stdout
    assert f"by {GAME}:Letters; at most 64 at once" in result.stdout
    assert "the servers' --max-model-len: episodes.max_context_tokens is absent" in result.stdout
    broken = tmp_path / "broken.py"
    broken.write_text("import nothing_of_this_name\n")
    result = stack.train(tmp_path / "dry", *FLAGS, "--episodes.environment", f"{broken}:Game", "--dry-run")
    assert result.returncode == 2, result.stdout
    assert "nothing_of_this_name" in result.stdout


def test_a_run_with_tools_needs_a_server_that_reads_calls(stack: Stack, tmp_path: Path):
    flags = ("--episodes.tools", json.dumps([f"{GAME}:shout"]), "--episodes.min_group_size", 1)
    result = stack.train(tmp_path / "tools", *flags)
    assert result.returncode == 3, result.stdout
    assert "--enable-auto-tool-choice --tool-call-parser" in result.stdout
