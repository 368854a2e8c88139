"""One GRPO loop through three real services."""

import json
import os
import re
import subprocess
from collections import Counter
from pathlib import Path

import httpx
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.e2e.conftest import TRAINER_ENVIRONMENT, Stack, read_jsonl
from tests.processes import BIN
from tests.waiting import PATIENCE_S
from tests.warm_python import warm_python

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900), pytest.mark.xdist_group("stack")]


@pytest.fixture(scope="module")
def finished_run(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """By the command itself; the other runs are forks of a process that has imported the libraries."""
    run_dir = tmp_path_factory.mktemp("runs") / "loop"
    flags = ["--run_dir", run_dir, "--logging.report_to", "tensorboard", "--algorithm.beta", "0.01"]
    rows = str(stack.model.parent / "rows.jsonl")
    sets = {"few": {"dataset": f"{rows}#4", "num_generations": 4, "pass_at": [1, 4]}, "all": {"dataset": rows}}
    flags += ["--data.eval_dataset", "null", "--data.eval_datasets", json.dumps(sets)]
    flags += ["--checkpoint.metric_for_best", "eval/few/pass@4"]
    mixed = {"few": {"dataset": f"{rows}#4", "ratio": 0.25, "rewards": {"letters": 2.0}}}
    mixed |= {"all": {"dataset": rows, "ratio": 0.75}}
    flags += ["--data.dataset", "null", "--data.datasets", json.dumps(mixed)]
    result = subprocess.run(
        [BIN / "grpo-train", stack.run_file, *flags],
        env=os.environ | TRAINER_ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=200,
        check=False,
    )
    assert result.returncode == 0, result.stdout
    return run_dir


def test_every_step_is_written_with_its_metrics(finished_run: Path):
    steps = read_jsonl(finished_run / "metrics.jsonl")
    assert [step["step"] for step in steps] == [0, 1, 2, 3]
    expected = {
        "reward", "reward_std", "rewards/letters/mean", "completions/mean_length", "loss", "grad_norm", "kl", "entropy",
        "learning_rate", "clip_ratio/region_mean", "sampling/sampling_logp_difference/mean", "num_tokens", "step_time",
        "time/wait_s", "time/train_s", "time/push_s", "staleness/max", "weights/push_s", "policy_version",
        "tokens/computed", "tokens/shared_ratio",
    }  # fmt: skip
    assert expected <= steps[1].keys()
    assert [step["policy_version"] for step in steps] == [1, 2, 3, 4]
    assert "eval_accuracy" in steps[0]
    assert "eval_greedy" in steps[3]
    of_sets = {"few/avg@4", "few/pass@1", "few/pass@4", "all/avg@1", "all/pass@1"}
    of_sets |= {f"{name}/{metric}" for name in ("few", "all") for metric in ("greedy", "reward", "mean_length")}
    assert {f"eval/{name}" for name in of_sets} == {name for name in steps[0] if name.startswith("eval/")}
    assert steps[0]["eval_accuracy"] == (steps[0]["eval/few/avg@4"] + steps[0]["eval/all/avg@1"]) / 2  # type: ignore[operator]


def test_every_metric_is_on_its_page(finished_run: Path):
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    names = [re.sub(r"<\w+>", "[^/]+", re.escape(name)) for name in re.findall(r"`([\w/@<>]+)`", page)]
    found = {name for step in read_jsonl(finished_run / "metrics.jsonl") for name in step}
    assert not {name for name in found if not any(re.fullmatch(pattern, name) for pattern in names)}


def test_every_completion_of_an_evaluation_is_written(finished_run: Path):
    lines = read_jsonl(finished_run / "eval_completions.jsonl")
    assert Counter((line["step"], line["dataset"], line["decoding"]) for line in lines) == {
        (step, f"eval/{name}", decoding): num_rows * (num_generations if decoding == "sampled" else 1)
        for step in (0, 2, 3)
        for name, num_rows, num_generations in (("few", 4, 4), ("all", 24, 1))
        for decoding in ("sampled", "greedy")
    }
    totals = {name: [line["total"] for line in lines if line["step"] == 3 and line["decoding"] == "sampled"
              and line["dataset"] == f"eval/{name}"] for name in ("few", "all")}  # fmt: skip
    means = [sum(values) / len(values) for values in totals.values()]
    assert sum(means) / 2 == pytest.approx(read_jsonl(finished_run / "metrics.jsonl")[3]["eval_reward"])


def test_the_servers_compute_what_the_trainer_computes(finished_run: Path):
    for step in read_jsonl(finished_run / "metrics.jsonl"):
        assert step["canary/logprob_difference_max"] <= 1e-4
    assert all(step["staleness/max"] == 0 for step in read_jsonl(finished_run / "metrics.jsonl")[1:])


def test_training_changes_the_policy(finished_run: Path, stack: Stack):
    before = AutoModelForCausalLM.from_pretrained(stack.model, dtype=torch.float32)
    after = AutoModelForCausalLM.from_pretrained(finished_run / "model", dtype=torch.float32)
    changes = [(a - b).abs().max().item() for a, b in zip(before.parameters(), after.parameters(), strict=True)]
    assert max(changes) > 1e-4
    assert AutoTokenizer.from_pretrained(finished_run / "model")("abc")["input_ids"]


def test_every_completion_is_written_with_its_rewards_and_version(finished_run: Path):
    completions = read_jsonl(finished_run / "completions.jsonl")
    assert len(completions) == 3 * 32
    first = completions[0]
    assert first["rewards"]["letters"]["status"] == "ok"  # type: ignore[index]
    assert first["versions"] == [[1, first["num_tokens"]]]
    assert {"step", "prompt", "completion", "advantage", "finish_reason"} <= first.keys()


def test_each_dataset_has_its_share_of_the_prompts_and_its_own_weights(finished_run: Path):
    completions = read_jsonl(finished_run / "completions.jsonl")
    assert Counter(line["dataset"] for line in completions) == {"few": 3 * 8, "all": 3 * 24}
    for line in completions:
        weight = 2.0 if line["dataset"] == "few" else 1.0
        assert line["total"] == pytest.approx(weight * line["rewards"]["letters"]["score"])  # type: ignore[index]
    last = read_jsonl(finished_run / "metrics.jsonl")[-1]
    assert {"share", "reward", "reward_std", "frac_reward_zero_std", "epoch"} <= {
        name.removeprefix("data/few/") for name in last
    }
    assert (last["data/few/epoch"], last["data/all/epoch"]) == (6 / 4, 18 / 24)


def test_the_run_ends_with_a_summary_and_a_page(finished_run: Path):
    summary = json.loads((finished_run / "summary.json").read_text())
    assert summary["steps"] == 3
    assert summary["eval_accuracy_before"] is not None
    assert set(summary["seconds_per_stage"]) >= {"wait", "train", "push"}
    assert summary["best_checkpoint"] in ("checkpoints/checkpoint-2", "checkpoints/checkpoint-3")
    assert (finished_run / summary["best_checkpoint"] / "manifest.json").exists()
    page = (finished_run / "report.html").read_text()
    assert summary["best_checkpoint"] in page
    markup = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search(r"""(?:src|href)\s*=\s*["']?https?:""", markup)
    assert list((finished_run / "tensorboard").glob("*tfevents*"))


def test_the_server_holds_the_last_version(finished_run: Path, stack: Stack):
    state = httpx.get(f"{stack.rollout.url}/v1/weights", trust_env=False, timeout=PATIENCE_S).json()
    assert (state["state"], state["version"]) == ("current", 4)


def test_the_command_evaluate_finds_what_the_run_has_found(finished_run: Path, tmp_path: Path):
    log, completions = tmp_path / "evaluate.log", tmp_path / "completions.jsonl"
    words = ("-m", "grpo_trainer", "evaluate", finished_run / "run.yaml", "--completions", completions)
    assert warm_python(*words, output=log, environment=TRAINER_ENVIRONMENT).wait(PATIENCE_S) == 0, log.read_text()
    said, last = log.read_text(), read_jsonl(finished_run / "metrics.jsonl")[3]
    assert "weights current, version 4" in said
    assert "few 4 prompts × 4 sampled, 1 greedy, all 24 prompts × 1 sampled, 1 greedy" in said
    metrics = [name for name in last if name.startswith("eval")]
    assert len(metrics) > 10
    for name in metrics:
        assert re.search(rf"^{re.escape(name)} +{last[name]:.4g}$", said, re.MULTILINE), name
    key = ("dataset", "decoding", "group", "index", "completion", "total")
    of_run = [line for line in read_jsonl(finished_run / "eval_completions.jsonl") if line["step"] == 3]
    assert [[line[k] for k in key] for line in read_jsonl(completions)] == [[line[k] for k in key] for line in of_run]


def test_no_secret_is_written_anywhere(stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    secrets = {"GRPO_API_TOKEN": "token-of-the-services", "HF_TOKEN": "hf_of-somebody", "WANDB_API_KEY": "f" * 40}
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    said = stack.train(tmp_path / "refused", "--reward.url", "http://somebody:password-in-a-url@127.0.0.1:9").stdout
    assert "reward.url: no user and no password in a URL: put the token into GRPO_API_TOKEN" in said
    finished = stack.train(tmp_path / "run", "--max_steps", 1)
    assert finished.returncode == 0, finished.stdout
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) > 10
    written += [text.encode() for text in (said, finished.stdout)]
    for secret in (*secrets.values(), "password-in-a-url"):
        assert not any(secret.encode() in content for content in written), secret
