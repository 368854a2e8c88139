"""Math rewards over HTTP against the ways people compute them today, on the same completions, in one run.

    python benchmarks/reward_peers.py [--samples N] [--workers N]

- `math_verify in a loop`: parse and verify, one process, no time limit: what a script does.
- `TRL's accuracy_reward`: the function its trainer calls, in the trainer's process, one core.
- `a process for each score`: the simple way to a time limit that can be enforced.
- `grpo-reward over HTTP`: this server, batches of 64.

The corpus has eight answers in `\\boxed{}` for each gold, half of them right in another form. `agreement` is the share
of samples with the score of math_verify in a loop. With `1 % hang`, every hundredth answer is one on which math_verify
takes longer than anyone waits; the others then have a time limit of 2 s for a score, where they have one at all.
"""

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from multiprocessing import get_context
from typing import Any

import httpx
from math_verify import LatexExtractionConfig, parse, verify
from trl.rewards import accuracy_reward

HANGS = [
    "\\boxed{9^{9^{9^9}}}",
    "\\boxed{10^{10^8}}",
    f"\\boxed{{{'(' * 60}5{')' * 60}}}",
    f"\\boxed{{{'7' * 50_000}}}",
]
THINKING = "Let me try another way: 3 + 4 is 7, which is not enough, so I multiply instead and look again. "
LIMIT_S = 2.0

Sample = dict[str, Any]


def corpus(rng: random.Random, size: int) -> list[Sample]:
    samples: list[Sample] = []
    while len(samples) < size:
        a, b = rng.randint(2, 999), rng.randint(2, 999)
        kind = rng.choice(["fraction", "polynomial", "number", "root", "set"])
        for number in range(8):
            right = a + (0 if rng.random() < 0.5 else 1 + number)
            answer, gold = {
                "fraction": (f"\\frac{{{right * (number + 2)}}}{{{b * (number + 2)}}}", f"\\frac{{{a}}}{{{b}}}"),
                "polynomial": (f"{right}x + {b} + {number} - {number}", f"{b} + {a}x"),
                "number": (f"{right}.{'0' * (number + 1)}", f"{a}"),
                "root": (f"{number + 1}\\sqrt{{{right}}}", f"\\sqrt{{{a * (number + 1) ** 2}}}"),
                "set": (f"\\{{{b}, {right}, {b + 1}\\}}", f"\\{{{a}, {b}, {b + 1}\\}}"),
            }[kind]
            completion = f"{THINKING * rng.randint(5, 20)} So the answer is \\boxed{{{answer}}}."
            samples.append({"completion": completion, "columns": {"solution": f"${gold}$"}})
    return samples[:size]


def plain_score(sample: Sample) -> float:
    """What everybody writes; the order of arguments is verify(gold, answer)."""
    gold = parse(sample["columns"]["solution"], extraction_mode="first_match", parsing_timeout=None)
    boxed = [LatexExtractionConfig(boxed_match_priority=0, try_extract_without_anchor=False)]
    answer = parse(sample["completion"], boxed, extraction_mode="first_match", parsing_timeout=None)
    return float(verify(gold, answer, timeout_seconds=None))


def in_a_loop(samples: Sequence[Sample]) -> list[float | None]:
    return [plain_score(sample) for sample in samples]


def with_trl(samples: Sequence[Sample]) -> list[float | None]:
    completions = [[{"role": "assistant", "content": sample["completion"]}] for sample in samples]
    return accuracy_reward(completions, [sample["columns"]["solution"] for sample in samples])


def a_process_each(samples: Sequence[Sample]) -> list[float | None]:
    """As many at once as there are cores; killed after LIMIT_S."""
    context = get_context("fork")
    waiting = list(enumerate(samples))[::-1]
    running: list[tuple[int, Any, Any, float]] = []
    scores: list[float | None] = [None] * len(samples)
    while waiting or running:
        while waiting and len(running) < len(os.sched_getaffinity(0)):
            position, sample = waiting.pop()
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=lambda pipe=theirs, one=sample: pipe.send(plain_score(one)))
            process.start()
            theirs.close()
            running.append((position, process, ours, time.monotonic()))
        for entry in list(running):
            position, process, pipe, since = entry
            if pipe.poll(0.001):
                scores[position] = pipe.recv()
            elif process.is_alive() and time.monotonic() - since < LIMIT_S:
                continue
            process.kill()
            process.join()
            pipe.close()
            running.remove(entry)
    return scores


async def over_http(url: str, samples: Sequence[Sample]) -> list[float | None]:
    scores: list[float | None] = [None] * len(samples)
    starts = list(range(0, len(samples), 64))[::-1]
    async with httpx.AsyncClient(base_url=url, timeout=120.0, trust_env=False) as client:

        async def sender() -> None:
            while starts:
                start = starts.pop()
                request = {
                    "rewards": [{"name": "accuracy"}],
                    "samples": samples[start : start + 64],
                    "timeout_s": LIMIT_S,
                }
                answer = (await client.post("/v1/score", json=request)).json()
                for position, result in enumerate(answer["results"], start):
                    scores[position] = result["rewards"]["accuracy"]["score"]

        await asyncio.gather(*(sender() for _ in range(4)))
    return scores


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=1600)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    command = [sys.executable, "-m", "grpo_reward", "serve", "--port", "0", "--workers", str(options.workers)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert server.stdout is not None
    url = server.stdout.readline().split()[2]
    try:
        in_a_loop(corpus(random.Random(0), 200))  # SymPy fills its caches
        with_trl(corpus(random.Random(0), 200))
        asyncio.run(over_http(url, corpus(random.Random(0), 400)))
        samples = corpus(random.Random(1), options.samples)
        expected = in_a_loop(samples)
        poisoned = [
            {**sample, "completion": HANGS[position // 100 % len(HANGS)]} if position % 100 == 50 else sample
            for position, sample in enumerate(samples)
        ]
        print(f"{len(samples)} samples, {options.workers} workers")
        print("| how | scores/s | x the loop | agreement | without a score |")
        print("|---|---:|---:|---:|---:|")
        base = 0.0
        for name, run, inputs in (
            ("math_verify in a loop", in_a_loop, samples),
            ("TRL's accuracy_reward", with_trl, samples),
            ("a process for each score", a_process_each, samples),
            ("grpo-reward over HTTP", lambda inputs: asyncio.run(over_http(url, inputs)), samples),
            ("a process for each score, 1 % hang", a_process_each, poisoned),
            ("grpo-reward over HTTP, 1 % hang", lambda inputs: asyncio.run(over_http(url, inputs)), poisoned),
        ):
            # Other texts of the same answers, so that no memo of one helps the next.
            fresh = [{**sample, "completion": f"{name}. {sample['completion']}"} for sample in inputs]
            started = time.perf_counter()
            scores = run(fresh)
            rate = len(samples) / (time.perf_counter() - started)
            base = base or rate
            healthy = [p for p in range(len(samples)) if inputs[p] is samples[p]]
            agreement = sum(scores[p] == expected[p] for p in healthy) / len(healthy)
            lost = sum(score is None for score in scores)
            print(f"| {name} | {rate:,.0f} | {rate / base:.2f} | {agreement:.2%} | {lost} |", flush=True)
            wrong = next((p for p in healthy if scores[p] != expected[p]), None)
            if wrong is not None:
                print(json.dumps({"sample": samples[wrong], "expected": expected[wrong], "got": scores[wrong]})[-400:])
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
