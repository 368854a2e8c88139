"""A GPU that is lost, and what fails inside the engine: told, and the end of the process where nothing else helps.

The programs run in processes of their own, because importing vLLM warns, and warnings are errors in tests.
"""

import subprocess
import sys

import pytest

LOST = """
from types import SimpleNamespace
import torch
from grpo_rollout.receiver import Receiver, ReceiverExtension

class Stream:
    def query(self):
        if {lost}:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return False  # work is under way

torch.cuda.current_stream = lambda device: Stream()
runner = SimpleNamespace(model=torch.nn.Linear(1, 1), reset_lora_state=lambda: None)
worker = SimpleNamespace(vllm_config=None, model_config=None, device=torch.device("cuda:0"), model_runner=runner)
worker._grpo_receiver = Receiver(worker)
print(ReceiverExtension.grpo_weights(worker, "{call}", 1))
"""
FAILS_INSIDE = """
import asyncio
from types import SimpleNamespace
from grpo_rollout.engine import Engine, WorkerError

async def fail(error):
    raise error

async def main():
    engine = Engine(SimpleNamespace())
    for error in (Exception("Call to pause_scheduler method failed: CUDA error"), ValueError("not the engine's")):
        try:
            await engine.call(fail(error))
        except Exception as told:
            print(type(told).__name__, told)

asyncio.run(main())
"""


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("call", ["receive", "recover"])
def test_a_worker_whose_gpu_is_lost_ends(call: str):
    """vLLM would notice at its next step, and a server without weights makes none."""
    lost = run(LOST.format(lost=True, call=call))
    assert (lost.returncode, lost.stdout) == (1, "")
    assert "CUDA fails for good in this process" in lost.stderr


def test_a_push_that_fails_on_a_sound_gpu_ends_nothing():
    failed = run(LOST.format(lost=False, call="receive"))
    assert failed.returncode == 0, failed.stderr
    assert "'error'" in failed.stdout
    assert run(LOST.format(lost=False, call="recover")).stdout == "{'ok': False}\n"


def test_what_fails_inside_the_engine_is_told_as_such():
    """vLLM tells it by a bare Exception; it would be an error of the server, and the push would stay under way."""
    lines = run(FAILS_INSIDE).stdout.splitlines()
    assert lines == ["WorkerError Call to pause_scheduler method failed: CUDA error", "ValueError not the engine's"]
