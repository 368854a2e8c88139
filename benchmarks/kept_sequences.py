"""What a push costs the sequences that run: their KV cache recomputed, against kept (`weights.kv_cache`).

    python benchmarks/kept_sequences.py [--megabytes 128] [--sequences 16] [--context 384] [--turns 7]

Pushes in turn, to two servers of the same random bf16 model: one recomputes, one keeps. Each has that many sequences of
that many tokens. A sequence stands still from the start of the push until its next token; counted is the sequence that
stands longest. Medians. Everything shares the machine; run it while nothing else does.
"""

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ["OMP_WAIT_POLICY"] = "PASSIVE"

import httpx
from benchmarks.push import export_of, pushing, random_model
from tests.processes import ROLLOUT_ENVIRONMENT, free_port, rollout_command, service

from grpo_proto.messages.weights import KvCache

TIMEOUT_S = 120.0
MAX_LENGTH = 512
WARM_UP_TURNS = 2
WAYS: tuple[KvCache, ...] = ("recompute", "keep")


def longest_stand_s(url: str, prompts: list[list[int]], push: Callable[[], object]) -> float:
    """The longest time that one of the sequences stood still, from the start of `push` to its next token."""
    body = {"prompt": prompts, "max_tokens": MAX_LENGTH - len(prompts[0]), "stream": True, "ignore_eos": True}
    next_s: dict[int, float] = {}
    begun: set[int] = set()
    pushes, pushed = threading.Event(), threading.Event()

    def read() -> None:
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=TIMEOUT_S, trust_env=False) as answer:
            for line in answer.iter_lines():
                if not line.startswith("data: {"):
                    continue
                number = json.loads(line.removeprefix("data: "))["choices"][0]["index"]
                if pushed.is_set():
                    next_s.setdefault(number, time.perf_counter())
                    if len(next_s) == len(prompts):
                        return
                begun.add(number)
                if len(begun) == len(prompts):
                    pushes.set()

    reader = threading.Thread(target=read)
    reader.start()
    pushes.wait(TIMEOUT_S)
    started = time.perf_counter()
    push()
    pushed.set()
    reader.join()
    return max(next_s.values()) - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=128)
    parser.add_argument("--sequences", type=int, default=16)
    parser.add_argument("--context", type=int, default=384)
    parser.add_argument("--turns", type=int, default=7)
    options = parser.parse_args()
    rng = random.Random(0)
    prompts = [[rng.randrange(5, 100) for _ in range(options.context)] for _ in range(options.sequences)]
    with tempfile.TemporaryDirectory(prefix="grpo-benchmark-") as place, ExitStack() as stack:
        export = export_of(random_model(options.megabytes, Path(place) / "model"))
        pushes = {}
        urls = {}
        for way in WAYS:
            port = free_port()
            command = rollout_command(
                Path(place) / "model", port, "--enforce-eager", "--max-model-len", str(MAX_LENGTH)
            )
            server = stack.enter_context(
                service(command, Path(place) / f"log-{way}", port=port, environment=ROLLOUT_ENVIRONMENT)
            )
            server.wait_until_live()
            urls[way] = server.url
            pushes[way] = stack.enter_context(pushing(server.url, export, way))
        stood_s: dict[str, list[float]] = {way: [] for way in WAYS}
        for version in range(1, WARM_UP_TURNS + options.turns + 1):
            for way in WAYS:
                push = pushes[way]
                stood_s[way].append(longest_stand_s(urls[way], prompts, lambda v=version, p=push: p(v)))
        recomputed, kept = (statistics.median(stood_s[way][WARM_UP_TURNS:]) for way in WAYS)
        print(f"{options.sequences} sequences of {options.context} tokens stand still for {recomputed:.3f} s when they "
              f"are recomputed, for {kept:.3f} s when they are kept: {kept / recomputed:.2f}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
