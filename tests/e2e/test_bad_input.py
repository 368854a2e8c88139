"""Each mistake ends in one readable message that names what to change, with an exit status other than 0."""

import io
import json
import logging
import os
import shutil
import signal
import socket
from collections.abc import Iterator
from contextlib import nullcontext, redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from grpo_trainer.__main__ import main
from grpo_trainer.checkpoint.run_lock import only_trainer_in
from grpo_trainer.ranks.stop_signal import STOP_SIGNALS
from tests.e2e.conftest import PLUGIN, TRAINER_ENVIRONMENT, Stack
from tests.processes import free_port
from tests.tiny_model import save_tiny_model
from tests.warm_python import READ_BY_IMPORTS

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900), pytest.mark.xdist_group("stack")]


@pytest.fixture(autouse=True)
def the_process_as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Set back what the trainer's command sets for its process."""
    for name, value in (READ_BY_IMPORTS | TRAINER_ENVIRONMENT).items():
        monkeypatch.setenv(name, value)
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    signals = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for number, handler in signals.items():
        signal.signal(number, handler)


def refuse(stack: Stack, tmp_path: Path, *flags: object) -> str:
    """Run in this process, expect a refusal, and return what was said."""
    return refused(*run_here(stack, tmp_path, *flags))


def refused(status: int, printed: str) -> str:
    assert status != 0, printed
    assert "Traceback" not in printed
    assert "error: " in printed
    return printed


def run_here(stack: Stack, tmp_path: Path, *flags: object) -> tuple[int, str]:
    """`grpo-train` without a process of its own: its exit status, and all that it printed."""
    printed = io.StringIO()
    with redirect_stdout(printed), redirect_stderr(printed):
        status = main([str(word) for word in (stack.run_file, "--run_dir", tmp_path / "run", *flags)])
    return status, printed.getvalue()


def train_in_a_process(stack: Stack, tmp_path: Path, *flags: object) -> tuple[int, str]:
    result = stack.train(tmp_path / "run", *flags, timeout_s=120)
    return result.returncode, result.stdout


def write_rows(tmp_path: Path, *rows: dict[str, object]) -> Path:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_a_batch_that_num_generations_does_not_divide(stack: Stack, tmp_path: Path):
    assert "num_generations 3 does not divide" in refuse(stack, tmp_path, "--rollout.num_generations", 3)


def test_an_unknown_surrogate(stack: Stack, tmp_path: Path):
    said = refuse(stack, tmp_path, "--dry-run", "--algorithm.loss", "cliped")
    assert "algorithm.loss cliped is unknown; did you mean clipped?" in said


def test_experts_to_balance_in_a_model_without_any(stack: Stack, tmp_path: Path):
    for flags in ((), ("--dry-run",)):
        said = refuse(stack, tmp_path, *flags, "--algorithm.router_aux_loss_coef", 0.01)
        assert "router_aux_loss_coef is 0.01, and qwen2 has no load-balancing loss of experts" in said


def test_a_parameter_that_a_reward_does_not_have(stack: Stack, tmp_path: Path):
    for flags in ((), ("--dry-run",)):
        said = refuse(stack, tmp_path, *flags, "--reward.params", '{"letters": {"scale": 2}}')
        assert "reward.params: letters has no parameter scale" in said
        assert "its parameters: none" in said


def test_an_empty_dataset(stack: Stack, tmp_path: Path):
    assert "rows.jsonl" in refuse(stack, tmp_path, "--data.dataset", write_rows(tmp_path))


def test_a_dataset_without_the_column_a_reward_needs(stack: Stack, tmp_path: Path):
    said = refuse(stack, tmp_path, "--data.dataset", write_rows(tmp_path, {"prompt": "a"}))
    assert "letters needs the column target" in said


def test_a_prompt_longer_than_the_limit(stack: Stack, tmp_path: Path):
    rows = write_rows(tmp_path, {"prompt": "a", "target": 1}, {"prompt": "b" * 900, "target": 2})
    assert "max_prompt_length" in refuse(stack, tmp_path, "--data.dataset", rows)


def test_a_prompt_that_does_not_fit_the_servers_context(stack: Stack, tmp_path: Path):
    rows = write_rows(tmp_path, {"prompt": "b" * 250, "target": 2})
    said = refuse(stack, tmp_path, "--data.dataset", rows)
    assert "context of 256 tokens" in said
    assert "--max-model-len" in said


