"""Whole steps of a run against TRL's `GRPOTrainer` in one process, in turn: samples/s, and the ratio.

    python benchmarks/end_to_end.py [--turns 3] [--steps 24]

Same model, data, rewards and batch (32 prompts × 8 samples) on the same two cores. TRL samples with transformers' own
`generate`. Ours are three services on this machine: a rollout server, a reward server, and `grpo-train` with the
settings of `examples/countdown/run.yaml`: once with `max_staleness` 0, once with 1, where a batch is sampled while the
last one is trained on. Samples whose group has no spread are not computed (the default). As in the demo
rollout server and trainer have one thread each, which is the quickest for a model this small; TRL has what it takes.

- `short`: the model of the demo after its cold start, completions of 8 to 24 tokens.
- `ragged`: a model of random weights whose completions have 1 to 240 tokens, half of them under 70: each token ends one
  with the same probability.

A step's seconds are those of the sampling, rewards, training and push; the first four steps are left out. Run it while
nothing else does.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import yaml
from benchmarks.demo_services import BATCH_FLAGS, EXAMPLES, ROOT, as_flags, make_start, run, servers
from tests.processes import BIN

COMPLETIONS, GROUP, WARM_UP_STEPS = 256, 8, 4
CASES = {"short": 24, "ragged": 240}
"""The longest completion of each case, in tokens."""
SIDES = {"ours, max_staleness 0": 0, "ours, max_staleness 1": 1}
PLUGIN = ROOT / "tests" / "e2e" / "letters_reward.py"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=3, help="runs of each side")
    parser.add_argument("--steps", type=int, default=24, help="steps of a run that count")
    parser.add_argument("--trl", nargs=2, metavar=("CASE", "FOLDER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.trl:
        case, folder = arguments.trl
        print(json.dumps(trl_seconds(case, Path(folder), arguments.steps)))
        return
    print(f"{'samples/s, 256 a step':<32}{'TRL':>10}{'ours':>10}{'ours / TRL':>12}")
    for case in CASES:
        with TemporaryDirectory() as folder:
            found = measure(case, Path(folder), arguments.turns, arguments.steps)
        trl = COMPLETIONS / statistics.median(found["TRL"])
        for side in SIDES:
            ours = COMPLETIONS / statistics.median(found[side])
            print(f"{case + ', ' + side:<32}{trl:>10.0f}{ours:>10.0f}{ours / trl:>12.2f}", flush=True)


def measure(case: str, folder: Path, turns: int, steps: int) -> dict[str, list[float]]:
    """Seconds of a step, by side and turn."""
    model, rows = short_case(folder) if case == "short" else ragged_case(folder)
    seconds: dict[str, list[float]] = {"TRL": [], **{side: [] for side in SIDES}}
    # All sequences at once, as TRL's `generate` samples them.
    with servers(model, folder, *BATCH_FLAGS, plugin=PLUGIN) as urls:
        run_file = write_run_file(case, folder, model, rows, urls)
        for turn in range(turns):
            command = [sys.executable, __file__, "--steps", str(steps), "--trl", case, str(folder)]
            finished = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            seconds["TRL"].append(json.loads(finished.stdout.splitlines()[-1]))
            for side, staleness in SIDES.items():
                seconds[side].append(our_seconds(run_file, folder / f"run-{turn}-{staleness}", staleness, steps))
    return seconds


def short_case(folder: Path) -> tuple[Path, Path]:
    """The demo's model and rows."""
    make_start(42, folder)
    (folder / "cold-start").rename(folder / "model")
    (folder / "data" / "train.jsonl").rename(folder / "rows.jsonl")
    return folder / "model", folder / "rows.jsonl"


