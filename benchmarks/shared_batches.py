"""The demo's own batches, with shared prefixes and in padded rows: the same loss and gradient, and in what time.

    python benchmarks/shared_batches.py [--turns 3]

A run of `examples/countdown/run.yaml`, synchronous, computes the batches of steps 1, 20, 100 and 200 both ways under
the same weights before it trains on them: the update's loss, the norm of its gradient and the largest difference of a
gradient's element over that norm, and the processor seconds and wall seconds of planning, forward and backward pass,
medians of `turns` in turn. One thread, then two. The servers have nothing to do meanwhile. Run it while nothing else
does: about five minutes.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from benchmarks.demo_services import BATCH_FLAGS, EXAMPLES, as_flags, make_start, servers

from grpo_trainer import rank_work
from grpo_trainer.algorithm.batching import micro_batches
from grpo_trainer.algorithm.planning import plan_updates
from grpo_trainer.algorithm.sequences import MicroBatch, TrainingSequence
from grpo_trainer.algorithm.surrogates import surrogate_of
from grpo_trainer.engine.batch_loss import batch_loss
from grpo_trainer.engine.training_engine import TrainingEngine

STEPS = (1, 20, 100, 200)
THREADS = (1, 2)
BOUNDS = {1: 0.35, 2: 0.5}

Made = list[list[MicroBatch]]
Gradient = tuple[float, list[torch.Tensor]]


class Compared:
    """`TrainingEngine.update`, before which the batch is computed both ways at some steps."""

    def __init__(self, turns: int, tokens_per_micro_batch: int):
        self.turns, self.tokens_per_micro_batch = turns, tokens_per_micro_batch
        self.own: list[TrainingSequence] = []
        self.given: tuple[Any, ...] = ()
        self.how: dict[str, Any] = {}

    def install(self) -> None:
        make, update = rank_work.micro_batches, TrainingEngine.update

        def recorded(own: Sequence[TrainingSequence], *given: Any, **how: Any) -> Made:
            self.own, self.given, self.how = list(own), given, how
            return make(own, *given, **how)

        def compared(engine: TrainingEngine, batches: Sequence[MicroBatch]) -> dict[str, float]:
            if engine.updates_done + 1 in STEPS:
                self.compare(engine)
            return update(engine, batches)

        rank_work.micro_batches = recorded
        TrainingEngine.update = compared  # type: ignore[method-assign]

    def compare(self, engine: TrainingEngine) -> None:
        step = engine.updates_done + 1
        sides = {"shared": engine.prefixes, "padded": None}
        shared, padded = (self.computed(engine, prefixes) for prefixes in sides.values())
        norms = [torch.stack([g.double().norm() for g in grads]).norm().item() for _, grads in (shared, padded)]
        largest = max((a - b).abs().max().item() for a, b in zip(shared[1], padded[1], strict=True))
        line = f"step {step:<4} loss {padded[0]:+.6f} ({abs(shared[0] - padded[0]):.0e} apart)"
        line += f"  norm {norms[1]:.4f} ({abs(norms[0] / norms[1] - 1):.0e})  element {largest / norms[1]:.0e}"
        before = torch.get_num_threads()
        for threads in THREADS:
            torch.set_num_threads(threads)
            seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
            for _ in range(self.turns):
                for name, prefixes in sides.items():
                    seconds[name].append(timed(lambda prefixes=prefixes: self.computed(engine, prefixes)))
            cpu, wall = (
                statistics.median(found[kind] for found in seconds["shared"])
                / statistics.median(found[kind] for found in seconds["padded"])
                for kind in (0, 1)
            )
            line += f"  {threads} threads: {cpu:.2f} of the CPU s, {wall:.2f} of the wall s ({BOUNDS[threads]})"
        torch.set_num_threads(before)
        print(line, flush=True)

    def computed(self, engine: TrainingEngine, prefixes: Any) -> Gradient:
        """Loss and gradient of the update, planned anew. The engine's own gradients stay as they are."""
        plan = plan_updates(
            self.own, world_size=1, tokens_per_micro_batch=self.tokens_per_micro_batch, prefixes=prefixes, num_updates=1
        )
        (update,) = micro_batches(
            self.own, [ranks[0] for ranks in plan], *self.given[1:], **self.how | {"prefixes": prefixes}
        )
        parameters = [one for one in engine.policy.parameters() if one.requires_grad]
        total, grads = 0.0, [torch.zeros_like(one) for one in parameters]
        for batch in update:
            surrogate = surrogate_of(engine.algorithm)
            loss, _ = batch_loss(engine.policy, batch, engine.algorithm, surrogate, entropy_coef=0.0, fills_old=True)
            total += loss.item()
            for grad, found in zip(grads, torch.autograd.grad(loss, parameters), strict=True):
                grad += found
        return total, grads


def timed(work: Callable[[], Any]) -> tuple[float, float]:
    started = time.process_time(), time.perf_counter()
    work()
    return time.process_time() - started[0], time.perf_counter() - started[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=3)
    turns = parser.parse_args().turns
    from grpo_trainer.__main__ import main as grpo_train

    with TemporaryDirectory() as name:
        folder = Path(name)
        make_start(42, folder)
        with servers(folder / "cold-start", folder, *BATCH_FLAGS) as urls:
            settings = {
                "run_dir": folder / "run",
                "max_steps": max(STEPS),
                "model.name_or_path": folder / "cold-start",
                "data.dataset": folder / "data" / "train.jsonl",
                "data.eval_dataset": folder / "data" / "held_out.jsonl",
                "eval.eval_steps": 0,
                "algorithm.max_staleness": 0,
                "logging.report_to": "[]",
                "server.port": 0,
                **urls,
            }
            Compared(turns, tokens_per_micro_batch=8192).install()
            words = [str(word) for word in (EXAMPLES / "run.yaml", *as_flags(settings))]
            sys.exit(grpo_train(words))


if __name__ == "__main__":
    main()
