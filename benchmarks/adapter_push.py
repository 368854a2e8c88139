"""What an adapter push costs, against a full push of the same model; and a full push of experts, against a dense one.

    python benchmarks/adapter_push.py [--megabytes 551] [--turns 9] [--seconds 20] [--experts-only]

1. Pushes in turn, to two servers of the same random bf16 model with idle engines: the whole model to one, an adapter of
   rank 32 on all linear layers to the other. Goal: at most 0.2 of the seconds. How long the engine stands still is the
   longest gap between two tokens of a sequence while an adapter is pushed, over the longest gap without. Goal: 20 ms.
2. Tokens per second while an adapter is pushed every second, against one fixed adapter on the same server, in turn.
   Goal: at least 0.95, and no request ended.
3. A full push of a model with experts, per byte, against that of the dense model, both with the probe of each layer.
   Goal: at most 1.3.

Medians. Everything shares the machine; run it while nothing else does.
"""

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ["OMP_WAIT_POLICY"] = "PASSIVE"

import torch
from benchmarks.push import pushing, random_model
from tests.processes import ROLLOUT_ENVIRONMENT, free_port, rollout_command, service
from tests.tiny_model import make_tokenizer
from transformers import AutoModelForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from grpo_proto import Prompt, RolloutRequest, Sampling
from grpo_proto.checkpoint_files import checkpoint_digest, read_headers
from grpo_proto.checkpoint_layout import checkpoint_layout, plain_layout
from grpo_proto.client.clients import RolloutClient
from grpo_trainer.config.lora import LoraConfig
from grpo_trainer.engine.export import Export
from grpo_trainer.lora.adapter import Adapter

TIMEOUT_S = 120.0
WARM_UP_TURNS = 3
RANK = 32
CPU = torch.device("cpu")


def full_export(model: Any, folder: Path) -> Export:
    shapes = {name: header.shape for name, header in read_headers(folder).items()}
    pieces, sources = checkpoint_layout(model, shapes), model.state_dict(keep_vars=True)
    return Export("full", pieces, sources, device=CPU, gather=lambda _: nullcontext(), sharded=False, fills=True)


def adapter_export(model: Any, folder: Path) -> Export:
    adapter = Adapter(model, LoraConfig(r=RANK, alpha=RANK), base_name=str(folder), seed=0)
    tensors = adapter.tensors()
    with torch.no_grad():
        for tensor in tensors.values():
            tensor.normal_(0.0, 0.01)
    return Export(
        "lora",
        plain_layout(tensors),
        tensors,
        device=CPU,
        gather=lambda _: nullcontext(),
        sharded=False,
        fills=True,
        peft_config=adapter.saved_config(),
        base_digest=checkpoint_digest(folder),
    )


def model_of_experts(megabytes: int, folder: Path) -> None:
    hidden, intermediate, num_experts, vocabulary = 1024, 512, 16, 8192
    per_layer = 2 * (2 * hidden * hidden + 2 * hidden * 256 + 3 * hidden * intermediate * num_experts)
    config = Qwen3MoeConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=intermediate,
        moe_intermediate_size=intermediate,
        num_hidden_layers=max(1, round((megabytes * 2**20 - 4 * vocabulary * hidden) / per_layer)),
        num_attention_heads=16,
        num_key_value_heads=4,
        head_dim=64,
        num_experts=num_experts,
        num_experts_per_tok=2,
        max_position_embeddings=512,
        bos_token_id=None,
        eos_token_id=make_tokenizer().eos_token_id,
    )
    torch.set_default_dtype(torch.bfloat16)
    model = Qwen3MoeForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    model.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)


def request(name: str, *, max_tokens: int) -> RolloutRequest:
    return RolloutRequest(
        request_id=name,
        prompts=[Prompt(token_ids=[5, 6, 7], seed=seed) for seed in range(4)],
        n=4,
        sampling=Sampling(temperature=1.0, max_tokens=max_tokens),
        deadline_s=TIMEOUT_S,
    )


async def num_tokens(url: str, name: str, max_tokens: int) -> tuple[int, float]:
    """Sample; return the tokens and the seconds. Raises RuntimeError when a sequence was ended by something else."""
    started = time.perf_counter()
    async with RolloutClient(url) as client:
        answer = await client.rollouts(request(name, max_tokens=max_tokens))
    completions = [completion for group in answer.groups for completion in group.completions]
    if ended := {completion.finish_reason for completion in completions} - {"stop", "length"}:
        raise RuntimeError(f"sequences ended with {ended}")
    return sum(len(completion.token_ids) for completion in completions), time.perf_counter() - started


def longest_gap_s(url: str, meanwhile: Callable[[], object]) -> float:
    """The longest time between two tokens of a stream while `meanwhile` runs and a second after."""
    import httpx

    body = {"model": "policy", "prompt": [5, 6, 7], "max_tokens": 200, "stream": True, "ignore_eos": True}
    times: list[float] = []
    done = threading.Event()

    def read() -> None:
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=TIMEOUT_S, trust_env=False) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    times.append(time.perf_counter())
                if done.is_set():
                    return

    reader = threading.Thread(target=read)
    reader.start()
    while len(times) < 5:
        time.sleep(0.01)
    started = time.perf_counter()
    meanwhile()
    time.sleep(0.5)
    done.set()
    reader.join()
    seen = [moment for moment in times if moment >= started - 0.2]
    return max(after - before for before, after in pairwise(seen))


