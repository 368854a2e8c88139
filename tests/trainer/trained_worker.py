"""One rank of the tests of what is trained: runs every scenario of `test_trained_parameters.py`.

torchrun --nproc-per-node N trained_worker.py FOLDER
"""

from functools import partial
from importlib.util import find_spec
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import torch
from tests.trainer.made_engines import equal, new_engine, new_lora_engine, pushed, updates_of, weights
from tests.trainer.made_episodes import make_taken
from tests.trainer.tested_rank import Scenario, run_scenarios
from tests.trainer.trained_cases import OPTIMIZED

from grpo_trainer.config.algorithm import AlgorithmConfig
from grpo_trainer.config.optimization import OptimizerConfig
from grpo_trainer.engine.training_engine import TrainingEngine
from grpo_trainer.errors import UsageError

GRADIENT_SCALE = 1000.0
RATE = 1e-3
FROZEN = [r"layers\.0\.", "lm_head"]
"""The head of a tied model is its embedding."""
KEPT = ["layers.0.mlp"]


def train(engine: TrainingEngine, seeds: range) -> list[dict[str, float]]:
    results = []
    for seed in seeds:
        updates = updates_of(engine, make_taken(9, seed=seed), budget=40)
        engine.prepare(updates)
        results += [engine.update(update) for update in updates]
    return results


def gradient(folder: Path, stage: int, dtype: str, model: str) -> dict[str, Any]:
    """One step of plain descent with a huge rate, of the whole model and of one with frozen parameters."""
    moved, engines = [], []
    for patterns in ({}, {"frozen": FROZEN, "but": KEPT}):
        engine = new_engine(
            folder, stage=stage, dtype=dtype, model=model, gradient_checkpointing=stage == 2, **patterns,
            algorithm=AlgorithmConfig(loss_type="grpo", beta=0.1, entropy_coef=0.01 if stage else 0.0),
            optimizer=OptimizerConfig(name="sgd", learning_rate=GRADIENT_SCALE, max_grad_norm=1e9),
        )  # fmt: skip
        before = weights(engine)
        train(engine, range(3, 4))
        after = weights(engine)
        moved.append({name: after[name] - before[name] for name in before})
        engines.append(engine)
    whole, part = moved
    frozen = engines[1]
    sent, state = pushed(frozen), frozen.whole_state()
    still = [name for name in part if not part[name].any()]
    return {
        "still": still,
        "differ": [name for name in part if name not in still and not torch.equal(part[name], whole[name])],
        "pushed": sorted(sent),
        "push_is_the_model": frozen.rank > 0 or equal(sent, {name: state[name] for name in sent}),
        "absent": frozen.export.absent,
    }


def continued(folder: Path, stage: int, dtype: str) -> dict[str, Any]:
    """Two updates, a checkpoint, two more; these again from the checkpoint, in a new engine and in the same."""
    world_size = torch.distributed.get_world_size()
    places = {ranks: folder / f"checkpoint-{ranks}-{stage}-{dtype}" for ranks in (1, 2)}
    make = partial(
        new_engine, folder, stage=stage, dtype=dtype, frozen=FROZEN, but=KEPT,
        # A large epsilon: Adam would turn a rounding of a gradient near 0 into a whole step.
        optimizer=OptimizerConfig(learning_rate=1e-3, weight_decay=0.1, adam_epsilon=1e-3),
    )  # fmt: skip
    engine = make()
    train(engine, range(2))
    places[world_size].mkdir(exist_ok=True)
    engine.save(places[world_size])
    torch.distributed.barrier()
    metrics, end = train(engine, range(2, 4)), weights(engine)
    resumed = make()
    resumed.load(places[world_size])
    again, final = train(resumed, range(2, 4)), weights(resumed)
    engine.load(places[world_size])
    gone_back = train(engine, range(2, 4)) == metrics and equal(end, weights(engine))
    message, after_reshaping = "", None
    if world_size == 2:  # one rank has run all this before
        engine.load(places[1])
        train(engine, range(2, 4))
        after_reshaping = max((tensor - end[name]).abs().max().item() for name, tensor in weights(engine).items())
    else:
        try:
            new_engine(folder, stage=stage, dtype=dtype, frozen=FROZEN).load(places[1])
        except UsageError as error:
            message = str(error)
    return {
        "goes_on": metrics == again and equal(end, final) and gone_back,
        "after_reshaping": after_reshaping,
        "message": message,
        "bytes": [
            sum(file.stat().st_size for file in places[world_size].rglob("*") if file.is_file()),
            engine.num_checkpoint_bytes,
        ],
    }


