"""A GPU that is lost, and what fails inside the engine: told, and the end of the process where nothing else helps.

The program runs in a process of its own, because importing vLLM warns, and warnings are errors in tests.
"""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from tests.warm_python import warm_vllm

pytestmark = [pytest.mark.vllm, pytest.mark.xdist_group("engines")]

PROGRAM = """
import asyncio, os, sys
from types import SimpleNamespace
import torch
from grpo_rollout.engine import Engine
from grpo_rollout.receiver import ReceiverExtension

class Stream:
    lost = False

    def query(self):
        if self.lost:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return False  # work is under way

torch.cuda.current_stream = lambda device: Stream()
runner = SimpleNamespace(model=torch.nn.Linear(1, 1), reset_lora_state=lambda: None)
worker = SimpleNamespace(
    vllm_config=None, model_config=None, device=torch.device("cuda:0"), model_runner=runner,
    get_model=lambda: runner.model,
)

async def fail(error):
    raise error

async def inside():
    engine = Engine(SimpleNamespace(shutdown=None))
    for error in (Exception("Call to pause_scheduler method failed: CUDA error"), ValueError("not the engine's")):
        try:
            await engine.call(fail(error))
        except Exception as told:
            print(type(told).__name__, told)

def scenario(lost, call):
    if call == "inside":
        return asyncio.run(inside())
    Stream.lost = lost
    print(ReceiverExtension.grpo_weights(worker, call, 1))

for lost, call in ((True, "receive"), (True, "recover"), (False, "receive"), (False, "recover"), (False, "inside")):
    if os.fork() == 0:
        for descriptor, name in ((1, "output"), (2, "errors")):
            os.dup2(os.open(f"{sys.argv[1]}/{call}-{lost}.{name}", os.O_CREAT | os.O_WRONLY), descriptor)
        scenario(lost, call)
        sys.stdout.flush()
        os._exit(0)
    print(call, lost, os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
"""


@dataclass(frozen=True)
class Ended:
    status: int
    output: str
    errors: str


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Ended]:
    """How a call to a worker ended, in a fork of a process that has imported vLLM."""
    folder = tmp_path_factory.mktemp("lost-gpu")
    program = folder / "program.py"
    program.write_text(PROGRAM)
    done = warm_vllm.run(program, folder, folder=folder, timeout_s=120.0)
    assert done.returncode == 0, done.stderr
    statuses = dict(line.rsplit(" ", 1) for line in done.stdout.splitlines())

    def ended(call: str, *, lost: bool = False) -> Ended:
        output, errors = ((folder / f"{call}-{lost}.{name}").read_text() for name in ("output", "errors"))
        return Ended(int(statuses[f"{call} {lost}"]), output, errors)

    return ended


@pytest.mark.parametrize("call", ["receive", "recover"])
def test_a_worker_whose_gpu_is_lost_ends(ended: Callable[..., Ended], call: str):
    """vLLM would notice at its next step, and a server without weights makes none."""
    lost = ended(call, lost=True)
    assert (lost.status, lost.output) == (1, "")
    assert "CUDA fails for good in this process" in lost.errors


def test_a_push_that_fails_on_a_sound_gpu_ends_nothing(ended: Callable[..., Ended]):
    failed = ended("receive")
    assert failed.status == 0, failed.errors
    assert "'error'" in failed.output
    assert ended("recover").output == "{'ok': False}\n"


def test_what_fails_inside_the_engine_is_told_as_such(ended: Callable[..., Ended]):
    """vLLM tells it by a bare Exception; it would be an error of the server, and the push would stay under way."""
    lines = ended("inside").output.splitlines()
    assert lines == ["WorkerError Call to pause_scheduler method failed: CUDA error", "ValueError not the engine's"]
