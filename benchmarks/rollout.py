"""`POST /v1/rollouts` against vLLM's `AsyncLLM` called in process, both with logprobs: tokens/s in turn, and the ratio.

    python benchmarks/rollout.py [--turns 7] [--prompts 32] [--samples 8] [--max-tokens 64]

The in-process side calls `generate` once per prompt with n samples and final outputs only, the leanest way there is,
with vLLM's default of detokenizing. The goal is 0.9 of its tokens/s. The same prompts in requests of one show what
`rollout.prompts_per_request` 1 costs. Meanwhile, and during pushes, a third process asks
the server's /livez fifty times a second; the 99th percentile should stay below 100 ms.
"""

import argparse
import asyncio
import multiprocessing
import os
import shutil
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack, closing
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from tests.processes import ROLLOUT_ENVIRONMENT, free_port, rollout_command, service
from tests.rollout.pushing import Trainer
from tests.tiny_model import make_model, save_tiny_model

from grpo_proto.client.clients import RolloutClient
from grpo_proto.messages.rollout import Prompt, RolloutRequest, Sampling

PROBE_PERIOD_S = 0.02


def prompts_token_ids(num_prompts: int) -> list[list[int]]:
    return [[5 + number % 90, 6 + number // 90, *range(5, 25)] for number in range(num_prompts)]


def engine_process(model: Path, commands: Connection) -> None:
    """An `AsyncLLM` that samples when told and answers with (tokens, seconds)."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.inputs.engine import tokens_input
    from vllm.sampling_params import RequestOutputKind, SamplingParams
    from vllm.v1.engine.async_llm import AsyncLLM

    from grpo_rollout.options import IN_ENGINE_PROCESS

    async def run() -> None:
        engine = AsyncLLM.from_engine_args(
            AsyncEngineArgs(
                model=str(model),
                max_model_len=256,
                logprobs_mode="processed_logprobs",
                # As our server: vLLM's engine dies of seeded prompts that it cuts on a CPU.
                enable_chunked_prefill=torch.cuda.is_available(),
                distributed_executor_backend=None if torch.cuda.is_available() else IN_ENGINE_PROCESS,
            )
        )

        async def sample_group(number: int, token_ids: list[int], n: int, max_tokens: int) -> int:
            params = SamplingParams(
                n=n, max_tokens=max_tokens, logprobs=0, seed=1000 * number, output_kind=RequestOutputKind.FINAL_ONLY
            )
            num_tokens = 0
            async for output in engine.generate(tokens_input(token_ids), params, f"{time.time_ns()}-{number}"):
                num_tokens = sum(len(completion.token_ids) for completion in output.outputs)
            return num_tokens

        while (command := await asyncio.to_thread(commands.recv)) is not None:
            num_prompts, n, max_tokens = command
            started = time.perf_counter()
            tokens = await asyncio.gather(
                *(
                    sample_group(number, token_ids, n, max_tokens)
                    for number, token_ids in enumerate(prompts_token_ids(num_prompts))
                )
            )
            commands.send((sum(tokens), time.perf_counter() - started))
        engine.shutdown()

    asyncio.run(run())


def probe_process(url: str, commands: Connection) -> None:
    """Asks /livez at a steady pace between a start and a stop; answers with the latencies in ms."""
    import http.client

    host = url.removeprefix("http://")
    while commands.recv() is not None:
        connection = http.client.HTTPConnection(host, timeout=30.0)
        latencies_ms = []
        while not commands.poll(PROBE_PERIOD_S):
            asked = time.perf_counter()
            connection.request("GET", "/livez")
            answer = connection.getresponse()
            answer.read()
            latencies_ms.append(1000 * (time.perf_counter() - asked))
            assert answer.status == 200
        commands.recv()
        commands.send(latencies_ms)


async def over_http(url: str, num_prompts: int, n: int, max_tokens: int, *, prompts_per_request: int) -> float:
    """Tokens per second, from the requests, sent at once, to the last parsed answer."""
    prompts = [
        Prompt(token_ids=token_ids, seed=number) for number, token_ids in enumerate(prompts_token_ids(num_prompts))
    ]
    requests = [
        RolloutRequest(
            request_id=f"{time.time_ns()}-{start}",
            n=n,
            prompts=prompts[start : start + prompts_per_request],
            sampling=Sampling(max_tokens=max_tokens),
        )
        for start in range(0, num_prompts, prompts_per_request)
    ]
    async with RolloutClient(url) as client:
        started = time.perf_counter()
        answers = await asyncio.gather(*map(client.rollouts, requests))
        seconds = time.perf_counter() - started
    groups = [group for answer in answers for group in answer.groups]
    return sum(len(completion.token_ids) for group in groups for completion in group.completions) / seconds


async def push_many(url: str, count: int) -> float:
    """Median seconds of a push of the small model."""
    seconds = []
    async with Trainer(url, trainer_id="benchmark") as trainer:
        await trainer.join(take_over=True)
        for version in range(1, count + 1):
            model = make_model(tied=True, dtype=torch.bfloat16, seed=version, num_layers=4)
            started = time.perf_counter()
            await trainer.push(model, version, bucket_bytes=2**26)
            seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


class Child:
    """A process that answers commands."""

    def __init__(self, target: Any, *args: Any):
        context = multiprocessing.get_context("spawn")
        self.commands, other = context.Pipe()
        self.process = context.Process(target=target, args=(*args, other))
        self.process.start()

    def ask(self, command: Any) -> Any:
        self.commands.send(command)
        return self.commands.recv()

    def close(self) -> None:
        if self.process.is_alive():
            self.commands.send(None)
        self.process.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=64)
    options = parser.parse_args()
    work = (options.prompts, options.samples, options.max_tokens)
    os.environ |= {name: value for name, value in ROLLOUT_ENVIRONMENT.items() if name != "OMP_NUM_THREADS"}
    folder = Path(tempfile.mkdtemp(prefix="grpo-benchmark-"))
    try:
        model = save_tiny_model(folder / "model", tied=True, dtype=torch.bfloat16, num_layers=4)
        port = free_port()
        with service(rollout_command(model, port), folder / "log", port=port) as server, ExitStack() as children:
            server.wait_until_live()
            engine = children.enter_context(closing(Child(engine_process, model)))
            probe = children.enter_context(closing(Child(probe_process, server.url)))
            for _ in range(2):
                engine.ask(work)
                asyncio.run(over_http(server.url, *work, prompts_per_request=options.prompts))
            inline, http, single, sampling_ms = [], [], [], []
            for _ in range(options.turns):
                tokens, seconds = engine.ask(work)
                inline.append(tokens / seconds)
                probe.commands.send("start")
                http.append(asyncio.run(over_http(server.url, *work, prompts_per_request=options.prompts)))
                sampling_ms += probe.ask("stop")
                single.append(asyncio.run(over_http(server.url, *work, prompts_per_request=1)))
            probe.commands.send("start")
            push_s = asyncio.run(push_many(server.url, 30))
            pushing_ms = probe.ask("stop")
    finally:
        shutil.rmtree(folder)
    inline_rate, http_rate = statistics.median(inline), statistics.median(http)
    ratio = statistics.median(ours / theirs for ours, theirs in zip(http, inline, strict=True))
    print("| rollouts | AsyncLLM tokens/s | POST /v1/rollouts tokens/s | ratio (median of pairs) |")
    print("|---|---:|---:|---:|")
    print(f"| {work[0]} × {work[1]} × {work[2]} | {inline_rate:,.0f} | {http_rate:,.0f} | {ratio:.2f} |")
    ratio = statistics.median(one / all_ for one, all_ in zip(single, http, strict=True))
    print("| requests | all prompts in one, tokens/s | a request for each prompt, tokens/s | ratio (median of pairs) |")
    print("|---|---:|---:|---:|")
    print(f"| 1 or {work[0]} | {http_rate:,.0f} | {statistics.median(single):,.0f} | {ratio:.2f} |")
    print("| /livez | probes | p99 | slowest |")
    print("|---|---:|---:|---:|")
    for name, latencies_ms in (("while sampling", sampling_ms), (f"during 30 pushes of {push_s:.3f} s", pushing_ms)):
        p99 = percentile(latencies_ms, 0.99)
        print(f"| {name} | {len(latencies_ms)} | {p99:.0f} ms | {max(latencies_ms):.0f} ms |", flush=True)


if __name__ == "__main__":
    main()
