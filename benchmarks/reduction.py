"""An optimizer update of several micro-batches on two ranks: gradients reduced once a micro-batch, or once an update.

    python benchmarks/reduction.py [--turns T]

Two processes over Gloo, one thread each; a Qwen2 model (hidden 256, 4 layers, 8,000 tokens; 7 million parameters) in
bfloat16, 12 completions on each rank for every micro-batch. Both variants of a row train in turn in the same processes;
medians of wall seconds divided. ZeRO-1 keeps whole gradients and reduces once; ZeRO-2 is compared with it, ZeRO-3 with
`coalesce_grad_reduction`.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

RANKS, COMPLETIONS, TOKENS, MICRO_BATCHES = 2, 12, 24, (1, 8)
RESULTS = "seconds.json"
ONCE_A_MICRO_BATCH: dict[int, dict[str, Any]] = {2: {"zero_stage": 2}, 3: {"zero_stage": 3}}
ONCE_AN_UPDATE: dict[int, dict[str, Any]] = {
    2: {"zero_stage": 1},
    3: {"zero_stage": 3, "coalesce_grad_reduction": True},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=7, help="measurements of each side")
    parser.add_argument("--model", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.model:
        measure(arguments.model, arguments.turns)
        return
    print(f"{'ZeRO stage, micro-batches':<28}{'once each':>12}{'once':>12}{'once / each':>14}")
    for stage, count, each, once in in_ranks(arguments.turns):
        print(f"{f'{stage}, {count}':<28}{each:>11.3f}s{once:>11.3f}s{once / each:>14.2f}")


def in_ranks(turns: int) -> list[tuple[int, int, float, float]]:
    from tests.tiny_model import make_model, make_tokenizer

    with TemporaryDirectory() as folder:
        make_model(tied=False, hidden_size=256, num_layers=4, vocab_size=8000).save_pretrained(folder)
        make_tokenizer().save_pretrained(folder)
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
        command = [*launch, __file__, "--model", folder, "--turns", str(turns)]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        subprocess.run(command, check=True, capture_output=True, env=environment)
        return [tuple(row) for row in json.loads((Path(folder) / RESULTS).read_text())]


def measure(model: Path, turns: int) -> None:
    rows = []
    for stage in ONCE_A_MICRO_BATCH:
        engines = [engine_of(model, sharing) for sharing in (ONCE_A_MICRO_BATCH[stage], ONCE_AN_UPDATE[stage])]
        for count in MICRO_BATCHES:
            seconds: list[list[float]] = [[], []]
            for turn in range(turns + 1):
                for engine, of_engine in zip(engines, seconds, strict=True):
                    elapsed = seconds_of_update(engine, count)
                    if turn > 0:
                        of_engine.append(elapsed)
            rows.append([stage, count, *map(statistics.median, seconds)])
    if engines[0].rank == 0:
        (model / RESULTS).write_text(json.dumps(rows))


def engine_of(model: Path, sharing: dict[str, Any]) -> Any:
    from grpo_trainer.config.algorithm import AlgorithmConfig
    from grpo_trainer.config.optimization import DeepSpeedConfig, OptimizerConfig
    from grpo_trainer.config.run_config import ModelConfig
    from grpo_trainer.engine.training_engine import TrainingEngine

    return TrainingEngine(
        ModelConfig(name_or_path=str(model), dtype="bfloat16"),
        OptimizerConfig(),
        DeepSpeedConfig(**sharing),
        AlgorithmConfig(),
        temperature=1.0,
        total_updates=1000,
        seed=0,
    )


def seconds_of_update(engine: Any, count: int) -> float:
    """Wall seconds of one update of `count` micro-batches on each rank."""
    from tests.trainer.made_episodes import build_updates

    from grpo_trainer.algorithm.decisions import sequences_of
    from grpo_trainer.algorithm.sequences import single_turn

    episode = single_turn("e", [5] * TOKENS, [7] * TOKENS, versions=[(1, TOKENS)], finish_reason="stop")
    taken = [(episode, (-1.0) ** number) for number in range(RANKS * COMPLETIONS * count)]
    (update,) = build_updates(
        sequences_of(taken, engine.algorithm, max_completion_length=TOKENS),
        tokens_per_micro_batch=COMPLETIONS * 2 * TOKENS,
        rank=engine.rank,
        world_size=engine.world_size,
    )
    assert len(update) == count, f"{len(update)} micro-batches"
    torch.distributed.barrier()
    started = time.perf_counter()
    engine.update(update)
    return time.perf_counter() - started


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    main()
