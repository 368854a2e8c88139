"""What the reward server promises about itself, measured against the bound.

    python benchmarks/reward_limits.py [--scores 1000000] [--install]

- countdown inside: scores/s of the function in a plain loop on one core.
- small requests: one sample each from 16 connections, with gathering and without (`GatheringExecutor`).
- `/livez` while every worker hangs until its deadline, 99th percentile.
- a fresh worker: from the kill of a late one until another answers, median.
- memory: growth of server and workers between the first tenth of `--scores` and the end.
- start, with `--install`: from the command until the line that says it serves, in a fresh environment that has the
  reward service alone, and what that environment weighs with bytecode.
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
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
from reward import countdown_corpus

from grpo_proto import RewardSpec
from grpo_reward.costs import Costs
from grpo_reward.executors.base import Chunk
from grpo_reward.executors.gathering import GatheringExecutor
from grpo_reward.executors.process import ProcessExecutor
from grpo_reward.executors.turns import TurnsExecutor
from grpo_reward.rewards.countdown import countdown

ROOT = Path(__file__).parents[1]
SLOW = """import time
from grpo_reward import reward

@reward
def slow(completion: str) -> float:
    time.sleep(1000)
    return 1.0
"""


@contextlib.contextmanager
def served(*arguments: str, python: str = sys.executable) -> Iterator[tuple[str, int, float]]:
    """The URL, the process id, and the seconds it took to serve."""
    started = time.perf_counter()
    command = [python, "-m", "grpo_reward", "serve", "--port", "0", "--log-level", "error", *arguments]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd="/")
    assert server.stdout is not None
    url = server.stdout.readline().split()[2]
    try:
        yield url, server.pid, time.perf_counter() - started
    finally:
        server.terminate()
        server.wait()


def tree(pid: int) -> list[int]:
    """`pid` and all processes below it."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    found = [pid]
    for member in found:
        found += [child for child, parent in parents.items() if parent == member]
    return found


def private_mib(pid: int) -> float:
    """Memory that `pid` and those below it have for themselves: what a leak would grow."""
    kib = 0
    for member in tree(pid):
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{member}/smaps_rollup").read_text().splitlines()
            kib += sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))
    return kib / 1024


def inside_rate() -> float:
    samples = countdown_corpus(random.Random(0), 20_000)
    started = time.perf_counter()
    for sample in samples:
        countdown(sample["completion"], **sample["columns"])
    return len(samples) / (time.perf_counter() - started)


async def small_requests(gathering: bool, seconds: float = 3.0) -> float:
    """Chunks of one sample per second, from 16 at a time, without HTTP in between."""
    inner = ProcessExecutor(workers=2)
    await inner.start()
    costs = Costs()
    costs.learn("countdown", 0.00002)
    executor = GatheringExecutor(TurnsExecutor(inner, costs), costs) if gathering else inner
    samples = countdown_corpus(random.Random(0), 1000)
    until = time.monotonic() + seconds
    done = 0

    async def sender() -> None:
        nonlocal done
        while time.monotonic() < until:
            await executor.score(Chunk([RewardSpec(name="countdown")], [samples[done % 1000]], None, 10.0))
            done += 1

    await asyncio.gather(*(sender() for _ in range(16)))
    await inner.stop()
    return done / seconds


async def probes_while_hanging(url: str, workers: int) -> tuple[float, float]:
    """99th percentile of `/livez`, and the median time from a deadline to the next answer, both in ms."""
    hanging = {"rewards": [{"name": "slow"}], "samples": [{"completion": ""}] * workers, "timeout_s": 1.0}
    probes, fresh = [], []
    async with httpx.AsyncClient(base_url=url, timeout=60.0, trust_env=False) as client:
        for _ in range(6):
            work = asyncio.create_task(client.post("/v1/score", json=hanging))
            while not work.done():
                asked = time.perf_counter()
                await client.get("/livez")
                probes.append(1000 * (time.perf_counter() - asked))
                await asyncio.sleep(0.005)
            freed = time.perf_counter()
            good = {"rewards": [{"name": "format"}], "samples": [{"completion": ""}]}
            (await client.post("/v1/score", json=good)).raise_for_status()
            fresh.append(1000 * (time.perf_counter() - freed))
    return statistics.quantiles(probes, n=100)[98], statistics.median(fresh)