def test_a_server_that_is_not_there(stack: Stack, tmp_path: Path):
    nowhere = f"http://127.0.0.1:{free_port()}"
    said = refuse(stack, tmp_path, "--rollout.urls", nowhere, "--rollout.startup_timeout_s", 2)
    assert nowhere in said
    assert "grpo-rollout serve" in said
    said = refuse(stack, tmp_path / "again", "--reward.url", nowhere, "--reward.startup_timeout_s", 2)
    assert nowhere in said
    assert "grpo-reward serve" in said


def test_a_server_with_another_model(stack: Stack, tmp_path: Path):
    other = save_tiny_model(tmp_path / "other", num_layers=3)
    # It is told after the ranks have met, which a process does once.
    assert "model.layers.2" in refused(*train_in_a_process(stack, tmp_path, "--model.name_or_path", other))


def test_a_server_with_another_tokenizer(stack: Stack, tmp_path: Path):
    other = save_tiny_model(tmp_path / "other")
    file = other / "tokenizer_config.json"
    settings = json.loads(file.read_text())
    settings["eos_token"] = "<unk>"
    file.write_text(json.dumps(settings))
    assert "another tokenizer" in refuse(stack, tmp_path, "--model.name_or_path", other)


def test_a_reward_that_the_server_does_not_have(stack: Stack, tmp_path: Path):
    said = refuse(stack, tmp_path, "--reward.reward_funcs", "lettres")
    assert "no reward lettres" in said
    assert "--plugin" in said


def test_a_reward_from_another_file_than_the_server_has(stack: Stack, tmp_path: Path):
    status, printed = run_here(stack, tmp_path, "--dry-run", "--reward.reward_funcs", f"{PLUGIN}:letters")
    assert status == 0, printed
    changed = tmp_path / PLUGIN.name
    changed.write_text(PLUGIN.read_text() + "# changed\n")
    said = refuse(stack, tmp_path, "--reward.reward_funcs", f"{changed}:letters")
    assert "older version" in said
    assert f"--plugin {changed}:letters" in said
    assert "No such file" in refuse(stack, tmp_path / "gone", "--reward.reward_funcs", f"{tmp_path}/gone.py:letters")


def test_a_port_in_use(stack: Stack, tmp_path: Path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"127.0.0.1:{port}" in refuse(stack, tmp_path, "--server.port", port)


def test_a_folder_that_holds_another_run(stack: Stack, tmp_path: Path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text("{}\n")
    assert "--resume" in refuse(stack, tmp_path)


def test_a_resume_with_another_seed_or_one_more_row(stack: Stack, undisturbed: Path, tmp_path: Path):
    shutil.copytree(undisturbed, tmp_path / "run")
    assert "seed 42, and this run has 7: it would repeat" in refuse(stack, tmp_path, "--resume", "--seed", 7)
    rows = tmp_path / "rows.jsonl"
    rows.write_text((stack.folder / "rows.jsonl").read_text() + '{"prompt": "more", "target": 1}\n')
    said = refuse(stack, tmp_path, "--resume", "--data.dataset", rows)
    assert f"data.dataset 24 rows of {stack.folder}/rows.jsonl, and this run has 25 rows of {rows}: it would" in said
    assert "choose another run_dir" in said


def test_a_folder_that_another_trainer_uses(stack: Stack, tmp_path: Path):
    (tmp_path / "run").mkdir()
    with only_trainer_in(tmp_path / "run", timeout_s=0, interruptible=nullcontext):
        said = refused(*train_in_a_process(stack, tmp_path, "--lock_timeout_s", 1))
        assert f"is in use by process {os.getpid()} on" in said


def test_a_dry_run_says_what_would_happen(stack: Stack, tmp_path: Path):
    status, printed = run_here(stack, tmp_path, "--dry-run")
    assert status == 0, printed
    assert "3, each 8 prompts x 4 completions" in printed
    assert "weights" in printed
    assert not (tmp_path / "run").exists()
    (tmp_path / "taken").touch()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        flags = ("--dry-run", "--run_dir", tmp_path / "taken" / "run", "--server.port", port)
        status, printed = run_here(stack, tmp_path, *flags)
    assert status == 0, printed
    assert f"cannot be made here: {tmp_path}/taken is no folder" in printed
    assert f"cannot listen on 127.0.0.1:{port} here: Address already in use" in printed