def adapters(folder: Path, turns: int, seconds: float) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    full = full_export(model, folder)
    small = adapter_export(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16), folder)
    with ExitStack() as stack:
        servers = []
        for flags in ((), ("--enable-lora", "--max-lora-rank", "32")):
            port = free_port()
            log = folder.parent / f"log-{len(flags)}"
            command = rollout_command(folder, port, "--enforce-eager", *flags)
            servers.append(stack.enter_context(service(command, log, port=port, environment=ROLLOUT_ENVIRONMENT)))
        for server in servers:
            server.wait_until_live()
        push_full = stack.enter_context(pushing(servers[0].url, full))
        push_small = stack.enter_context(pushing(servers[1].url, small))
        whole_s, small_s = [], []
        version = 0
        for version in range(1, WARM_UP_TURNS + turns + 1):
            whole_s.append(push_full(version).seconds)
            small_s.append(push_small(version).seconds)
        result = push_small(version + 1)
        version += 1
        full_median, small_median = (statistics.median(values[WARM_UP_TURNS:]) for values in (whole_s, small_s))
        print(
            f"adapter push {small_median:.3f} s of {result.num_bytes / 1e6:.1f} MB, full push {full_median:.3f} s: "
            f"{small_median / full_median:.2f}",
            flush=True,
        )
        url = servers[1].url
        quiet, busy = [], []
        for _ in range(turns):
            quiet.append(longest_gap_s(url, lambda: time.sleep(small_median)))
            version += 1
            busy.append(longest_gap_s(url, lambda v=version: push_small(v)))
        still_ms = 1000 * (statistics.median(busy) - statistics.median(quiet))
        gap_ms = 1000 * statistics.median(quiet)
        print(f"longest gap between tokens: {gap_ms:.0f} ms, and {still_ms:.0f} ms more in a push", flush=True)

        rates: dict[str, list[float]] = {"fixed": [], "pushed": []}
        for turn in range(4):
            for kind, values in rates.items():
                stop = threading.Event()

                def pushes(stop: threading.Event = stop) -> None:
                    nonlocal version
                    while not stop.wait(1.0):
                        version += 1
                        push_small(version)

                thread = threading.Thread(target=pushes)
                if kind == "pushed":
                    thread.start()
                tokens, spent_s, number = 0, 0.0, 0
                while spent_s < seconds / 2:
                    got, took_s = asyncio.run(num_tokens(url, f"{kind}-{turn}-{number}", 200))
                    tokens, spent_s, number = tokens + got, spent_s + took_s, number + 1
                stop.set()
                if kind == "pushed":
                    thread.join()
                values.append(tokens / spent_s)
        fixed, pushed = (statistics.median(rates[kind][1:]) for kind in ("fixed", "pushed"))
        print(f"tokens/s: {fixed:,.0f} with one adapter, {pushed:,.0f} while one is pushed every second: "
              f"{pushed / fixed:.2f}", flush=True)  # fmt: skip


def experts(dense: Path, sparse: Path, turns: int) -> None:
    per_byte = {}
    with ExitStack() as stack:
        pushes = {}
        for name, folder in (("dense", dense), ("experts", sparse)):
            model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
            port = free_port()
            server = stack.enter_context(
                service(rollout_command(folder, port, "--enforce-eager"), folder.parent / f"log-{name}", port=port,
                        environment=ROLLOUT_ENVIRONMENT)
            )  # fmt: skip
            server.wait_until_live()
            pushes[name] = stack.enter_context(pushing(server.url, full_export(model, folder)))
        times: dict[str, list[float]] = {name: [] for name in pushes}
        num_bytes = {}
        for version in range(1, WARM_UP_TURNS + turns + 1):
            for name, push_version in pushes.items():
                result = push_version(version)
                times[name].append(result.seconds)
                num_bytes[name] = result.num_bytes
        for name, values in times.items():
            median = statistics.median(values[WARM_UP_TURNS:])
            per_byte[name] = median / num_bytes[name]
            print(f"full push, {name}: {num_bytes[name] / 1e6:,.0f} MB in {median:.3f} s", flush=True)
    print(f"experts over dense, per byte: {per_byte['experts'] / per_byte['dense']:.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=526)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--experts-only", action="store_true", help="part 3 alone")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="grpo-benchmark-") as place:
        dense, sparse = Path(place) / "dense", Path(place) / "experts"
        random_model(options.megabytes, dense)
        model_of_experts(options.megabytes, sparse)
        if not options.experts_only:
            adapters(dense, options.turns, options.seconds)
        experts(dense, sparse, options.turns)


if __name__ == "__main__":
    main()
