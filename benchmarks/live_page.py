"""The live page while a run computes, measured against its bounds.

    python benchmarks/live_page.py [--seconds 60] [--step-s 1.0]

A process computes like a trainer (matrix products on every core in the main thread) and reports a step of 256 samples
with 60 metrics every `--step-s` seconds; its page is served from a thread, as in a real run. One client keeps
`/events` open, another asks for `/` five times a second.

- size: the bytes of `/`, which is all that a browser loads.
- `/`: 95th percentile of the whole answer.
- update: 95th percentile from the moment an update is made until the client has read it.
- thread: processor time of the page's thread, with one client connected, as a share of the whole process's.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx

MAX_BYTES, MAX_P95_MS, MAX_SHARE = 150_000, 100.0, 0.01
RUN_UP_S = 5.0


def compute(step_s: float) -> None:
    """The process that is measured. Says where it serves and which thread does it, then computes until it is killed."""
    import torch
    from tests.trainer.made_episodes import completion

    from grpo_proto import RewardScore
    from grpo_trainer.algorithm.sequences import Episode, Group
    from grpo_trainer.config.observing import ServerConfig
    from grpo_trainer.data.prompt_row import PromptRow
    from grpo_trainer.observe.run_status import RunStatus
    from grpo_trainer.observe.server import serve_status

    rng = random.Random(0)

    def sample(text_length: int) -> Episode:
        score = float(rng.random() < 0.5)
        rewards = {name: RewardScore(score=score, status="ok") for name in ("accuracy", "format", "length")}
        text = "".join(rng.choice("abcdefgh \n") for _ in range(text_length))
        return completion("s", [1] * 500, [-0.1] * 500, text, "stop", [(1, 500)], rewards, score, score - 0.5)

    groups = [
        Group(position, PromptRow(position, [1] * 80, "What is 1 + 1? " * 20, {}), [sample(2000) for _ in range(8)])
        for position in range(32)
    ]
    status = RunStatus("benchmark", max_steps=100_000, heartbeat_bound_s=60.0)
    status.show("replicas", lambda: {"count": 8, "serving": 8, "shown": []})
    with serve_status(status, ServerConfig(port=0)) as server:
        [thread] = [thread for thread in threading.enumerate() if thread.name == "status-server"]
        print(json.dumps({"url": server.url, "thread": thread.native_id}), flush=True)
        matrix = torch.randn(1500, 1500)
        step, due = 0, time.monotonic()
        while True:
            status.enter_stage("train")
            while time.monotonic() < due:
                torch.mm(matrix, matrix)
            step, due = step + 1, due + step_s
            metrics = {f"metric/{index}": rng.random() for index in range(40)} | {"step_time": step_s}
            metrics |= {name: rng.random() for name in ("reward", "accuracy", "entropy", "grad_norm", "staleness/mean")}
            metrics |= {f"rewards/{name}/mean": rng.random() for name in ("accuracy", "format", "length")}
            metrics |= {f"time/{stage}_s": rng.random() * step_s for stage in ("wait", "score", "train", "push")}
            status.step_done(step, metrics, seconds_per_stage={}, groups=groups)


def follow(url: str, until: float, delays_ms: list[float], sizes: list[int]) -> None:
    """A client of /events."""
    with (
        httpx.Client(trust_env=False, timeout=30) as client,
        client.stream("GET", f"{url}/events") as response,
    ):
        for line in response.iter_lines():
            if line.startswith('data: {"now_s":'):
                delays_ms.append((time.time() - float(line[15 : line.index(",")])) * 1000)
                sizes.append(len(line))
            if time.monotonic() > until:
                return


def cpu_s(pid: int, thread: int | None = None) -> float:
    path = Path(f"/proc/{pid}/stat") if thread is None else Path(f"/proc/{pid}/task/{thread}/schedstat")
    if thread is not None:
        return int(path.read_text().split()[0]) / 1e9
    fields = path.read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def p95(values: list[float]) -> float:
    return statistics.quantiles(values, n=20)[-1]


def measure(seconds: float, step_s: float) -> dict[str, float]:
    command = [sys.executable, __file__, "--compute", "--step-s", str(step_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            where = json.loads(process.stdout.readline())
            time.sleep(RUN_UP_S)
            delays_ms: list[float] = []
            sizes: list[int] = []
            until = time.monotonic() + seconds
            reader = threading.Thread(target=follow, args=(where["url"], until, delays_ms, sizes))
            reader.start()
            before = cpu_s(process.pid, where["thread"]), cpu_s(process.pid)
            time.sleep(seconds / 2)
            after = cpu_s(process.pid, where["thread"]), cpu_s(process.pid)
            # Only now: whoever asks for the page five times a second is no part of the first share.
            answers_ms, size = [], 0
            with httpx.Client(trust_env=False, timeout=30) as client:
                while time.monotonic() < until:
                    started = time.perf_counter()
                    size = len(client.get(f"{where['url']}/").content)
                    answers_ms.append((time.perf_counter() - started) * 1000)
                    time.sleep(0.2)
            reader.join(timeout=30)
        finally:
            process.kill()
    return {
        "bytes": size,
        "page_p95_ms": p95(answers_ms),
        "update_p95_ms": p95(delays_ms),
        "updates": len(delays_ms),
        "update_bytes": statistics.fmean(sizes),
        "thread_ms_per_s": (after[0] - before[0]) / (seconds / 2) * 1000,
        "process_cores": (after[1] - before[1]) / (seconds / 2),
        "share": (after[0] - before[0]) / (after[1] - before[1]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--step-s", type=float, default=1.0)
    parser.add_argument("--compute", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.compute:
        compute(options.step_s)
        return
    found = measure(options.seconds, options.step_s)
    print(f"size of the page      {found['bytes']:>10,.0f} bytes   bound {MAX_BYTES:,}")
    print(f"/ p95                 {found['page_p95_ms']:>10.1f} ms      bound {MAX_P95_MS:g}")
    print(f"update p95            {found['update_p95_ms']:>10.1f} ms      bound {MAX_P95_MS:g}", end="")
    print(f"   ({found['updates']:.0f} updates of {found['update_bytes']:,.0f} bytes)")
    print(f"thread's share        {found['share']:>10.2%}         bound {MAX_SHARE:.0%}", end="")
    print(f"   ({found['thread_ms_per_s']:.1f} ms a second of {found['process_cores']:.2f} cores)")
    bounds = (
        found["bytes"] < MAX_BYTES,
        found["page_p95_ms"] < MAX_P95_MS,
        found["update_p95_ms"] < MAX_P95_MS,
        found["share"] < MAX_SHARE,
    )
    sys.exit(0 if all(bounds) else 1)


if __name__ == "__main__":
    main()
