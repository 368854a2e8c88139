"""One rank of `test_reshaping.py`: trains and saves, or goes on from what another number of ranks has saved.

torchrun --nproc-per-node N reshape_worker.py FOLDER

A run saves and goes on undisturbed, unless there are checkpoints already; it goes on from those of another number of
ranks, in an engine that has trained, and saves them again at once.
"""

import os
import shutil
from pathlib import Path
from typing import Any

import torch
from tests.trainer import made_engines
from tests.trainer.made_engines import updates_of, weights
from tests.trainer.made_episodes import make_taken
from tests.trainer.tested_rank import this_rank

from grpo_trainer.config.algorithm import AlgorithmConfig
from grpo_trainer.config.lora import LoraConfig
from grpo_trainer.config.optimization import OptimizerConfig
from grpo_trainer.engine.state import STATE_TAG
from grpo_trainer.engine.training_engine import TrainingEngine
from grpo_trainer.errors import UsageError

OTHER_SETTINGS = OptimizerConfig(
    learning_rate=1e-3, lr_scheduler_type="constant", weight_decay=100.0, adam_epsilon=1e3, max_grad_norm=1e-3
)
"""With them an update makes each matrix a tenth smaller, and Adam's own step is nothing."""


def new_engine(folder: Path, stage: int, dtype: str, optimizer: OptimizerConfig | None = None) -> TrainingEngine:
    """In float32 the reference moves; stage -2 and -3 are 2 and 3 with an adapter."""
    if stage < 0:
        return made_engines.new_lora_engine(folder, stage=-stage, dtype=dtype, lora=LoraConfig(r=3, alpha=8))
    return made_engines.new_engine(
        folder,
        stage=stage,
        dtype=dtype,
        # An odd number of numbers: parts of two ranks are padded.
        model="odd",
        algorithm=AlgorithmConfig(
            loss_type="dapo", beta=0.05, sync_ref_model=dtype == "float32", ref_model_mixup_alpha=0.3
        ),
        # A large epsilon: Adam would turn a rounding of a gradient near 0 into a whole step.
        optimizer=optimizer or OptimizerConfig(learning_rate=1e-3, weight_decay=0.1, adam_epsilon=1e-3),
    )


def train(engine: TrainingEngine, seeds: range) -> list[dict[str, float]]:
    results = []
    for seed in seeds:
        updates = updates_of(engine, make_taken(9, seed=seed), steps=2)
        engine.prepare(updates)
        results += [engine.update(update) for update in updates]
        if engine.algorithm.sync_ref_model:
            engine.sync_reference()
    return results


def saved_place(folder: Path, num_ranks: int, stage: int, dtype: str) -> Path:
    return folder / f"saved-{num_ranks}-{stage}-{dtype}"


def undisturbed(folder: Path, stage: int, dtype: str) -> TrainingEngine:
    """A batch, a checkpoint, another batch."""
    engine = new_engine(folder, stage, dtype)
    place = saved_place(folder, engine.world_size, stage, dtype)
    train(engine, range(1))
    save(engine, place)
    torch.rand(engine.rank + 1)
    results = train(engine, range(1, 2))
    end = weights(engine)
    if engine.rank == 0:
        torch.save((results, end), place / "end.pt")
    return engine


def resumed(engine: TrainingEngine, folder: Path, num_ranks: int, stage: int, dtype: str) -> dict[str, Any]:
    place = saved_place(folder, num_ranks, stage, dtype)
    engine.load(place)
    drawn = torch.rand(2).tolist()
    save(engine, place / "again")
    expected, expected_end = torch.load(place / "end.pt")
    results, end = train(engine, range(1, 2)), weights(engine)
    return {
        "drawn": drawn,
        "num_checkpoint_bytes": engine.num_checkpoint_bytes,
        "results": results,
        "expected": expected,
        "difference": max((end[name] - expected_end[name]).abs().max().item() for name in expected_end),
    }


def with_other_settings(folder: Path, num_ranks: int, stage: int, dtype: str) -> dict[str, Any]:
    """Measure how far two updates are from what the run file says, after a load of what other settings saved."""
    engine = new_engine(folder, stage, dtype, OTHER_SETTINGS)
    engine.load(saved_place(folder, num_ranks, stage, dtype))
    before = weights(engine)
    train(engine, range(1, 2))
    after = weights(engine)
    decay = (1 - OTHER_SETTINGS.learning_rate * OTHER_SETTINGS.weight_decay) ** 2
    differences = [(after[name] - decay * before[name]).abs().max() for name in after if after[name].dim() > 1]
    return {"difference": max(differences).item(), "clip": getattr(engine._engine.optimizer, "clip_grad", None)}


def save(engine: TrainingEngine, place: Path) -> None:
    place.mkdir(exist_ok=True)
    engine.save(place)


class MakesFolder:
    """Does so when it is unpickled."""

    def __init__(self, folder: Path):
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.folder),)


def refused(engine: TrainingEngine, place: Path) -> str:
    """What a load of this checkpoint says, with a program in the file of each rank's optimizer."""
    copy, run = place / f"changed-{engine.world_size}-{engine.rank}", place / "run"
    shutil.copytree(place / STATE_TAG, copy / STATE_TAG)
    for file in (copy / STATE_TAG).glob("*optim_states.pt"):
        torch.save({"optimizer_state_dict": MakesFolder(run)}, file)
    try:
        engine.load(copy)
    except UsageError as error:
        assert not run.exists()
        return error.message
    raise AssertionError("it was loaded")


def main(folder: Path, results: dict[str, Any]) -> None:
    num_ranks = torch.distributed.get_world_size()
    cases = [*((stage, "float32") for stage in (0, 1, 2, 3, -2, -3)), (0, "bfloat16"), (3, "bfloat16")]
    for stage, dtype in cases:
        saved_before = saved_place(folder, num_ranks, stage, dtype).exists()
        engine = (new_engine if saved_before else undisturbed)(folder, stage, dtype)
        if saved_place(folder, 3 - num_ranks, stage, dtype).exists():
            results[f"{stage} {dtype}"] = resumed(engine, folder, 3 - num_ranks, stage, dtype)
            if stage >= 0:
                others = [with_other_settings(folder, ranks, stage, dtype) for ranks in (1, 2)]
                results[f"{stage} {dtype} with other settings"] = others
            if stage == 3:
                results["refused"] = [refused(engine, saved_place(folder, ranks, stage, dtype)) for ranks in (1, 2)]


if __name__ == "__main__":
    with this_rank() as (folder, results):
        main(folder, results)
