"""Show what a finished run of the calculator game has learnt.

    python -m examples.calculator.show_result runs/demo-episodes

Prints the numbers of summary.json, loads the cold start and the trained policy with transformers, and has both play
some held-out games.
"""

import sys
from pathlib import Path

from examples.calculator.play import Policy
from examples.countdown.show_result import print_summary

from grpo_trainer.data.sources import read_rows

NUM_ROWS = 5


def main(run_dir: Path) -> None:
    print_summary(run_dir)
    rows = list(read_rows(f"{run_dir / 'data' / 'held_out.jsonl'}#{NUM_ROWS}", "train"))
    for folder, what in ("cold-start", "before"), ("model", "the trained policy"):
        print(f"\n{what}, loaded with transformers, in held-out games:")
        for row, played in zip(rows, Policy(str(run_dir / folder), greedy=True).play(rows), strict=True):
            print(f"  {row['a']}*{row['b']} = {row['a'] * row['b']}: {' -> '.join(played.said)}")
    print(f"\nreport: {run_dir / 'report.html'}")
    serves = f".venv/bin/grpo-rollout serve {run_dir / 'model'}"
    print(f"serve the policy: {serves} --enable-auto-tool-choice --tool-call-parser hermes")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