def optimized(folder: Path, name: str, stage: int, dtype: str) -> dict[str, Any]:
    """Two updates by an optimizer, a checkpoint, another, and that again from the checkpoint; beside two of AdamW."""
    world_size = torch.distributed.get_world_size()
    # A large epsilon: Adam would turn a rounding of a gradient near 0 into a whole step.
    settings = OptimizerConfig(name=name, learning_rate=1e-3, weight_decay=0.1, adam_epsilon=1e-3)
    make = partial(new_engine, folder, stage=stage, dtype=dtype, optimizer=settings)
    engine, plain = make(), new_engine(
        folder, stage=stage, dtype=dtype, optimizer=settings.model_copy(update={"name": "adamw"})
    )  # fmt: skip
    start = weights(engine)
    for each in (engine, plain):
        train(each, range(2))
    moved, expected = ({key: value - start[key] for key, value in weights(each).items()} for each in (engine, plain))
    place = folder / f"{name}-{world_size}-{stage}-{dtype}"
    place.mkdir(exist_ok=True)
    engine.save(place)
    torch.distributed.barrier()
    metrics, end = train(engine, range(2, 3)), weights(engine)
    resumed = make()
    resumed.load(place)
    goes_on = train(resumed, range(2, 3)) == metrics and equal(end, weights(resumed))
    engine.load(place)
    goes_on = goes_on and train(engine, range(2, 3)) == metrics and equal(end, weights(engine))
    on_disk = sum(file.stat().st_size for file in place.rglob("*.pt" if stage == 0 else "*optim_states.pt"))
    return {
        "goes_on": goes_on,
        "moved": max(value.abs().max().item() for value in moved.values()),
        "from_adamw": max((moved[key] - expected[key]).abs().max().item() for key in moved),
        "bytes": [on_disk, sum(value.numel() for value in start.values())],
    }


def refused_on_other_ranks(folder: Path) -> dict[str, str]:
    engine = new_engine(folder, stage=2, optimizer=OptimizerConfig(name="adamw_8bit"))
    try:
        engine.load(folder / "adamw_8bit-1-2-float32")
    except UsageError as error:
        return {"message": str(error)}
    return {}


def lora_plus(folder: Path, stage: int, dtype: str) -> dict[str, Any]:
    """Three updates with B at eight times the rate of A, a checkpoint, another update, and that again from there."""
    world_size = torch.distributed.get_world_size()
    settings = OptimizerConfig(
        learning_rate=RATE, loraplus_lr_ratio=8.0, adam_epsilon=1e-12, lr_scheduler_type="linear",
        warmup_steps=4,
    )  # fmt: skip
    make = partial(new_lora_engine, folder, stage=stage, dtype=dtype, optimizer=settings)
    engine = make()
    seen = [weights(engine)]
    metrics = []
    for seed in range(3):
        metrics += train(engine, range(seed, seed + 1))
        seen.append(weights(engine))
    steps = {
        half: [
            max((after[n] - before[n]).abs().max().item() for n in before if f".lora_{half}." in n)
            for before, after in pairwise(seen)
        ]
        for half in "AB"
    }
    places = {ranks: folder / f"plus-{ranks}-{stage}-{dtype}" for ranks in (1, 2)}
    places[world_size].mkdir(exist_ok=True)
    engine.save(places[world_size])
    torch.distributed.barrier()
    after, end = train(engine, range(3, 4)), weights(engine)
    resumed = make()
    resumed.load(places[world_size])
    goes_on = train(resumed, range(3, 4)) == after and equal(end, weights(resumed))
    message = ""
    if world_size == 2:  # one rank has run all this before
        engine.load(places[1])
        ratios = [group["lr_ratio"] for group in engine._engine.optimizer.param_groups]
        train(engine, range(3, 4))
        goes_on = goes_on and ratios == [1.0, 8.0]
    else:
        try:
            new_lora_engine(folder, stage=stage, dtype=dtype).load(places[1])
        except UsageError as error:
            message = str(error)
    return {
        "steps": steps, "rates": [of_update["learning_rate"] for of_update in metrics], "goes_on": goes_on,
        "message": message,
    }  # fmt: skip


def scenarios(folder: Path, world_size: int) -> dict[str, Scenario]:
    found: dict[str, Scenario] = {}
    for stage in (0, 2, 3) if world_size == 1 else (2, 3):
        model = "untied" if stage == 0 else "tied"
        found[f"gradient {stage}"] = partial(gradient, folder, stage, "float32", model)
        for dtype in ("float32", "bfloat16"):
            if stage or dtype == "float32":
                found[f"continued {stage} {dtype}"] = partial(continued, folder, stage, dtype)
    names = ["sgd", "adamw_8bit"] if find_spec("bitsandbytes") else ["sgd"]
    optimized_stages = OPTIMIZED | ({0: "float32"} if world_size == 1 else {})
    for name, (stage, dtype) in product(names, optimized_stages.items()):
        found[f"{name} {stage} {dtype}"] = partial(optimized, folder, name, stage, dtype)
    for stage, dtype in optimized_stages.items():
        found[f"plus {stage} {dtype}"] = partial(lora_plus, folder, stage, dtype)
    if world_size == 2 and find_spec("bitsandbytes"):
        found["other ranks"] = partial(refused_on_other_ranks, folder)
    return found


if __name__ == "__main__":
    run_scenarios(scenarios)
