"""A rollout server, and a trainer that pushes to it and compares its logprobs with its own: both are the real ones.

    python -m benchmarks.gpu_check.served FOLDER URL SIGNAL LIMITS

is a trainer that gets the signal SIGNAL, SIGKILL or SIGSTOP, while it pushes the policy in FOLDER to the server at URL.
"""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

import torch
from tests.processes import ROLLOUT_ENVIRONMENT, Service, free_port, rollout_command, service
from tests.tiny_model import make_tokenizer

from grpo_proto import Prompt, WeightState
from grpo_proto.client.clients import WeightsClient
from grpo_trainer.algorithm.agreement import Rule
from grpo_trainer.algorithm.sequences import untrained_sequence
from grpo_trainer.config.weights import CanaryConfig, WeightsConfig
from grpo_trainer.engine.own_logprobs import own_logprobs
from grpo_trainer.fleet.awaited import wait_for_rollout_servers
from grpo_trainer.fleet.canary import Probe, compare, sample_probes
from grpo_trainer.fleet.event_loop import EventLoopThread
from grpo_trainer.fleet.fleet import Fleet
from grpo_trainer.fleet.push import PushResult, WeightPusher, push
from grpo_trainer.ranks.launch import VARIABLES
from grpo_trainer.ranks.stop_signal import StopSignal

from .check import Place
from .policies import SMALL, Shape, new_engine, save_policy
from .runner import ROOT

if TYPE_CHECKING:
    from grpo_trainer.engine.training_engine import TrainingEngine

VOCABULARY = 128
"""Hardly more than the tokenizer has."""
SERVED = replace(SMALL, vocabulary=VOCABULARY)
TINY_SERVED = Shape(hidden=128, intermediate=256, layers=16, heads=4, kv_heads=2, vocabulary=VOCABULARY)
"""More than three buckets of 1 MiB, and heads of 32, the smallest of vLLM's attention on a CPU."""
WEIGHT_DEVIATION = 0.05
"""Standard deviation of the weights: logits so far apart that other weights show."""
MEMORY_SHARE = 0.3
"""Share of the GPU's memory that must be free when vLLM starts: the trainer may be on the same GPU."""
CACHE_BYTES = 2**30
"""Size of the cache of keys and values. vLLM would measure what is free, and others on the GPU take and free memory."""
START_TIMEOUT_S, PUSH_TIMEOUT_S, BUCKET_TIMEOUT_S, STALE_TIMEOUT_S = 400.0, 120.0, 10.0, 60.0
BUCKETS_BEFORE_THE_SIGNAL = 2
QUICK = WeightsConfig(bucket_mib=1, bucket_timeout_s=BUCKET_TIMEOUT_S, push_deadline_s=PUSH_TIMEOUT_S)
DEFAULT_LIMITS = WeightsConfig()
LIMITS = {"quick": QUICK, "default": DEFAULT_LIMITS}


def save_served(folder: Path, place: Place, *, seed: int = 0, shape: Shape | None = None) -> Path:
    """Save a policy with a tokenizer, which a rollout server needs."""
    shape = shape or (TINY_SERVED if place.tiny else SERVED)
    save_policy(folder, shape, place.device, torch.bfloat16, seed=seed, deviation=WEIGHT_DEVIATION)
    make_tokenizer().save_pretrained(folder)
    return folder


def new_trainer_engine(policy: Path) -> "TrainingEngine":
    return new_engine(policy, dtype="bfloat16", zero_stage=2, rate=1e-2)


def visible_gpus() -> list[str]:
    """Return the name of each GPU for CUDA_VISIBLE_DEVICES of another process; none on a CPU."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        return [str(number) for number in range(torch.cuda.device_count())]
    return [name for name in named.split(",") if name]


@contextmanager
def rollout_server(model: Path, place: Place, *flags: str, gpus: list[str]) -> Iterator[Service]:
    """A rollout server on `gpus`, which may not be live yet. It is stopped at the end; an error shows its log."""
    port = free_port()
    memory = (f"--gpu-memory-utilization={MEMORY_SHARE}", f"--kv-cache-memory-bytes={CACHE_BYTES}")
    flags = ("--dtype=bfloat16", *memory, *flags)
    if place.tiny:
        flags = (*flags, "--enforce-eager")
    command = rollout_command(model, port, *flags)
    # In a trial, bind no worker to cores: vLLM would want a NUMA node for each of two workers.
    environment = ROLLOUT_ENVIRONMENT | {"CUDA_VISIBLE_DEVICES": ",".join(gpus), "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    with service(command, place.folder / f"rollout-{port}.log", port=port, environment=environment) as running:
        try:
            yield running
        except Exception:
            print(running.tail(100), file=sys.stderr)
            raise


def wait_until_live(server: Service) -> None:
    """Raises RuntimeError with the last line of the server's log when it ends instead, or takes too long."""
    try:
        server.wait_until_live(START_TIMEOUT_S)
    except AssertionError as error:
        raise RuntimeError(f"{server.url} is not live: {server.tail(1)}") from error