async def memory_growth(url: str, pid: int, num_scores: int) -> tuple[float, float]:
    """Private memory after a tenth of the scores, and after all, in MiB."""
    samples = countdown_corpus(random.Random(0), 6400)
    bodies = [
        json.dumps({"rewards": [{"name": "countdown"}], "samples": samples[start : start + 640]})
        for start in range(0, 6400, 640)
    ]
    requests = iter(range(num_scores // 640))
    early = 0.0
    async with httpx.AsyncClient(base_url=url, timeout=60.0, trust_env=False) as client:

        async def sender() -> None:
            nonlocal early
            for number in requests:
                headers = {"Content-Type": "application/json"}
                (await client.post("/v1/score", content=bodies[number % 10], headers=headers)).raise_for_status()
                if number == num_scores // 6400:
                    early = private_mib(pid)

        await asyncio.gather(*(sender() for _ in range(4)))
    return early, private_mib(pid)


def fresh_environment(folder: Path) -> tuple[str, float]:
    """A virtual environment with the reward service alone: its Python, and its MiB without pip."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = str(folder / "bin/python")
    uv = [
        str(Path(sys.executable).with_name("uv")),
        "pip",
        "install",
        "--quiet",
        "--python",
        python,
        "--compile-bytecode",
    ]
    find = ["--find-links", os.environ["PIP_FIND_LINKS"]] if "PIP_FIND_LINKS" in os.environ else []
    # setuptools writes its build folders where the sources are.
    sources = folder / "sources"
    for name in ("proto", "services/reward"):
        subprocess.run(["cp", "-r", ROOT / name, sources.with_name(f"sources-{name.replace('/', '-')}")], check=True)
    subprocess.run([*uv, *find, folder / "sources-proto", folder / "sources-services-reward"], check=True)
    packages = next(folder.glob("lib/python*/site-packages"))
    if any(packages.glob("torch*")):
        sys.exit("error: torch came into the reward-only environment")
    return python, sum(file.stat().st_size for file in packages.rglob("*") if file.is_file()) / 2**20


def row(what: str, seen: str, bound: str) -> None:
    print(f"| {what} | {seen} | {bound} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scores", type=int, default=1_000_000)
    parser.add_argument("--install", action="store_true")
    options = parser.parse_args()
    workers = len(os.sched_getaffinity(0))
    print("| what | seen | bound |")
    print("|---|---:|---:|")
    row("countdown inside, scores/s on one core", f"{inside_rate():,.0f}", "50,000")
    alone, together = asyncio.run(small_requests(False)), asyncio.run(small_requests(True))
    row("chunks of one sample, gathered / not", f"{together:,.0f} / {alone:,.0f} = {together / alone:.2f}", "")
    with tempfile.TemporaryDirectory() as folder:
        plugin = Path(folder, "slow_reward.py")
        plugin.write_text(SLOW)
        with served("--plugin", str(plugin), "--workers", str(workers)) as (url, _, _):
            p99_ms, fresh_ms = asyncio.run(probes_while_hanging(url, workers))
            row("/livez while all workers hang, 99th percentile", f"{p99_ms:.1f} ms", "100 ms")
            row("a score after all workers were killed, median", f"{fresh_ms:.1f} ms", "50 ms")
        with served() as (url, pid, start_s):
            early, late = asyncio.run(memory_growth(url, pid, options.scores))
            row(
                f"private memory after {options.scores // 10:,} and {options.scores:,} scores",
                f"{early:.0f}, {late:.0f} MiB",
                "flat",
            )
        if options.install:
            python, size_mib = fresh_environment(Path(folder, "environment"))
            row("packages of a reward-only environment, with bytecode", f"{size_mib:.0f} MiB", "130 MB")
            starts = []
            for _ in range(5):
                with served(python=python) as (_, _, start_s):
                    starts.append(start_s)
            row("its start, median", f"{statistics.median(starts):.2f} s", "1.5 s")


if __name__ == "__main__":
    main()
