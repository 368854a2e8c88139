"""The reward server against its own functions: (scores/s over HTTP) / (workers × inline rate).

The inline rate is what as many plain processes as there are workers reach together, calling the function in a loop:
the most this machine can give, whatever else it is doing.

    python benchmarks/reward.py [--workers N] [--turns T] [--requests-at-once C]

The inline rate is taken before and after each one over HTTP, several times, and the median of the quotients counts: the
speed of a machine that others share changes from one second to the next. Requests have 64 samples, as 8 completions for
each of 8 prompts. `pathological` puts 1 % of expressions in between that hang an evaluator; the inline rate is the one
without them. Server and client need CPU time, too: on two cores they take it from the workers.

`CPU ratio` is (CPU seconds of the plain processes) / (CPU seconds of server and workers) for the same scores: what else
the machine is doing changes it little, and where the server has a core to itself the other ratio comes near to it.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPConnection
from multiprocessing import get_context
from pathlib import Path
from threading import Event
from typing import Any

import httpx

from grpo_reward.rewards.accuracy import accuracy
from grpo_reward.rewards.countdown import countdown

SAMPLES_PER_REQUEST = 64
THINKING = "Let me try another way: 3 + 4 is 7, which is not enough, so I multiply instead and look again. "
HANGS_EVAL = ["<answer>44**19**35</answer>", "<answer>9**9**9</answer>"]
HANGS_MATH_VERIFY = [
    "<answer>$9^{9^{9^9}}$</answer>",
    f"<answer>${'(' * 60}5{')' * 60}$</answer>",
    "<answer>$10^{10^8}$</answer>",
]


Sample = dict[str, Any]


@dataclass
class Case:
    name: str
    reward: str
    score: Callable[..., Any]
    make: Callable[[random.Random, int], list[Sample]]
    num_samples: int
    poison: Sequence[str] = ()


def countdown_sample(rng: random.Random) -> Sample:
    nums = [rng.randint(1, 99) for _ in range(4)]
    a, b, c, d = nums
    right = rng.random() < 0.5
    completion = f"<think>{THINKING * rng.randint(1, 4)}</think><answer>({a} + {b}) * {c} - {d} = {a}</answer>"
    return {"completion": completion, "columns": {"nums": nums, "target": (a + b) * c - d + (not right)}}


def countdown_corpus(rng: random.Random, size: int) -> list[Sample]:
    return [countdown_sample(rng) for _ in range(size)]


def math_corpus(rng: random.Random, size: int) -> list[Sample]:
    """Groups of 8 with one gold. Answers differ from it as text and from each other, so that no memo helps."""
    samples: list[Sample] = []
    while len(samples) < size:
        a, b = rng.randint(2, 999), rng.randint(2, 999)
        kind = rng.choice(["fraction", "polynomial", "number"])
        for number in range(8):
            right = a + (0 if rng.random() < 0.5 else 1 + number)
            answer, gold = {
                "fraction": (f"\\frac{{{right * (number + 2)}}}{{{b * (number + 2)}}}", f"\\frac{{{a}}}{{{b}}}"),
                "polynomial": (f"{right}x + {b} + {number} - {number}", f"{b} + {a}x"),
                "number": (f"{right}.{'0' * (number + 1)}", f"{a}"),
            }[kind]
            thinking = THINKING * rng.randint(10, 40)
            completion = f"<think>{thinking}</think><answer>${answer}$</answer>"
            samples.append({"completion": completion, "columns": {"solution": f"${gold}$"}})
    return samples


def poisoned(samples: Sequence[Sample], poison: Sequence[str]) -> list[Sample]:
    return [
        {**sample, "completion": poison[position // 100 % len(poison)]} if poison and position % 100 == 50 else sample
        for position, sample in enumerate(samples)
    ]


def score_all(case: Case, samples: Sequence[Sample]) -> None:
    for sample in samples:
        case.score(sample["completion"], **sample["columns"])


def cpu_seconds(pid: int) -> float:
    """Of a process and all below it, those that have ended included."""
    stats = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                stats[int(entry.name)] = int(fields[1]), sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    tree = {pid}
    while more := {child for child, (parent, _) in stats.items() if parent in tree} - tree:
        tree |= more
    return sum(stats[member][1] for member in tree if member in stats)


@dataclass
class InlineRun:
    rate: float
    """Scores per second."""
    cpu_s: float


def inline_run(case: Case, samples: Sequence[Sample], workers: int, server_pid: int) -> InlineRun:
    """All samples in `workers` plain processes."""
    context = get_context("fork")
    processes = [context.Process(target=score_all, args=(case, samples[part::workers])) for part in range(workers)]
    cpu_before_s = cpu_seconds(os.getpid()) - cpu_seconds(server_pid)
    started = time.perf_counter()
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    elapsed_s = time.perf_counter() - started
    return InlineRun(len(samples) / elapsed_s, cpu_seconds(os.getpid()) - cpu_seconds(server_pid) - cpu_before_s)


def http_rate(port: int, case: Case, samples: Sequence[Sample], at_once: int) -> tuple[float, int, float]:
    """Scores per second, samples without a result, and the slowest /livez in ms.

    The client shares the machine with what is measured, so it is a plain one: connections that stay open, bodies made
    before the clock starts, answers looked at without parsing.
    """
    starts = range(0, len(samples), SAMPLES_PER_REQUEST)
    bodies = [
        json.dumps({"rewards": [{"name": case.reward}], "samples": samples[start : start + SAMPLES_PER_REQUEST]})
        for start in starts
    ]
    done = Event()

    def send() -> int:
        scored = 0
        with contextlib.closing(HTTPConnection("127.0.0.1", port, timeout=120)) as connection:
            with contextlib.suppress(IndexError):  # none is left
                while True:
                    connection.request("POST", "/v1/score", bodies.pop(), {"Content-Type": "application/json"})
                    scored += connection.getresponse().read().count(b'"status"')
        return scored

    def probe() -> float:
        slowest_s = 0.0
        with contextlib.closing(HTTPConnection("127.0.0.1", port, timeout=120)) as connection:
            while not done.wait(0.05):
                asked = time.perf_counter()
                connection.request("GET", "/livez")
                connection.getresponse().read()
                slowest_s = max(slowest_s, time.perf_counter() - asked)
        return slowest_s

    with ThreadPoolExecutor(at_once + 1) as threads:
        probing = threads.submit(probe)
        started = time.perf_counter()
        try:
            scored = sum(sending.result() for sending in [threads.submit(send) for _ in range(at_once)])
            elapsed_s = time.perf_counter() - started
        finally:
            done.set()
        return scored / elapsed_s, len(samples) - scored, 1000 * probing.result()


async def wait_until_ready(url: str) -> None:
    async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
        for _ in range(300):
            try:
                if (await client.get("/readyz")).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.1)
    sys.exit("error: the reward server did not start")


CASES = [
    Case("countdown", "countdown", countdown, countdown_corpus, 25_600),
    Case("countdown, 1 % pathological", "countdown", countdown, countdown_corpus, 25_600, HANGS_EVAL),
    Case("math", "accuracy", accuracy, math_corpus, 1_280),
    Case("math, 1 % pathological", "accuracy", accuracy, math_corpus, 1_280, HANGS_MATH_VERIFY),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--requests-at-once", type=int, default=4)
    parser.add_argument("--port", type=int, default=8901)
    options = parser.parse_args()
    command = ["serve", "--workers", str(options.workers), "--port", str(options.port), "--log-level", "warning"]
    server = subprocess.Popen([sys.executable, "-m", "grpo_reward", *command], stdout=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{options.port}"
    try:
        asyncio.run(wait_until_ready(url))
        print(f"| reward, {options.workers} workers | workers × inline/s | HTTP/s | ratio ", end="")
        print("| CPU ratio | lost | slowest /livez |")
        print("|---|---:|---:|---:|---:|---:|---:|")
        for number, case in enumerate(CASES):
            score_all(case, case.make(random.Random(1000 + number), 500))  # what is forked from here is warm, too
            inline, over_http, ratios, cpu_ratios, lost, slowest_ms = [], [], [], [], 0, 0.0
            for turn in range(options.turns):
                # Other samples in every turn: the workers of the server remember.
                samples = case.make(random.Random(100 * number + turn), case.num_samples)
                before = inline_run(case, samples, options.workers, server.pid)
                cpu_before_s = cpu_seconds(server.pid)
                mixed = poisoned(samples, case.poison)
                rate, missing, probe_ms = http_rate(options.port, case, mixed, options.requests_at_once)
                server_cpu_s = cpu_seconds(server.pid) - cpu_before_s
                after = inline_run(case, samples, options.workers, server.pid)
                base = statistics.mean((before.rate, after.rate))
                inline.append(base)
                over_http.append(rate)
                ratios.append(rate / base)
                cpu_ratios.append(statistics.mean((before.cpu_s, after.cpu_s)) / server_cpu_s)
                lost += missing
                slowest_ms = max(slowest_ms, probe_ms)
            medians = [statistics.median(figures) for figures in (inline, over_http, ratios, cpu_ratios)]
            figures = "{:,.0f} | {:,.0f} | {:.2f} | {:.2f}".format(*medians)
            print(f"| {case.name} | {figures} | {lost} | {slowest_ms:.0f} ms |", flush=True)
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
