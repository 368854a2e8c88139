"""Several ranks, overlap of sampling and training, several updates on one batch."""

import json
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from tests.e2e.conftest import Stack, read_jsonl
from tests.e2e.runs import wait_for_step
from tests.processes import free_port

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900), pytest.mark.xdist_group("stack")]


def metrics_of(stack: Stack, run_dir: Path, *flags: object) -> list[dict[str, float]]:
    result = stack.train(run_dir, *flags, timeout_s=280)
    assert result.returncode == 0, result.stdout
    assert not re.search("deprecated|Loading weights|Writing model", result.stdout), result.stdout
    return read_jsonl(run_dir / "metrics.jsonl")  # type: ignore[return-value]


WATCHED_LOSS = """
import functools
import gc

from grpo_trainer.algorithm.surrogates import clipped


@functools.wraps(clipped)
def watched(logprobs_N, batch, algorithm, tally):
    tally.mean("frozen", logprobs_N * 0 + (gc.get_freeze_count() > 0))
    return clipped(logprobs_N, batch, algorithm, tally)
"""


def two_ranks(stack: Stack, tmp_path: Path, *flags: object) -> tuple[list[int], str]:
    """How two ranks of a run end, each started by its environment, as some clusters do, and what rank 0 says."""
    meet = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    flags = ("--deepspeed.nproc_per_node", 2, *flags)
    logs = [tmp_path / f"rank-{rank}.log" for rank in range(2)]
    ranks = [
        stack.start_trainer(
            tmp_path / "run", log, *flags, environment=meet | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        )
        for rank, log in enumerate(logs)
    ]
    try:
        ends = [rank.wait(280) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    return ends, logs[0].read_text()


@pytest.mark.parametrize("zero_stage", [2, 3])
def test_two_ranks_push_one_policy(stack: Stack, tmp_path: Path, zero_stage: int):
    """Both compute a part of the KL in the rewards, and rank 0 reads a weight of the loss from the model's
    configuration."""
    flags = ("--deepspeed.zero_stage", zero_stage, "--max_steps", 2)
    flags += ("--algorithm.beta", 0.05, "--algorithm.kl_in_reward", True)
    (tmp_path / "own.py").write_text(WATCHED_LOSS)
    flags += ("--algorithm.loss", f"{tmp_path}/own.py:watched", "--algorithm.router_aux_loss_coef", "model")
    ends, said = two_ranks(stack, tmp_path, *flags)
    assert ends == [0, 0], said
    steps = read_jsonl(tmp_path / "run" / "metrics.jsonl")
    assert [step["step"] for step in steps] == [0, 1, 2]
    assert all(step["canary/logprob_difference_max"] <= 1e-4 for step in steps)
    assert [step["frozen"] for step in steps[1:]] == [1.0, 1.0], "on both ranks"
    assert steps[2]["reward"] != steps[1]["reward"]
    assert [step["kl"] != 0.0 for step in steps[1:]] == [False, True]  # only the first update moves from the reference
    assert (tmp_path / "run" / "model" / "model.safetensors").exists()
    assert "router_aux_loss_coef: 0.0\n" in (tmp_path / "run" / "run.yaml").read_text()
    assert "router_aux_loss_coef is 0: qwen2 has no load-balancing loss" in said


@pytest.mark.faults
def test_two_ranks_that_are_stopped_go_on_from_their_checkpoint(stack: Stack, tmp_path: Path):
    run_dir, log = tmp_path / "run", tmp_path / "trainer.log"
    flags = ("--deepspeed.nproc_per_node", 2, "--checkpoint.save_total_limit", 2)
    trainer = stack.start_trainer(run_dir, log, *flags, "--max_steps", 500)
    wait_for_step(run_dir, 1, trainer)
    trainer.send_signal(signal.SIGTERM)
    assert trainer.wait(100) == 143, log.read_text()
    assert "go on with --resume" in log.read_text()
    saved = max(int(path.name.rpartition("-")[2]) for path in (run_dir / "checkpoints").glob("checkpoint-*"))
    steps = metrics_of(stack, run_dir, *flags, "--max_steps", saved + 1, "--resume")
    assert [step["step"] for step in steps] == list(range(saved + 2))
    assert (run_dir / "model" / "model.safetensors").exists()
    ended = stack.train(run_dir, "--max_steps", saved + 1, "--resume")
    assert ended.returncode == 0, ended.stdout
    assert "nothing is left to train; raise max_steps to train on" in ended.stdout
    assert read_jsonl(run_dir / "metrics.jsonl") == steps
    as_one = metrics_of(stack, run_dir, "--max_steps", saved + 2, "--resume")
    assert as_one[:-1] == steps
    assert as_one[-1]["canary/logprob_difference_max"] <= 1e-4


def rank_1_of(launcher: int) -> psutil.Process:
    (found,) = [rank for rank in psutil.Process(launcher).children() if rank.environ().get("RANK") == "1"]
    return found


@pytest.fixture
def released(stack: Stack) -> Iterator[None]:
    """A run that was cut off holds the server until its lease ends: end its session for the tests that follow."""
    yield
    with httpx.Client(base_url=stack.rollout.url, timeout=10.0, trust_env=False) as server:
        session = server.get("/v1/weights").json()["session"]
        if session is not None:
            server.request("DELETE", "/v1/weights/session", json={"session": session}).raise_for_status()


@pytest.mark.faults
@pytest.mark.usefixtures("released")
def test_a_frozen_rank_ends_the_run_by_name(stack: Stack, tmp_path: Path):
    run_dir, log = tmp_path / "run", tmp_path / "trainer.log"
    flags = ("--deepspeed.nproc_per_node", 2, "--server.heartbeat_s", 8, "--max_steps", 500)
    trainer = stack.start_trainer(run_dir, log, *flags)
    wait_for_step(run_dir, 1, trainer)
    rank_1_of(trainer.pid).suspend()
    assert trainer.wait(100) == 1, log.read_text()
    assert "ERROR trainer: rank 1 stands still: its process is frozen or cut off" in log.read_text()
    assert "Traceback" not in log.read_text()


@pytest.mark.faults
@pytest.mark.usefixtures("released")
def test_a_stop_ends_all_ranks_within_its_limit_though_one_is_frozen(
    stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "5")
    run_dir, log = tmp_path / "run", tmp_path / "trainer.log"
    trainer = stack.start_trainer(run_dir, log, "--deepspeed.nproc_per_node", 2, "--max_steps", 500)
    wait_for_step(run_dir, 1, trainer)
    frozen = rank_1_of(trainer.pid)
    frozen.suspend()
    trainer.send_signal(signal.SIGTERM)
    assert trainer.wait(15) == 143, log.read_text()
    assert "rank 1 did not end in time; it is killed" in log.read_text()
    assert not frozen.is_running()


def test_all_ranks_end_before_the_first_step_when_the_model_could_not_be_saved(stack: Stack, tmp_path: Path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "model").write_text("a file of somebody")
    ends, said = two_ranks(stack, tmp_path)
    assert ends == [2, 2], said
    assert f"error: {tmp_path}/run/model is no folder, and one has to be written there at the end" in said
    assert "Traceback" not in said
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_sampling_overlaps_training_within_the_bound(stack: Stack, tmp_path: Path):
    steps = metrics_of(stack, tmp_path / "run", "--algorithm.max_staleness", 1, "--max_steps", 5)[1:]
    assert all(0 <= step["staleness/mean"] <= step["staleness/max"] <= 1 for step in steps)
    assert any(step["staleness/max"] == 1 for step in steps)
    assert all(step["samples/used"] == 32 for step in steps)


def test_a_push_that_waits_for_what_is_sampled_leaves_each_sequence_to_one_policy(stack: Stack, tmp_path: Path):
    flags = (
        "--algorithm.max_staleness",
        1,
        "--weights.in_flight",
        "wait",
        "--max_steps",
        4,
        "--rollout.max_completion_length",
        150,
    )
    steps = metrics_of(stack, tmp_path / "run", *flags)[1:]
    assert [(step["staleness/mean"], step["staleness/max"]) for step in steps] == [(0, 0), (1, 1), (1, 1), (1, 1)]
    sampled = read_jsonl(tmp_path / "run" / "completions.jsonl")
    assert all(len(one["versions"]) == 1 for one in sampled)


NAN_ONCE = """
from grpo_trainer.algorithm.surrogates import clipped

updates = []


def nan_once(logprobs_N, batch, algorithm, tally):
    loss_N = clipped(logprobs_N, batch, algorithm, tally)
    if batch.input_ids_BL.any():  # no made tokens of the trial
        updates.append(batch)
    return loss_N * float("nan") if len(updates) == 2 else loss_N
"""


def test_an_update_without_a_finite_gradient_is_skipped_and_a_resume_names_what_has_changed(
    stack: Stack, tmp_path: Path
):
    (tmp_path / "own.py").write_text(NAN_ONCE)
    flags = ("--algorithm.loss", f"{tmp_path}/own.py:nan_once", "--max_steps", 3)
    steps = metrics_of(stack, tmp_path / "run", *flags)[1:]
    assert [step["update_skipped"] for step in steps] == [0.0, 1.0, 0.0]
    assert ["grad_norm" in step for step in steps] == [True, False, True]
    resumed = stack.train(tmp_path / "run", *flags, "--resume", "--max_steps", 4, "--algorithm.loss_type", "grpo")
    assert resumed.returncode == 0, resumed.stdout
    changed = re.findall("since the run was last started: (.*)", resumed.stdout)
    assert changed == ["max_steps is 4, was 3", "algorithm.loss_type is grpo, was dapo"]


def test_several_updates_on_one_batch(stack: Stack, tmp_path: Path):
    flags = ("--algorithm.num_iterations", 2, "--algorithm.steps_per_generation", 2, "--optimizer.learning_rate", 0.01)
    steps = metrics_of(stack, tmp_path / "run", *flags, "--max_steps", 2)[1:]
    # The first update meets the policy it was sampled by, the later ones do not: ratios leave the clip's range.
    assert any(step["clip_ratio/region_mean"] > 0 for step in steps)
    assert [step["policy_version"] for step in steps] == [2, 3]


def test_demonstrations_are_imitated_beside_the_samples(stack: Stack, tmp_path: Path):
    rows = [json.loads(line) for line in (stack.model.parent / "rows.jsonl").read_text().splitlines()]
    (tmp_path / "demonstrations.jsonl").write_text("\n".join(json.dumps(row | {"completion": "zz"}) for row in rows))
    chord = {"sft_dataset": str(tmp_path / "demonstrations.jsonl"), "sft_batch_size": 8, "mu_peak": 0.5}
    flags = ("--chord", json.dumps(chord), "--optimizer.learning_rate", 0.01, "--max_steps", 2)
    first, second = metrics_of(stack, tmp_path / "run", *flags)[1:]
    assert (first["chord/mu"], second["chord/mu"]) == (0.5, 0.5)
    assert second["chord/logprob"] > first["chord/logprob"]


def test_servers_without_adapters_get_the_sum_in_full(stack: Stack, tmp_path: Path):
    result = stack.train(tmp_path / "run", "--model.lora.r", 8)
    assert result.returncode == 0, result.stdout
    assert "start the servers with --enable-lora" in result.stdout
    metrics = read_jsonl(tmp_path / "run" / "metrics.jsonl")
    assert max(step.get("canary/logprob_difference_max", 0.0) for step in metrics) <= 1e-5


def test_a_model_with_sampling_settings_that_transformers_does_not_write_is_saved(stack: Stack, tmp_path: Path):
    shutil.copytree(stack.model, tmp_path / "model")
    settings = '{"temperature": 0.9, "top_p": 0.6, "eos_token_id": 1}'
    (tmp_path / "model" / "generation_config.json").write_text(settings)
    (tmp_path / "model" / "preprocessor_config.json").write_text("{}")
    metrics_of(stack, tmp_path / "run", "--max_steps", 1, "--model.name_or_path", tmp_path / "model")
    saved = tmp_path / "run" / "model"
    assert (saved / "generation_config.json").read_text() == settings
    assert {path.name for path in saved.iterdir()} == {path.name for path in (tmp_path / "model").iterdir()}


def test_a_batch_of_which_all_is_cut_off_and_masked_makes_no_update(stack: Stack, tmp_path: Path):
    """As in TRL, the run goes on: the next batch may have completions that end."""
    flags = ("--rollout.max_completion_length", 1, "--algorithm.mask_truncated_completions", True, "--max_steps", 3)
    result = stack.train(tmp_path / "run", *flags, "--guards.clipped", "warn")
    assert result.returncode == 0, result.stdout
    steps = read_jsonl(tmp_path / "run" / "metrics.jsonl")[1:]
    all_cut = [step["completions/clipped_ratio"] == 1 for step in steps]
    assert any(all_cut)
    assert ["grad_norm" in step for step in steps] == [not cut for cut in all_cut]
    assert [step["policy_version"] for step in steps] == [2, 3, 4]
    assert len(re.findall(r"makes no update: .* \(\d+ truncated\); raise", result.stdout)) == sum(all_cut)


FAILING_ESTIMATOR = """
calls = []


def own(rewards, algorithm):
    calls.append(rewards)
    if len(calls) == 4:
        raise ValueError("no such group")
    return [[None if total is None else total - 0.5 for total in group] for group in rewards.totals]
"""


def test_an_own_estimator_that_fails_leaves_every_step_and_the_best_one_is_the_final_model(
    stack: Stack, tmp_path: Path
):
    (tmp_path / "own.py").write_text(FAILING_ESTIMATOR)
    flags = ("--algorithm.advantage_estimator", f"{tmp_path}/own.py:own", "--eval.eval_steps", 1)
    flags += ("--checkpoint.metric_for_best", "eval_completions/mean_length", "--checkpoint.load_best_at_end", True)
    failed = stack.train(tmp_path / "run", *flags, "--max_steps", 9)
    assert failed.returncode == 1, failed.stdout
    assert re.search(r"error: algorithm.advantage_estimator .*own.py:own raised ValueError in line 8", failed.stdout)
    assert "Traceback" not in failed.stdout
    assert [step["step"] for step in read_jsonl(tmp_path / "run" / "metrics.jsonl")] == [0, 1, 2, 3]
    # The best is the longest: of the next steps one or the other is no better than those before.
    resumed = stack.train(tmp_path / "run", *flags, "--max_steps", 6, "--resume")
    assert resumed.returncode == 0, resumed.stdout
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    best = int(summary["best_checkpoint"].rpartition("-")[2])
    told = f"the final model is that of step {best}, the best eval_completions/mean_length"
    assert (told in resumed.stdout) == (best != 6)
