"""What a weight push costs, against what it cannot avoid, both in turn in one run.

    python benchmarks/push.py [--megabytes 128 512 1024] [--turns 9] [--transfer-only]

1. Receiving with digest, against a raw Gloo broadcast of the same bytes in the same buckets: two processes, as trainer
   and worker. Goal: at most 1.25 times plus 50 ms.
2. The trainer's whole push, from its first call to the last answer, into a real server with a random model of that
   size, against that broadcast plus vLLM's own load of the same tensors from memory, in an engine in this process.
   Goal: at most 1.25 times.

Medians. Everything shares the machine; run it while nothing else does.
"""

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
# As `grpo-train` has it: threads that spin while they wait take the cores from the transfer.
os.environ["OMP_WAIT_POLICY"] = "PASSIVE"

import psutil
import torch
from tests.processes import ROLLOUT_ENVIRONMENT, free_port, rollout_command, service
from tests.tiny_model import make_tokenizer

from grpo_proto.checkpoint_layout import plain_layout
from grpo_proto.lifeline import Host, Member
from grpo_proto.messages.weights import KvCache
from grpo_proto.server.listening import listening_socket
from grpo_proto.transport import DEFAULT_BUCKET_BYTES, Digest, WeightGroup
from grpo_rollout.options import IN_ENGINE_PROCESS
from grpo_trainer.config.weights import WeightsConfig
from grpo_trainer.engine.export import Export
from grpo_trainer.fleet.awaited import wait_for_rollout_servers
from grpo_trainer.fleet.event_loop import EventLoopThread
from grpo_trainer.fleet.fleet import Fleet
from grpo_trainer.fleet.push import PushResult, WeightPusher, push
from grpo_trainer.fleet.push_plan import plan_push
from grpo_trainer.ranks.stop_signal import StopSignal

TIMEOUT_S = 120.0
WARM_UP_TURNS = 3
"""The first push opens the session, and the first few touch memory on both sides for the first time."""


def bucket_sizes(megabytes: int) -> list[int]:
    num_bytes = megabytes * 2**20
    return [min(DEFAULT_BUCKET_BYTES, num_bytes - start) for start in range(0, num_bytes, DEFAULT_BUCKET_BYTES)]


# --- 1. the transfer alone ---------------------------------------------------------------------------------------


def receive_raw(group: WeightGroup, sizes: list[int]) -> None:
    """What a plain receiver does: one reused buffer, one broadcast after the other."""
    staging = torch.zeros(max(sizes), dtype=torch.uint8)
    group.broadcast(staging[:16], timeout_s=TIMEOUT_S)
    for size in sizes:
        group.broadcast(staging[:size], timeout_s=TIMEOUT_S)


def receive_with_digest(group: WeightGroup, sizes: list[int]) -> None:
    """What the server's receiver does without the loading: the next bucket comes in while this one is digested."""
    staging = [torch.zeros(max(sizes), dtype=torch.uint8) for _ in range(2)]
    digest = Digest(max(sizes), "cpu")
    group.broadcast(staging[0][:16], timeout_s=TIMEOUT_S)
    buffers = [staging[number % 2][:size] for number, size in enumerate(sizes)]
    transfer = group.start_broadcast(buffers[0], timeout_s=TIMEOUT_S)
    for number, buffer in enumerate(buffers):
        transfer.wait()
        if number + 1 < len(buffers):
            transfer = group.start_broadcast(buffers[number + 1], timeout_s=TIMEOUT_S)
        digest.add(buffer)
    digest.hexdigest()


RECEIVERS: dict[str, Callable[[WeightGroup, list[int]], None]] = {"raw": receive_raw, "digest": receive_with_digest}


def receiver_process(port: int, secret: str, commands: Connection) -> None:
    torch.set_num_threads(1)
    member = Member("127.0.0.1", port, session=1, rank=1, secret=secret, timeout_s=TIMEOUT_S, silence_s=5.0)
    group = WeightGroup(member, rank=1, world_size=2, backend="gloo", timeout_s=TIMEOUT_S)
    while (command := commands.recv()) is not None:
        kind, sizes = command
        RECEIVERS[kind](group, sizes)
        commands.send(time.perf_counter())


