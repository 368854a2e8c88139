"""A run with an adapter: the servers keep their base, take a version after each step, and sample all the while."""

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from grpo_proto.messages.weights import CloseRequest
from tests.e2e.conftest import Stack, read_jsonl, stack_around
from tests.e2e.runs import assert_same_run, completions, wait_for_step
from tests.otlp_receiver import otlp_receiver
from tests.rollout.conftest import Server
from tests.waiting import PATIENCE_S

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900), pytest.mark.xdist_group("stack")]
LORA = ("--model.lora.r", 8, "--model.lora.alpha", 16, "--optimizer.learning_rate", 1e-2)


@pytest.fixture(scope="module")
def adapters(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Around the server of adapters: one that has taken a push of all weights has lost the base of an adapter."""
    asyncio.run(free(server))
    model = Path(httpx.get(f"{server.url}/info", trust_env=False, timeout=PATIENCE_S).json()["model"])
    with (
        otlp_receiver() as receiver,
        stack_around(server.running, model, tmp_path_factory.mktemp("adapter-runs"), receiver) as stack,
    ):
        yield stack


async def free(server: Server) -> None:
    """Close the session that the tests before have left, whose lease a run would wait for."""
    async with server.trainer() as trainer:
        await trainer.join(take_over=True)
        await trainer.clients[0].close_session(CloseRequest(session=trainer.session))


def train(stack: Stack, run_dir: Path, *flags: object) -> str:
    result = stack.train(run_dir, *LORA, *flags)
    assert result.returncode == 0, result.stdout
    return result.stdout


@pytest.fixture(scope="module")
def finished(adapters: Stack, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("finished") / "run"
    train(adapters, run_dir, "--checkpoint.save_merged", True)
    return run_dir


def largest_difference(run_dir: Path) -> float:
    """Of the canary, over the whole run."""
    metrics = read_jsonl(run_dir / "metrics.jsonl")
    return max(step["canary/logprob_difference_max"] for step in metrics if "canary/logprob_difference_max" in step)


def test_adapters_are_pushed_verified_and_saved(adapters: Stack, finished: Path):
    metrics = read_jsonl(finished / "metrics.jsonl")
    pushed = {step["weights/push_bytes"] for step in metrics if "weights/push_bytes" in step}
    assert max(pushed) < 200_000, "an adapter, and not the model of 1.6 MB"
    assert largest_difference(finished) <= 1e-5
    state = httpx.get(f"{adapters.rollout.url}/info", trust_env=False, timeout=PATIENCE_S).json()["weights"]
    assert state["state"] == "current"
    assert state["verified_by"] == ["canary"]
    base = AutoModelForCausalLM.from_pretrained(adapters.model)
    with_adapter = PeftModel.from_pretrained(base, finished / "model")
    merged = AutoModelForCausalLM.from_pretrained(finished / "model-merged")
    tokens = torch.arange(5, 25)[None]
    with torch.no_grad():
        difference = (with_adapter(tokens).logits - merged(tokens).logits).abs().max()
        with with_adapter.disable_adapter():
            moved = (with_adapter(tokens).logits - merged(tokens).logits).abs().max()
    assert difference <= 1e-5 < moved


def test_a_run_in_four_bits_samples_and_learns_as_on_the_same_weights_whole(
    adapters: Stack, finished: Path, tmp_path: Path
):
    """The server's model has the values of NF4; its logprobs differ in the last bit with the sequences of a batch."""
    run_dir = tmp_path / "run"
    said = train(adapters, run_dir, "--model.load_in_4bit", True)
    assert "14 linear layers in NF4" in said
    assert largest_difference(run_dir) <= 1e-5
    assert completions(run_dir) == completions(finished)
    norms = [[step["grad_norm"] for step in read_jsonl(run / "metrics.jsonl")[1:]] for run in (run_dir, finished)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)


@pytest.mark.faults
def test_a_killed_and_resumed_run_equals_the_undisturbed_one_to_the_bit(adapters: Stack, tmp_path: Path):
    undisturbed, run_dir = tmp_path / "undisturbed", tmp_path / "killed"
    train(adapters, undisturbed, "--max_steps", 4)
    trainer = adapters.start_trainer(run_dir, tmp_path / "trainer.log", *LORA, "--max_steps", 4)
    wait_for_step(run_dir, 2, trainer)
    os.killpg(trainer.pid, signal.SIGKILL)
    trainer.wait(30)
    train(adapters, run_dir, "--max_steps", 4, "--resume")
    assert_same_run(undisturbed, run_dir)
