"""The three real services, on a model that is made here."""

import itertools
import json
import subprocess
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
import yaml

from tests.otlp_receiver import Receiver, otlp_receiver
from tests.processes import (
    BIN,
    ROLLOUT_ENVIRONMENT,
    Service,
    free_port,
    reward_command,
    rollout_command,
    service,
)
from tests.tiny_model import save_tiny_model
from tests.warm_python import Forked, warm_python, warm_vllm

ROLLOUT = BIN / "grpo-rollout"
PLUGIN = Path(__file__).with_name("letters_reward.py")
TRAINER_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "GRPO_LOG_LEVEL": "INFO", "WANDB_MODE": "offline"}
TRACING = {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf", "OTEL_BSP_SCHEDULE_DELAY": "200"}
"""vLLM speaks gRPC unless told otherwise; spans come after 0.2 s instead of 5."""
_numbers = itertools.count()
_failed = pytest.StashKey[bool]()
_trainers_before = pytest.StashKey[int]()


@dataclass(frozen=True)
class Stack:
    """Running servers, and the run file that fits them."""

    folder: Path
    model: Path
    rollout: Service
    reward: Service
    run_file: Path
    receiver: Receiver
    """Of what both servers trace; the trainer does when a test has it do so."""
    trainers: list[Forked] = field(default_factory=list)

    def train(self, run_dir: Path, *flags: object, timeout_s: float = 200.0) -> "subprocess.CompletedProcess[str]":
        """A run to its end, and all that it printed."""
        log = self.folder / f"run-{next(_numbers)}.log"
        trainer = self.start_trainer(run_dir, log, *flags)
        try:
            trainer.wait(timeout_s)
        finally:
            trainer.kill()
        return subprocess.CompletedProcess(["grpo-train"], trainer.wait(10.0), log.read_text())

    def start_trainer(
        self, run_dir: Path, log: Path, *flags: object, environment: dict[str, str] | None = None
    ) -> Forked:
        words = ("-m", "grpo_trainer", self.run_file, "--run_dir", run_dir, *flags)
        self.trainers.append(warm_python(*words, output=log, environment=TRAINER_ENVIRONMENT | (environment or {})))
        return self.trainers[-1]

    def rollout_server(
        self,
        log: Path,
        port: int,
        *,
        model: Path | None = None,
        program: Path = ROLLOUT,
        environment: dict[str, str] | None = None,
    ) -> AbstractContextManager[Service]:
        """Fork a further rollout server, on the stack's model unless told otherwise.

        It starts in a third of the time of the real command. `program` stands in for `grpo-rollout`.
        """
        _, *words = rollout_command(model or self.model, port, "--dtype", "float32", "--enforce-eager")
        variables = ROLLOUT_ENVIRONMENT | (environment or {})
        return service([program, *words], log, port=port, environment=variables, python=warm_vllm)

    def end_trainers(self, first: int) -> None:
        """Kill the trainers from number `first` on; when none is alive, close the weight session that one left open."""
        for trainer in self.trainers[first:]:
            trainer.kill()
            trainer.wait(10.0)
        if any(trainer.poll() is None for trainer in self.trainers):
            return
        with suppress(httpx.HTTPError), httpx.Client(base_url=self.rollout.url, trust_env=False) as server:
            state = server.get("/v1/weights").raise_for_status().json()
            if state["session"] is not None:
                server.request("DELETE", "/v1/weights/session", json={"session": state["session"]})


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test may leave a trainer and its lease, and the server would refuse those of the next."""
    report = yield
    stack = item.funcargs.get("stack") if isinstance(item, pytest.Function) else None
    if stack is None:
        return report
    item.stash[_failed] = report.failed or item.stash.get(_failed, False)
    if call.when == "setup":  # what fixtures of a module have started goes on
        item.stash[_trainers_before] = len(stack.trainers)
    if call.when == "teardown" and item.stash[_failed]:
        stack.end_trainers(item.stash[_trainers_before])
    return report


@pytest.fixture(scope="package")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running_stack(tmp_path_factory.mktemp("stack")) as stack:
        yield stack


@contextmanager
def running_stack(folder: Path) -> Iterator[Stack]:
    """A rollout server, and what a run needs around it."""
    model, port = save_tiny_model(folder / "model"), free_port()
    with otlp_receiver() as receiver:
        traced = ("--otlp-traces-endpoint", f"{receiver.url}/v1/traces")
        command = rollout_command(model, port, "--dtype", "float32", "--enforce-eager", *traced)
        with (
            service(command, folder / "rollout.log", port=port, environment=ROLLOUT_ENVIRONMENT | TRACING) as rollout,
            stack_around(rollout, model, folder, receiver) as stack,
        ):
            rollout.wait_until_live()
            yield stack


@contextmanager
def stack_around(rollout: Service, model: Path, folder: Path, receiver: Receiver) -> Iterator[Stack]:
    """A reward server and a run file for a rollout server that serves `model`."""
    rows = [{"prompt": f"write {word}", "target": number} for number, word in enumerate(["ab", "cde", "f", "ghij"] * 6)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    reward_port = free_port()
    run_file = folder / "run.yaml"
    run_file.write_text(
        yaml.safe_dump(
            {
                "run_dir": str(folder / "run"),
                "max_steps": 3,
                "model": {"name_or_path": str(model), "dtype": "float32"},
                "data": {"dataset": str(folder / "rows.jsonl"), "eval_dataset": str(folder / "rows.jsonl")},
                "rollout": {
                    "urls": [rollout.url],
                    "num_generations": 4,
                    "generation_batch_size": 32,
                    "max_completion_length": 12,
                    "prompts_per_request": 4,
                    "startup_timeout_s": 60,
                    "retry_for_s": 120,
                },
                "reward": {"url": f"http://127.0.0.1:{reward_port}", "reward_funcs": ["letters"]},
                "optimizer": {"learning_rate": 1e-3},
                "deepspeed": {"zero_stage": 0, "tokens_per_micro_batch": 512},
                "weights": {"bucket_timeout_s": 20, "push_deadline_s": 120},
                "canary": {"steps": 1},
                "eval": {"eval_steps": 2},
                "guards": {"clipped": "warn"},  # a model of random weights seldom ends by itself
                "checkpoint": {"save_steps": 1, "save_total_limit": 10},
                "server": {"port": 0},
            }
        )
    )
    scoring = reward_command(reward_port, "--plugin", PLUGIN, "--otlp-endpoint", receiver.url)
    with service(scoring, folder / "reward.log", port=reward_port, environment=TRACING) as reward:
        reward.wait_until_live(60)
        yield Stack(folder, model, rollout, reward, run_file, receiver)


@pytest.fixture(scope="package")
def undisturbed(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("runs") / "undisturbed"
    result = stack.train(run_dir, "--max_steps", 4)
    assert result.returncode == 0, result.stdout
    return run_dir


def read_jsonl(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