class Transfers:
    """This process as the trainer, another as the worker."""

    def __init__(self) -> None:
        self.host = Host(listening_socket("127.0.0.1", 0), silence_s=5.0)
        crew = self.host.crew(1, 2)
        context = get_context("spawn")
        self.commands, other = context.Pipe()
        self.process = context.Process(target=receiver_process, args=(self.host.port, crew.secret, other), daemon=True)
        self.process.start()
        self.group = WeightGroup(crew, rank=0, world_size=2, backend="gloo", timeout_s=TIMEOUT_S)
        self.staging = torch.ones(DEFAULT_BUCKET_BYTES, dtype=torch.uint8)

    def seconds(self, kind: str, sizes: list[int]) -> float:
        """From the first byte sent to the end at the receiver."""
        self.commands.send((kind, sizes))
        # The receiver has its buffers now: page faults are not what is measured.
        self.group.broadcast(self.staging[:16], timeout_s=TIMEOUT_S)
        started = time.perf_counter()
        for size in sizes:
            self.group.broadcast(self.staging[:size], timeout_s=TIMEOUT_S)
        return float(self.commands.recv()) - started

    def close(self) -> None:
        self.commands.send(None)
        self.process.join()
        self.host.close()


# --- 2. the whole push -------------------------------------------------------------------------------------------


def random_model(megabytes: int, folder: Path) -> dict[str, torch.Tensor]:
    """An untied Qwen2 model in bf16 of about that size, saved; returns its tensors."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    tokenizer = make_tokenizer()
    hidden, intermediate, vocabulary = 1024, 4096, 8192
    per_layer = 2 * (2 * hidden * hidden + 2 * hidden * 256 + 3 * hidden * intermediate)
    num_layers = max(1, round((megabytes * 2**20 - 2 * 2 * vocabulary * hidden) / per_layer))
    config = Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=num_layers,
        num_attention_heads=16,
        num_key_value_heads=4,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
    )
    torch.set_default_dtype(torch.bfloat16)
    model = Qwen2ForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


class ReferenceLoad:
    """Mixed into the worker of the engine in this process: vLLM's own load, the tensors already in memory."""

    def seconds_to_load(self, folder: str) -> float:
        from safetensors.torch import load_file
        from vllm.config import set_current_vllm_config
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

        worker: Any = self
        tensors = [pair for file in sorted(Path(folder).glob("*.safetensors")) for pair in load_file(file).items()]
        # Read in, not only mapped.
        tensors = [(name, tensor.clone()) for name, tensor in tensors]
        model = worker.get_model()
        with set_current_vllm_config(worker.vllm_config), torch.no_grad():
            started = time.perf_counter()
            initialize_layerwise_reload(model)
            model.load_weights(tensors)
            finalize_layerwise_reload(model, worker.model_config)
            return time.perf_counter() - started


def export_of(tensors: dict[str, torch.Tensor]) -> Export:
    """What the training engine exports, for tensors that nobody trains: no DeepSpeed, the same buckets."""
    cpu = torch.device("cpu")
    pieces = plain_layout(tensors)
    return Export("full", pieces, tensors, device=cpu, gather=lambda _: nullcontext(), sharded=False, fills=True)


@contextmanager
def pushing(url: str, export: Export, kv_cache: KvCache = "recompute") -> Iterator[Callable[[int], PushResult]]:
    """The trainer's own push of `export` to the server at `url`."""
    config = WeightsConfig(kv_cache=kv_cache)
    with EventLoopThread() as loop:
        fleet = Fleet([url], min_replicas=1)
        loop.run(wait_for_rollout_servers(fleet, TIMEOUT_S))
        pusher = WeightPusher(
            fleet, loop, config, trainer_id="benchmark", stop=StopSignal(), has_heartbeat=lambda: True
        )
        yield lambda version: push(version, export, pusher, config)
        pusher.leave()
        loop.run(fleet.close())


