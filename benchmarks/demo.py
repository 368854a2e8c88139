"""What the demo learns and how soon, against a run of plain steps: three seeds, the same services for both.

    python benchmarks/demo.py [--seeds 42 1 7]

A plain step samples 32 groups by requests of one, in vLLM's own batch sizes, waits for them, computes every sample: 160
of them are what the demo cost and taught before samples without a gradient were skipped. The other side is
`examples/countdown/run.yaml`, whose sampling overlaps training, with the batch sizes of `Procfile`.

Both are evaluated every twenty steps on the held-out rows: accuracies of sampled answers, each a mean over three
evaluations in a row. Wall time is that of the steps, without evaluations and canaries; during these the overlapped side
samples its next batch, which is counted nowhere (15 steps of 300).

Printed for each seed: the seconds until the run of `run.yaml` has the accuracy that the plain steps end with, over the
seconds of all plain steps; and what each gains from its first evaluation to its last. Run it while nothing else does:
about five minutes for each side and seed.
"""

import argparse
import json
import statistics
import sys
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.demo_services import BATCH_FLAGS, EXAMPLES, as_flags, make_start, run, servers
from tests.processes import BIN

PLAIN = {
    "max_steps": 160,
    "rollout.prompts_per_request": 1,
    "algorithm.max_staleness": 0,
    "algorithm.skip_zero_advantage": "false",
}
"""Settings in which a plain run differs from `run.yaml`."""
SMOOTHED, EVAL_STEPS = 3, 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[42, 1, 7])
    arguments = parser.parse_args()
    print(
        f"{'':<10}{'plain, s':>10}{'ours, s':>10}{'to the same':>13}{'ratio':>8}{'gain, plain':>13}{'gain, ours':>12}"
    )
    ratios = []
    for seed in arguments.seeds:
        with TemporaryDirectory() as folder:
            plain, ours = both(seed, Path(folder))
        goal = smoothed(plain)[-1][1]
        until = next((seconds for seconds, accuracy in smoothed(ours) if accuracy >= goal), float("inf"))
        ratios.append(until / plain[-1][0])
        gains = [curve[-1][1] - curve[0][1] for curve in (plain, ours)]
        print(
            f"seed {seed:<5}{plain[-1][0]:>10.0f}{ours[-1][0]:>10.0f}{until:>13.0f}{ratios[-1]:>8.2f}"
            f"{gains[0]:>+13.3f}{gains[1]:>+12.3f}",
            flush=True,
        )
    print(f"{'median':<43}{statistics.median(ratios):>8.2f}")


Curve = list[tuple[float, float]]
"""Seconds of the steps before an evaluation, and its accuracy."""


def both(seed: int, folder: Path) -> tuple[Curve, Curve]:
    make_start(seed, folder)
    settings = {
        "seed": seed,
        "model.name_or_path": folder / "cold-start",
        "data.dataset": folder / "data" / "train.jsonl",
        "data.eval_dataset": folder / "data" / "held_out.jsonl",
        "eval.eval_steps": EVAL_STEPS,
        "logging.report_to": "[]",
        "server.port": 0,
    }
    with servers(folder / "cold-start", folder) as urls:
        plain = curve_of(folder / "plain", settings | PLAIN | urls)
    with servers(folder / "cold-start", folder, *BATCH_FLAGS) as urls:
        return plain, curve_of(folder / "ours", settings | urls)


def curve_of(run_dir: Path, settings: dict[str, object]) -> Curve:
    run(BIN / "grpo-train", EXAMPLES / "run.yaml", *as_flags({"run_dir": run_dir, **settings}))
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    seconds = accumulate(row.get("step_time", 0.0) - row.get("time/eval_s", 0.0) for row in rows)
    return [(s, row["eval_accuracy"]) for s, row in zip(seconds, rows, strict=True) if "eval_accuracy" in row]


def smoothed(curve: Curve) -> Curve:
    """Each accuracy as a mean of the last evaluations, from the first that has as many before it."""
    return [
        (curve[end][0], statistics.fmean(accuracy for _, accuracy in curve[end + 1 - SMOOTHED : end + 1]))
        for end in range(SMOOTHED - 1, len(curve))
    ]


if __name__ == "__main__":
    main()
