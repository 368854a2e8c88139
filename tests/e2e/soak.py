"""A long run of the three real services, with a fault every ten steps: `make soak`, or `python -m tests.e2e.soak`.

Two rollout servers, a reward server, and a trainer that is started again with --resume. A seeded random number picks
who of those that are there is killed or frozen. At the end every position of the data has been trained on once,
whatever happened, and no process that lived on holds more threads, descriptors or memory than before. Prints a table;
exit status 1 when a line of it is wrong.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import httpx
import psutil

from tests.e2e.conftest import PLUGIN, Stack, read_jsonl, stack_around
from tests.otlp_receiver import otlp_receiver
from tests.processes import ROLLOUT_ENVIRONMENT, Service, free_port, reward_command, rollout_command, service
from tests.tiny_model import save_tiny_model
from tests.warm_python import Forked

STEPS, EVERY, FREEZE_S, SAMPLES_A_STEP = 200, 10, 8.0, 32
LIMIT_S = 1500.0
MORE_THREADS, MORE_FILES, MORE_MEMORY = 8, 16, 1.5
"""What a process may have more than at its first measurement: pools that fill up, and caches."""


Start = Callable[[], AbstractContextManager[Service]]


class Part:
    """A service that is started again when it is killed, on the same port."""

    def __init__(self, name: str, start: Start, stack: ExitStack):
        self.name, self._start, self._stack = name, start, stack
        self.service = stack.enter_context(start())

    @property
    def is_live(self) -> bool:
        try:
            return httpx.get(f"{self.service.url}/livez", timeout=2.0, trust_env=False).status_code == 200
        except httpx.TransportError:
            return False

    def processes(self) -> list[int]:
        return [self.service.process.pid, *(child.pid for child in self.service.children())]

    def kill(self) -> None:
        os.killpg(self.service.process.pid, signal.SIGKILL)
        self.service.process.wait(30.0)
        self.service = self._stack.enter_context(self._start())

    def kill_engine(self) -> None:
        self.service.engine().kill()
        self.service.process.wait(60.0)
        self.service = self._stack.enter_context(self._start())

    def freeze(self) -> None:
        stand_still(self.processes())

    def freeze_engine(self) -> None:
        stand_still([self.service.engine().pid])


def stand_still(pids: list[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(FREEZE_S)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)


class Trainer:
    """The run, started again with --resume when it is killed."""

    def __init__(self, stack: Stack, run_dir: Path, flags: tuple[object, ...]):
        self.stack, self.run_dir, self.flags = stack, run_dir, flags
        self.starts = 0
        self.process = self._start()

    def _start(self) -> Forked:
        self.starts += 1
        log = self.run_dir.parent / f"trainer-{self.starts}.log"
        return self.stack.start_trainer(self.run_dir, log, *self.flags, *(["--resume"] if self.starts > 1 else []))

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30.0)
        self.process = self._start()

    def freeze(self) -> None:
        stand_still([self.process.pid])

    def steps(self) -> int:
        file = self.run_dir / "metrics.jsonl"
        return max(file.read_bytes().count(b"\n") - 1, 0) if file.exists() else 0


def measured(pid: int) -> tuple[int, int, int]:
    """Threads, open files, and bytes of memory."""
    process = psutil.Process(pid)
    with process.oneshot():
        return process.num_threads(), process.num_fds(), process.memory_info().rss


class Growth:
    """The first and the latest measurement of every process that is there."""

    def __init__(self) -> None:
        self.first: dict[int, tuple[str, tuple[int, int, int]]] = {}
        self.latest: dict[int, tuple[int, int, int]] = {}

    def measure(self, named: dict[str, list[int]]) -> None:
        for name, pids in named.items():
            for pid in pids:
                try:
                    now = measured(pid)
                except psutil.NoSuchProcess:
                    continue
                self.first.setdefault(pid, (name, now))
                self.latest[pid] = now

    def rows(self) -> Iterator[tuple[str, bool, str]]:
        """One for each part of the run: what its processes gained while they lived."""
        for name in dict.fromkeys(name for name, _ in self.first.values()):
            pids = [pid for pid, (of, _) in self.first.items() if of == name]
            threads, files = (max(self.latest[p][n] - self.first[p][1][n] for p in pids) for n in (0, 1))
            memory = max(self.latest[p][2] / self.first[p][1][2] for p in pids)
            holds = threads <= MORE_THREADS and files <= MORE_FILES and memory <= MORE_MEMORY
            yield (
                f"{name}: {len(pids)} processes",
                holds,
                f"at most {threads:+} threads, {files:+} files, {memory:.2f} × memory",
            )


@contextmanager
def parts(folder: Path) -> Iterator[tuple[Stack, list[Part], list[str]]]:
    model = save_tiny_model(folder / "model")
    ports = [free_port(), free_port()]
    reward_port = free_port()
    with otlp_receiver() as receiver, ExitStack() as running:

        def rollout(number: int) -> Start:
            command = rollout_command(model, ports[number], "--dtype", "float32", "--enforce-eager")
            log = folder / f"rollout-{number}.log"
            return lambda: service(command, log, port=ports[number], environment=ROLLOUT_ENVIRONMENT)

        def reward() -> AbstractContextManager[Service]:
            command = reward_command(reward_port, "--plugin", PLUGIN)
            return service(command, folder / "soak-reward.log", port=reward_port)

        found = [Part(f"rollout {number}", rollout(number), running) for number in range(2)]
        found.append(Part("reward", reward, running))
        for part in found:
            part.service.wait_until_live()
        with stack_around(found[0].service, model, folder, receiver) as stack:
            urls = [f"http://127.0.0.1:{port}" for port in ports]
            yield stack, found, [json.dumps(urls), f"http://127.0.0.1:{reward_port}"]


def soak(folder: Path, *, steps: int, seed: int) -> bool:
    """Returns whether all of it holds."""
    rng, growth, done = random.Random(seed), Growth(), Counter[str]()
    started_s = time.monotonic()
    with parts(folder) as (stack, found, (urls, reward_url)):
        flags = (
            "--max_steps", steps, "--rollout.urls", urls, "--reward.url", reward_url, "--eval.eval_steps", 0,
            "--canary.steps", 10, "--rollout.retry_for_s", 300, "--reward.retry_for_s", 300,
            "--weights.push_deadline_s", 300,
        )  # fmt: skip
        run_dir = folder / "run"
        trainer = Trainer(stack, run_dir, flags)

        def faults() -> list[tuple[str, Callable[[], None]]]:
            """What may happen now: nothing to a part that is only coming up again."""
            possible = [("trainer killed", trainer.kill), ("trainer frozen", trainer.freeze)]
            live = [part for part in found if part.is_live]
            for part in live:
                possible += [(f"{part.name} killed", part.kill), (f"{part.name} frozen", part.freeze)]
            for part in live:
                if part.name != "reward":
                    possible.append((f"{part.name} engine killed", part.kill_engine))
                    possible.append((f"{part.name} engine frozen", part.freeze_engine))
            return possible

        due = EVERY
        try:
            while (status := trainer.process.poll()) is None:
                if time.monotonic() > started_s + LIMIT_S:
                    print(f"not at its end after {LIMIT_S:g} s, at step {trainer.steps()}")
                    return False
                if trainer.steps() >= due and due < steps:
                    growth.measure(
                        {"trainer": [trainer.process.pid]}
                        | {part.name: part.processes() for part in found if part.is_live}
                    )
                    name, act = rng.choice(faults())
                    print(f"[{time.monotonic() - started_s:.0f} s] step {trainer.steps()}: {name}", flush=True)
                    act()
                    done[name] += 1
                    due = trainer.steps() + EVERY
                time.sleep(0.05)
        finally:
            trainer.process.kill()
    rows = [*checks(run_dir, steps, status), *growth.rows()]
    print(f"\n{steps} steps, seed {seed}, {sum(done.values())} faults, {time.monotonic() - started_s:.0f} s\n")
    print("| fault | times |\n|---|---|")
    for name, count in sorted(done.items()):
        print(f"| {name} | {count} |")
    print("\n| | holds | |\n|---|---|---|")
    for name, holds, seen in rows:
        print(f"| {name} | {'yes' if holds else 'NO'} | {seen} |")
    return all(holds for _, holds, _ in rows)


def checks(run_dir: Path, steps: int, status: int) -> Iterator[tuple[str, bool, str]]:
    lines = read_jsonl(run_dir / "completions.jsonl")
    done = [row["step"] for row in read_jsonl(run_dir / "metrics.jsonl") if "loss" in row]
    samples = Counter((line["group"], line["index"]) for line in lines)
    groups = {line["group"] for line in lines}
    yield "the run ended by itself", status == 0, f"status {status}"
    yield "every step once, in order", done == list(range(1, steps + 1)), f"{len(done)} steps"
    of_steps = Counter(line["step"] for line in lines)
    full = of_steps == dict.fromkeys(range(1, steps + 1), SAMPLES_A_STEP)
    yield "every step with all its samples", full, f"{len(lines)} samples"
    twice = sum(count > 1 for count in samples.values())
    yield "no sample twice", twice == 0, f"{twice} twice"
    lost = sorted(set(range(len(groups))) - groups)  # type: ignore[operator]
    yield "no position lost", not lost, f"{len(lost)} lost"
    fresh = all(version == line["step"] for line in lines for version, _ in line["versions"])  # type: ignore[attr-defined]
    yield "every token sampled by the policy that it trained", fresh, ""


def main() -> int:
    parser = argparse.ArgumentParser("python -m tests.e2e.soak", description=__doc__)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="where logs and the run stay; default: a temporary one")
    options = parser.parse_args()
    if options.folder is not None:
        options.folder.mkdir(parents=True, exist_ok=True)
        return 0 if soak(options.folder, steps=options.steps, seed=options.seed) else 1
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        return 0 if soak(Path(folder), steps=options.steps, seed=options.seed) else 1


if __name__ == "__main__":
    sys.exit(main())