def process_tree(process: psutil.Process) -> list[psutil.Process]:
    return [process, *process.children(recursive=True)]


@contextmanager
def suspended(processes: list[psutil.Process]) -> Iterator[None]:
    """Stop them meanwhile: what they do of themselves takes the same cores."""
    for process in processes:
        process.suspend()
    try:
        yield
    finally:
        for process in processes:
            process.resume()


def whole_push(transfers: Transfers, megabytes: int, turns: int) -> str:
    folder = Path(tempfile.mkdtemp(prefix="grpo-benchmark-"))
    os.environ |= ROLLOUT_ENVIRONMENT | {"PYTHONPATH": str(Path(__file__).parent)}
    del os.environ["OMP_NUM_THREADS"]
    try:
        tensors = random_model(megabytes, folder)
        num_bytes = sum(tensor.nbytes for tensor in tensors.values())
        port = free_port()
        command = rollout_command(folder, port, "--enforce-eager")
        with service(command, folder / "log", port=port) as server:
            server.wait_until_live()
            from vllm import LLM

            server_processes = process_tree(psutil.Process(server.process.pid))
            others = set(psutil.Process().children(recursive=True))
            engine = LLM(
                str(folder),
                enforce_eager=True,
                max_model_len=256,
                worker_extension_cls="push.ReferenceLoad",
                distributed_executor_backend=IN_ENGINE_PROCESS,  # as the server's
            )
            engine_processes = [p for p in psutil.Process().children(recursive=True) if p not in others]
            sizes = plan_push(export_of(tensors).listed(), None, "gloo").bucket_bytes
            raw, loads, pushes = [], [], []
            with pushing(server.url, export_of(tensors)) as push_version:
                for version in range(1, WARM_UP_TURNS + turns + 1):
                    with suspended(server_processes + engine_processes):
                        raw.append(transfers.seconds("raw", sizes))
                    with suspended(server_processes):
                        loads.append(engine.collective_rpc("seconds_to_load", args=(str(folder),))[0])
                    with suspended(engine_processes):
                        pushes.append(push_version(version).seconds)
    finally:
        shutil.rmtree(folder)
    raw_s, load_s, push_s = (statistics.median(values[WARM_UP_TURNS:]) for values in (raw, loads, pushes))
    ratio = push_s / (raw_s + load_s)
    return f"| {num_bytes / 1e6:,.0f} MB | {raw_s:.3f} | {load_s:.3f} | {push_s:.3f} | {ratio:.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, nargs="+", default=[128, 512, 1024])
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--transfer-only", action="store_true")
    options = parser.parse_args()
    transfers = Transfers()
    print("| receiving | raw broadcast s | with digest s | ratio | over the raw by |")
    print("|---|---:|---:|---:|---:|")
    for megabytes in options.megabytes:
        sizes = bucket_sizes(megabytes)
        times: dict[str, list[float]] = {kind: [] for kind in RECEIVERS}
        for _ in range(options.turns + 1):
            for kind, values in times.items():
                values.append(transfers.seconds(kind, sizes))
        raw_s, digest_s = (statistics.median(times[kind][1:]) for kind in ("raw", "digest"))
        line = f"| {megabytes} MiB | {raw_s:.3f} | {digest_s:.3f} | {digest_s / raw_s:.2f} | "
        print(line + f"{1000 * (digest_s - raw_s):.0f} ms |", flush=True)
    if not options.transfer_only:
        rows = [whole_push(transfers, megabytes, options.turns) for megabytes in options.megabytes]
        print("| whole push | raw broadcast s | vLLM's load s | push s | ratio |")
        print("|---|---:|---:|---:|---:|")
        print("\n".join(rows), flush=True)
    transfers.close()


if __name__ == "__main__":
    main()
