"""How long `GET /metrics` takes on each of the three services, idle and used before: median and 95th percentile.

    python benchmarks/scrape.py [--scrapes 200]

The bound is 20 ms for all three, asked one after the other. The trainer's is that of `live_page.py`, whose main thread
computes.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import httpx
from tests.processes import ROLLOUT_ENVIRONMENT, free_port, reward_command, rollout_command, service
from tests.tiny_model import save_tiny_model

MAX_MS = 20.0


@contextmanager
def computing_trainer() -> Iterator[str]:
    """The URL of a status server beside a main thread that computes."""
    command = [sys.executable, str(Path(__file__).with_name("live_page.py")), "--compute"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())["url"]
        finally:
            process.kill()


def scrape_ms(client: httpx.Client, url: str) -> float:
    started = time.perf_counter()
    client.get(f"{url}/metrics").raise_for_status()
    return 1000 * (time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scrapes", type=int, default=200)
    options = parser.parse_args()
    found: dict[str, list[float]] = {"reward": [], "rollout": [], "trainer, computing": []}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        model, ports = save_tiny_model(folder / "model"), (free_port(), free_port())
        reward = stack.enter_context(service(reward_command(ports[0]), folder / "reward.log", port=ports[0]))
        command = rollout_command(model, ports[1], "--dtype", "float32", "--enforce-eager")
        rollout = stack.enter_context(
            service(command, folder / "rollout.log", port=ports[1], environment=ROLLOUT_ENVIRONMENT)
        )
        reward.wait_until_live()
        rollout.wait_until_live()
        samples = [{"completion": "<answer>1</answer>", "columns": {"solution": "1"}}] * 8
        names = [{"name": name} for name in ("accuracy", "format", "exact_match")]
        httpx.post(f"{reward.url}/v1/score", json={"rewards": names, "samples": samples}).raise_for_status()
        prompts = [{"token_ids": [5, 6, 7]}]
        httpx.post(
            f"{rollout.url}/v1/rollouts", json={"request_id": "a", "prompts": prompts, "sampling": {"max_tokens": 4}}
        )
        trainer = stack.enter_context(computing_trainer())
        urls = (reward.url, rollout.url, trainer)
        client = stack.enter_context(httpx.Client(trust_env=False, timeout=30))
        for _ in range(options.scrapes):
            for name, url in zip(list(found), urls, strict=True):
                found[name].append(scrape_ms(client, url))
            time.sleep(0.02)
    found[f"all three, bound {MAX_MS:g} ms"] = [sum(round_ms) for round_ms in zip(*found.values(), strict=True)]
    print("| GET /metrics | median | 95th percentile |")
    print("|---|---:|---:|")
    for name, times_ms in found.items():
        print(f"| {name} | {statistics.median(times_ms):.1f} ms | {statistics.quantiles(times_ms, n=20)[-1]:.1f} ms |")


if __name__ == "__main__":
    main()