def ragged_case(folder: Path) -> tuple[Path, Path]:
    from tests.tiny_model import make_model, make_tokenizer

    make_model(tied=True, num_layers=4).save_pretrained(folder / "model")
    make_tokenizer().save_pretrained(folder / "model")
    rows = [{"prompt": f"write {number}", "target": number % 7} for number in range(1000)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "model", folder / "rows.jsonl"


def write_run_file(case: str, folder: Path, model: Path, rows: Path, urls: dict[str, str]) -> Path:
    settings: dict[str, Any] = yaml.safe_load((EXAMPLES / "run.yaml").read_text())
    settings["model"]["name_or_path"] = str(model)
    settings["data"] |= {"dataset": str(rows), "eval_dataset": None}
    settings["rollout"] |= {"urls": [urls["rollout.urls"]], "max_completion_length": CASES[case]}
    settings["reward"]["url"] = urls["reward.url"]
    if case == "ragged":
        del settings["data"]["recipe"]
        del settings["weights"]  # no push waits for the longest completion
        settings["reward"] |= {"reward_funcs": ["letters"], "reward_weights": [1.0], "accuracy_reward": None}
    settings |= {
        "eval": {"eval_steps": 0},
        "logging": {"report_to": []},
        "server": {"port": 0},
        "guards": {"clipped": "warn"},
    }
    file = folder / "run.yaml"
    file.write_text(yaml.safe_dump(settings))
    return file


def our_seconds(run_file: Path, run_dir: Path, staleness: int, steps: int) -> float:
    settings = {"run_dir": run_dir, "max_steps": WARM_UP_STEPS + steps, "algorithm.max_staleness": staleness}
    run("env", "OMP_NUM_THREADS=1", BIN / "grpo-train", run_file, *as_flags(settings))
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    counted = [row["step_time"] for row in rows if row.get("step", 0) > WARM_UP_STEPS and "step_time" in row]
    assert len(counted) == steps, f"{len(counted)} steps instead of {steps}"
    return statistics.fmean(counted)


def trl_seconds(case: str, folder: Path, steps: int) -> float:
    """Seconds of a step of TRL's trainer, in this process."""
    from trl import import_utils

    # `generate` samples here, and importing vLLM takes long.
    import_utils.is_vllm_available = lambda min_version=None: False
    from datasets import Dataset
    from tests.e2e.letters_reward import letters
    from transformers import AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from grpo_reward.rewards.countdown import countdown
    from grpo_reward.rewards.format import format_reward
    from grpo_trainer.data.recipes.countdown import QUESTION

    lines = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    if case == "short":
        texts = [QUESTION.format(nums=row["nums"], target=row["target"]) for row in lines]
        scored = {
            "countdown": lambda text, row: countdown(text, nums=row["nums"], target=row["target"]).score,
            "format": lambda text, _: format_reward(text),
        }
        weights = [1.0, 0.1]
    else:
        texts, weights = [row["prompt"] for row in lines], [1.0]
        scored = {"letters": lambda text, row: letters(text, target=row["target"])}
    rows = [row | {"prompt": [{"role": "user", "content": text}]} for row, text in zip(lines, texts, strict=True)]
    ended: list[float] = []

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *_: Any, **__: Any) -> None:
            ended.append(time.perf_counter())

    GRPOTrainer(
        model=str(folder / "model"),
        reward_funcs=[for_trl(name, score) for name, score in scored.items()],
        args=GRPOConfig(
            output_dir=str(folder / "trl"),
            use_cpu=True,
            bf16=False,
            report_to=[],
            disable_tqdm=True,
            save_strategy="no",
            logging_steps=1000,
            max_steps=WARM_UP_STEPS + steps,
            per_device_train_batch_size=COMPLETIONS,
            num_generations=GROUP,
            max_completion_length=CASES[case],
            reward_weights=weights,
            learning_rate=4e-4,
            warmup_steps=5,
            gradient_checkpointing=False,
            model_init_kwargs={"dtype": "float32"},
        ),
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(folder / "model"),
        callbacks=[Clock()],
    ).train()
    return (ended[-1] - ended[WARM_UP_STEPS - 1]) / steps


def for_trl(name: str, score: Callable[[str, dict[str, Any]], float]) -> Callable[..., list[float]]:
    """A reward of one text and its row, as TRL calls them."""

    def scores(completions: list[Any], **columns: Any) -> list[float]:
        texts = [completion[0]["content"] for completion in completions]
        return [score(text, {key: columns[key][k] for key in ("nums", "target") if key in columns})
                for k, text in enumerate(texts)]  # fmt: skip

    scores.__name__ = name
    return scores


if __name__ == "__main__":
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    main()
