"""Two revisions of the trainer, one result: the same run by each, compared to the bit.

    python benchmarks/revisions.py OTHER_TREE [--this "--SECTION.KEY VALUE ..."] [--other "..."]

A refactoring proves itself so. Both runs are in float32 with `max_staleness` 0, against the same servers of this tree,
which start once: one rank, then two ranks with ZeRO-2. `--this` and `--other` are settings of one revision alone, for
what the two spell differently. Compared is what the survival tests compare: completions, with
their metrics, and the final weights. Then a run that the other revision began is resumed by this one: its checkpoints
and run files go on.
"""

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import yaml
from tests.e2e.runs import assert_same_run
from tests.processes import ROLLOUT_ENVIRONMENT, free_port, reward_command, rollout_command, service
from tests.tiny_model import save_tiny_model

ROOT = Path(__file__).parents[1]
RANKS = {"one rank": ("0", "1"), "two ranks, ZeRO-2": ("2", "2")}


def run_file(folder: Path, model: Path, rollout_url: str, reward_url: str) -> Path:
    rows = folder / "rows.jsonl"
    words = ["ab", "cde", "f", "ghij"] * 6
    rows.write_text("".join(f'{{"prompt": "write {word}", "target": {n}}}\n' for n, word in enumerate(words)))
    config = {
        "run_dir": str(folder / "run"),
        "max_steps": 4,
        "model": {"name_or_path": str(model), "dtype": "float32"},
        "data": {"dataset": str(rows)},
        "rollout": {"urls": [rollout_url], "num_generations": 4, "generation_batch_size": 32},
        "reward": {"url": reward_url, "reward_funcs": ["letters"]},
        "algorithm": {"num_iterations": 2, "steps_per_generation": 2},
        "optimizer": {"learning_rate": 1e-3},
        "deepspeed": {"tokens_per_micro_batch": 512},
        "checkpoint": {"save_steps": 1, "save_total_limit": 10},
        "server": {"port": 0},
    }
    config["rollout"] |= {"max_completion_length": 12, "prompts_per_request": 4}
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def train(revision: tuple[Path, list[str]], file: Path, run_dir: Path, zero_stage: str, ranks: str, *more: str) -> None:
    tree, settings = revision
    paths = os.pathsep.join(str(tree / part) for part in ("proto", "services/trainer"))
    command = [sys.executable, "-m", "grpo_trainer", file, "--run_dir", run_dir]
    flags = ["--deepspeed.zero_stage", zero_stage, "--deepspeed.nproc_per_node", ranks, *settings, *more]
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    subprocess.run(list(map(str, [*command, *flags])), env=environment, check=True, timeout=300)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tree", type=Path, help="a checkout of the other revision")
    for which in ("this", "other"):
        parser.add_argument(f"--{which}", type=shlex.split, default=[], help=f"settings of {which} revision's runs")
    args = parser.parse_args()
    this, other = (ROOT, args.this), (args.tree.resolve(), args.other)
    with tempfile.TemporaryDirectory(prefix="grpo-revisions-") as name:
        folder = Path(name)
        model = save_tiny_model(folder / "model")
        rollout_port, reward_port = free_port(), free_port()
        sampling = rollout_command(model, rollout_port, "--dtype", "float32", "--enforce-eager")
        scoring = reward_command(reward_port, "--plugin", ROOT / "tests/e2e/letters_reward.py")
        with (
            service(sampling, folder / "rollout.log", port=rollout_port, environment=ROLLOUT_ENVIRONMENT) as rollout,
            service(scoring, folder / "reward.log", port=reward_port) as reward,
        ):
            reward.wait_until_live(60)
            rollout.wait_until_live()
            file = run_file(folder, model, rollout.url, reward.url)
            for what, (zero_stage, ranks) in RANKS.items():
                runs = [folder / f"{which}-{ranks}" for which in ("this", "other")]
                for revision, run_dir in zip((this, other), runs, strict=True):
                    train(revision, file, run_dir, zero_stage, ranks)
                assert_same_run(*runs)
                print(f"{what}: the same completions and weights, to the bit", flush=True)
                resumed = folder / f"resumed-{ranks}"
                train(other, file, resumed, zero_stage, ranks, "--max_steps", "2")
                train(this, file, resumed, zero_stage, ranks, "--resume")
                assert_same_run(resumed, runs[1])
                print(f"{what}: begun by the other revision and resumed by this one, the same to the bit", flush=True)


if __name__ == "__main__":
    main()