class PushingTrainer:
    """A training engine and its pushes to servers. Use as a context manager; leaving it closes the session."""

    def __init__(self, engine: "TrainingEngine", *urls: str, config: WeightsConfig = QUICK):
        self.engine, self.config = engine, config
        self.loop = EventLoopThread()
        self.fleet = Fleet(list(urls), min_replicas=1)
        self.pusher = WeightPusher(
            self.fleet, self.loop, self.config, trainer_id="gpu-check", stop=StopSignal(), has_heartbeat=lambda: True
        )

    def __enter__(self) -> Self:
        self.loop.__enter__()
        self.loop.run(wait_for_rollout_servers(self.fleet, START_TIMEOUT_S))
        return self

    def __exit__(self, *_: object) -> None:
        self.pusher.leave()
        self.loop.run(self.fleet.close())
        self.loop.__exit__()

    @property
    def workers(self) -> int:
        """Of the server."""
        return next(iter(self.fleet.infos.values())).world_size

    @property
    def num_members(self) -> int:
        """Servers that have the last push."""
        return len(self.pusher.session.members) if self.pusher.session else 0

    @property
    def backend(self) -> str | None:
        """Over which the open session pushes."""
        return self.pusher.session.group.backend if self.pusher.session else None

    def push(self, version: int) -> PushResult:
        return push(version, self.engine.export, self.pusher, self.config)

    def look(self) -> None:
        """Ask all servers how they are, as the watcher of a run does: one that was lost takes part again."""
        self.loop.run(self.fleet.look())

    def canary(self, version: int) -> list[Probe]:
        """Have the server sample with `version`."""
        prompts = [Prompt(token_ids=[5 + number, 20 + number], seed=number) for number in range(8)]
        sampling = sample_probes(
            self.fleet, prompts, CanaryConfig(), session=self.fleet.session, version=version, temperature=1.0
        )
        return self.loop.run(sampling)

    def difference(self, probes: list[Probe]) -> float:
        """The mean difference of the server's logprobs from those of the policy as it is now."""
        sequences = [untrained_sequence(probe.segment, episode=number) for number, probe in enumerate(probes)]
        own = own_logprobs(self.engine, sequences, version=0, tokens_per_micro_batch=4096, pad_token_id=0)
        return compare(probes, own, rule=Rule(float("inf")), version=0)["canary/logprob_difference_mean"]


def state_of(url: str) -> WeightState:
    async def ask() -> WeightState:
        async with WeightsClient(url) as client:
            return await client.state()

    return asyncio.run(ask())


def s_until_stale(
    url: str, policy: Path, *, by: signal.Signals = signal.SIGKILL, limits: Literal["quick", "default"] = "quick"
) -> float:
    """Start another trainer, which gets a signal while it pushes. Returns the time in s until the server is stale.

    Raises RuntimeError when the trainer ends otherwise, or the server still has another state after a minute.
    """
    command = [sys.executable, "-m", "benchmarks.gpu_check.served", str(policy), url, by.name, limits]
    # Leave out the variables of this process's own group: the other trainer makes a group of its own.
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=sys.stderr) as trainer:
        try:
            _wait_until_it_stands_still(trainer, by)
            started = time.monotonic()
            while (state := state_of(url)).state != "stale":
                if time.monotonic() > started + STALE_TIMEOUT_S:
                    raise RuntimeError(
                        f"{STALE_TIMEOUT_S:g} s after {by.name} to its trainer the server is {state.state}"
                    )
                time.sleep(0.1)
        finally:
            trainer.kill()
    print(f"after {by.name} to its trainer the server is stale: {state.reason}", file=sys.stderr)
    return time.monotonic() - started


def _wait_until_it_stands_still(trainer: "subprocess.Popen[bytes]", by: signal.Signals) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if (status := trainer.poll()) is not None:
            if status == -by:
                return
            raise RuntimeError(f"the trainer that should get {by.name} while it pushes ended with status {status}")
        fields = Path(f"/proc/{trainer.pid}/stat").read_text().rpartition(")")[2].split()
        if fields[0] == "T":  # stopped
            return
        time.sleep(0.05)
    raise RuntimeError(f"the trainer that should get {by.name} has not pushed within {START_TIMEOUT_S:g} s")


def call_in_a_push(engine: "TrainingEngine", act: Callable[[], None]) -> None:
    """Have the engine's next push call `act` once, when it has filled some buckets."""
    filled = 0

    def count() -> None:
        nonlocal filled
        filled += 1
        if filled == BUCKETS_BEFORE_THE_SIGNAL + 1:
            act()

    engine.beat = count


def _get_a_signal_while_pushing(policy: Path, url: str, by: signal.Signals, config: WeightsConfig) -> None:
    engine = new_trainer_engine(policy)
    call_in_a_push(engine, lambda: os.kill(os.getpid(), by))
    with PushingTrainer(engine, url, config=config) as trainer:
        trainer.push(1)


if __name__ == "__main__":
    _get_a_signal_while_pushing(Path(sys.argv[1]), sys.argv[2], signal.Signals[sys.argv[3]], LIMITS[sys.argv[4]])
