"""Steps while one of two rollout servers is away, against steps with one server alone.

    python benchmarks/one_away.py [--turns 2] [--steps 20]

The demo's run, in turn: with the first server alone; with both, of which the second is frozen (SIGSTOP) once some steps
are done; with both, of which the second is killed. A step is the median of those behind the warm-up, bound 1.1. Some
take longer until it is noticed that the second is away: their further seconds are told beside it. Run it while nothing
else does: about ten minutes.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.demo_services import BATCH_FLAGS, EXAMPLES, as_flags, make_start
from tests.processes import BIN, ROLLOUT_ENVIRONMENT, Service, free_port, reward_command, rollout_command, service

WARM_UP_STEPS = 4
SIDES = ("one alone", "one frozen", "one killed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=2, help="runs of each side")
    parser.add_argument("--steps", type=int, default=20, help="steps of a run that count")
    arguments = parser.parse_args()
    seconds: dict[str, list[list[float]]] = {side: [] for side in SIDES}
    with TemporaryDirectory() as name:
        folder = Path(name)
        make_start(42, folder)
        for turn in range(arguments.turns):
            for side in SIDES:
                seconds[side].append(measure(side, folder, turn, arguments.steps))
                print(f"turn {turn}, {side}: {told(seconds[side][-1])}", flush=True)
    alone = statistics.median(statistics.median(played) for played in seconds[SIDES[0]])
    for side in SIDES[1:]:
        away = statistics.median(statistics.median(played) for played in seconds[side])
        print(f"{side}: {away / alone:.2f} times the seconds of one alone (bound 1.1)")


def told(played: list[float]) -> str:
    median = statistics.median(played)
    return f"{median:.3f} s a step, {sum(played) - len(played) * median:.1f} s beside that in {len(played)} steps"


def measure(side: str, folder: Path, turn: int, steps: int) -> list[float]:
    """Seconds of the steps behind the warm-up."""
    run_dir, reward_port = folder / f"{side}-{turn}".replace(" ", "-"), free_port()
    with ExitStack() as stack:
        servers = [stack.enter_context(rollout_server(folder)) for _ in range(1 if side == "one alone" else 2)]
        log = folder / "reward.log"
        reward = stack.enter_context(service(reward_command(reward_port), log, port=reward_port))
        for one in [*servers, reward]:
            one.wait_until_live()
        settings = {
            "run_dir": run_dir,
            "model.name_or_path": folder / "cold-start",
            "data.dataset": folder / "data" / "train.jsonl",
            "data.eval_dataset": folder / "data" / "held_out.jsonl",
            "max_steps": WARM_UP_STEPS + steps,
            "rollout.urls": "[" + ", ".join(server.url for server in servers) + "]",
            "reward.url": reward.url,
            "eval.eval_steps": 0,
            "server.port": 0,
        }
        command = [str(word) for word in (BIN / "grpo-train", EXAMPLES / "run.yaml", *as_flags(settings))]
        with (folder / "trainer.log").open("ab") as output:
            trainer = subprocess.Popen(command, stdout=output, stderr=output)
        stack.callback(trainer.kill)
        while len(step_seconds(run_dir)) < WARM_UP_STEPS:
            assert trainer.poll() is None, (folder / "trainer.log").read_text()[-2000:]
            time.sleep(0.02)
        pids = [servers[1].process.pid, *(child.pid for child in servers[1].children())] if len(servers) == 2 else []
        for pid in pids:
            stack.callback(signal_if_there, pid, signal.SIGCONT)
            signal_if_there(pid, signal.SIGSTOP if side == "one frozen" else signal.SIGKILL)
        assert trainer.wait(600) == 0, (folder / "trainer.log").read_text()[-2000:]
    counted = step_seconds(run_dir)[WARM_UP_STEPS:]
    assert len(counted) == steps, f"{len(counted)} steps instead of {steps}"
    return counted


def rollout_server(folder: Path) -> AbstractContextManager[Service]:
    port = free_port()
    command = rollout_command(folder / "cold-start", port, "--dtype", "float32", "--enforce-eager", *BATCH_FLAGS)
    return service(command, folder / "rollout.log", port=port, environment=ROLLOUT_ENVIRONMENT)


def signal_if_there(pid: int, number: int) -> None:
    """Children of a server that was killed end with it."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def step_seconds(run_dir: Path) -> list[float]:
    log = run_dir / "metrics.jsonl"
    rows = [json.loads(line) for line in log.read_text().splitlines() if line.endswith("}")] if log.exists() else []
    return [row["step_time"] for row in rows if row.get("step", 0) > 0 and "step_time" in row]


if __name__ == "__main__":
    main()
