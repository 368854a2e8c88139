"""One rank of the engine tests: runs every scenario of `test_engine.py` and writes what it saw to a file.

    torchrun --nproc-per-node N engine_worker.py FOLDER

A real process group and real DeepSpeed engines, one after another: starting Python is what takes long.
"""

from functools import partial
from pathlib import Path
from typing import Any

import torch
from deepspeed.runtime.zero import stage3
from tests.trainer.engine_cases import BALANCED, EXPORTED, SHARED, TOGETHER
from tests.trainer.made_engines import (
    LayerPasses,
    balanced,
    equal,
    exported,
    imitation_of,
    new_engine,
    pushed,
    reference_weights,
    updates_of,
    weights,
)
from tests.trainer.made_episodes import build_updates, decided, make_taken
from tests.trainer.seen_engines import scenarios_with_images
from tests.trainer.tested_rank import Scenario, run_scenarios

from grpo_trainer.algorithm.skipping import sequences_to_compute
from grpo_trainer.checkpoint.file_writer import FileWriter
from grpo_trainer.config.algorithm import AlgorithmConfig
from grpo_trainer.config.optimization import OptimizerConfig
from grpo_trainer.engine import policy
from grpo_trainer.engine.model import load_policy
from grpo_trainer.engine.training_engine import TrainingEngine
from grpo_trainer.errors import RunError, UsageError

GRADIENT_SCALE = 1000.0


def gradient(
    folder: Path,
    stage: int,
    budget: int,
    checkpointing: bool,
    count: int = 13,
    *,
    top_quantile: float = 1.0,
    entropy_coef: float = 0.01,
    share: str = "never",
    imitates: bool = False,
    together: int = 1,
) -> dict[str, Any]:
    """The engine's gradient of one update: plain descent with a huge rate, then the difference of the weights.

    Without an entropy bonus the output head computes gradients in the forward pass.
    """
    engine = new_engine(
        folder,
        stage=stage,
        optimizer=OptimizerConfig(name="sgd", learning_rate=GRADIENT_SCALE, max_grad_norm=1e9),
        algorithm=AlgorithmConfig(
            loss_type="grpo", beta=0.1, entropy_coef=entropy_coef, top_entropy_quantile=top_quantile
        ),
        gradient_checkpointing=checkpointing,
        overlap_comm=checkpointing and stage > 1,
        share=share,
        together=together,
    )
    updates = updates_of(engine, make_taken(count, seed=3, stale_share=0.3), budget=budget, together=together)
    before = weights(engine)
    engine.prepare(updates)
    passes = LayerPasses(engine)
    metrics = engine.update(updates[0], imitation_of(engine, budget=budget, together=together) if imitates else None)
    after = weights(engine)
    found = {name: (before[name].double() - after[name].double()) / GRADIENT_SCALE for name in before}
    if engine.rank == 0:
        name = "-imitation" if imitates else "" if share == "never" else "-shared"
        name = "-together" if together > 1 else name
        torch.save(found, folder / f"gradient-{engine.world_size}-{stage}-{budget}-{checkpointing}-{count}{name}.pt")
    shared = [batch.layout is not None for batch in updates[0]]
    return metrics | {
        "micro_batches": len(updates[0]),
        "shared_micro_batches": sum(shared),
        "layer_passes": passes.count,
        "overlaps": getattr(engine._engine.optimizer, "overlap_comm", None),
    }


def unread(folder: Path) -> dict[str, Any]:
    """An update of one sequence, whose layers do not read the layout: one of two ranks has nothing to compute."""
    engine = new_engine(folder, stage=2)
    (update,) = updates_of(engine, make_taken(1))
    shared_name, policy.shared_name = policy.shared_name, lambda attention: attention
    try:
        engine.update(update)
    except RunError as error:
        return {"message": str(error), "num_trained": sum(batch.weight_N.numel() for batch in update)}
    finally:
        policy.shared_name = shared_name
    return {}


def offloaded(folder: Path, stage: int) -> dict[str, Any]:
    """Two updates, with the optimizer's state beside the weights, and with it in CPU memory."""
    engines = [new_engine(folder, stage=stage, offload_optimizer=offloads) for offloads in (False, True)]
    for engine in engines:
        for seed in range(2):
            updates = updates_of(engine, make_taken(9, seed=seed))
            engine.prepare(updates)
            engine.update(updates[0])
    name = "offload_optimizer" if stage == 3 else "cpu_offload"
    offloads = [bool(getattr(engine._engine.optimizer, name)) for engine in engines]
    plain, other = map(weights, engines)
    # Leave out the key biases: what is added to all keys changes no softmax, so their gradient is rounding, of which
    # Adam makes whole steps.
    compared = [name for name in plain if not name.endswith("k_proj.bias")]
    return {"offloads": offloads, "difference": max((plain[n] - other[n]).abs().max().item() for n in compared)}


def continued(folder: Path, stage: int, dtype: str) -> dict[str, Any]:
    """Two updates, a checkpoint, two more; these again from the checkpoint, in a new engine and in the same.

    In float32 the reference model moves after each batch, and the checkpoint is written while training goes on.
    """
    checkpoint = folder / f"checkpoint-{torch.distributed.get_world_size()}-{stage}-{dtype}"
    moves = dtype == "float32"
    # The entropy is below the target: its coefficient rises with every update.
    algorithm = AlgorithmConfig(
        loss_type="dapo", beta=0.05, sync_ref_model=moves, ref_model_mixup_alpha=0.3,
        entropy_coef=0.01, use_adaptive_entropy=True, entropy_target=9.0,
    )  # fmt: skip

    def train(engine: TrainingEngine, seeds: range) -> list[dict[str, float]]:
        results = []
        for seed in seeds:
            updates = updates_of(engine, make_taken(9, seed=seed), steps=2)
            engine.prepare(updates)
            results += [engine.update(update) for update in updates]
            if moves:
                engine.sync_reference()
        return results

    engine = new_engine(folder, stage=stage, dtype=dtype, algorithm=algorithm)
    first_model = weights(engine)
    first = train(engine, range(1))[0]
    start = weights(engine)
    moved = moved_reference(engine, folder, first_model, start) if moves else {}
    torch.rand(3)
    checkpoint.mkdir(exist_ok=True)
    writer = FileWriter(checkpoint, in_background=moves)
    engine.save(checkpoint, writer.write)
    metrics, end, drawn = train(engine, range(1, 3)), weights(engine), torch.rand(2).tolist()
    writer.described(wait=True, beat=lambda: None)
    torch.distributed.barrier()

    resumed = new_engine(folder, stage=stage, dtype=dtype, algorithm=algorithm)
    resumed.load(checkpoint)
    loaded = weights(resumed)
    again, final, drawn_again = train(resumed, range(1, 3)), weights(resumed), torch.rand(2).tolist()
    engine.load(checkpoint)
    gone_back = weights(engine)
    return {
        "same_start": equal(start, loaded),
        "same_after_going_back": equal(start, gone_back)
        and train(engine, range(1, 3)) == metrics
        and equal(end, weights(engine))
        and torch.rand(2).tolist() == drawn,
        "moved": not equal(start, end),
        "same_metrics": metrics == again,
        "same_end": equal(end, final),
        "same_random_numbers": drawn == drawn_again,
        "first_grad_norm": first["grad_norm"],
        "rates": [first["learning_rate"], metrics[0]["learning_rate"], again[-1]["learning_rate"]],
        "updates_done": [engine.updates_done, resumed.updates_done],
        "kl": metrics[-1]["kl"],
        **moved,
        "entropy_coefs": [of_update["entropy_coef"] for of_update in again],
    }


def moved_reference(
    engine: TrainingEngine, folder: Path, first: dict[str, torch.Tensor], policy: dict[str, torch.Tensor]
) -> dict[str, float]:
    """The reference after its first move, for TRL to repeat; and how far what it computes is from its weights."""
    reference = reference_weights(engine)
    if engine.rank == 0:
        torch.save([first, policy, reference], folder / f"moved-{engine.zero_stage}.pt")
    (batch,) = updates_of(engine, make_taken(6, seed=2), budget=10_000)[0]
    (logprobs_N,) = engine.logprobs([batch], reference=True)
    plain = load_policy(engine.model_config, temperature=0.9, zero3=None)
    plain.model.load_state_dict(reference, strict=False)  # a tied head is there under one name
    with torch.no_grad():
        expected_N = plain(*batch.inputs)[0]
    return {"reference_difference": (logprobs_N - expected_N).abs().max().item()}


def heard(folder: Path) -> dict[str, int]:
    """Heartbeats of an update of three micro-batches or more, of a push and of a checkpoint."""
    engine, beats = new_engine(folder, stage=2), []
    engine.beat = lambda: beats.append(None)
    updates = updates_of(engine, make_taken(9, seed=1), budget=30)
    place = folder / "heard"
    place.mkdir(exist_ok=True)
    counts = {"micro_batches": len(updates[0])}
    for name, work in (
        ("update", lambda: engine.update(updates[0])),
        ("push", lambda: pushed(engine)),
        ("save", lambda: engine.save(place)),
    ):
        beats.clear()
        work()
        counts[name] = len(beats)
    return counts


def other_layout(folder: Path) -> dict[str, Any]:
    """A checkpoint of ZeRO 2 refused by ZeRO 3, and a folder without one."""
    checkpoint = folder / f"checkpoint-{torch.distributed.get_world_size()}-2-float32"
    engine, messages = new_engine(folder, stage=3), []
    for place in (checkpoint, folder / "tied"):
        try:
            engine.load(place)
        except UsageError as error:
            messages.append(str(error))
    return {"messages": messages}


def not_finite(folder: Path, stage: int, dtype: str) -> dict[str, Any]:
    """One rank's gradient is NaN: no rank moves; the next update does; too many in a row stop the run."""
    engine = new_engine(
        folder, stage=stage, dtype=dtype, optimizer=OptimizerConfig(learning_rate=1e-2, max_skipped_updates=2)
    )
    samples = make_taken(8, seed=5)
    broken = [*samples[:-1], (samples[-1][0], float("nan"))]
    engine.update(updates_of(engine, samples)[0])
    before = weights(engine)
    skipped = engine.update(updates_of(engine, broken)[0])
    unchanged = equal(before, weights(engine))
    normal = engine.update(updates_of(engine, samples)[0])
    moved = not equal(before, weights(engine))
    tolerated, message = 0, ""
    try:
        while tolerated < 5:
            engine.update(updates_of(engine, broken)[0])
            tolerated += 1
    except RunError as error:
        message = str(error)
    finite = all(bool(tensor.isfinite().all()) for tensor in weights(engine).values())
    return {
        "skipped": skipped,
        "unchanged": unchanged,
        "normal": normal,
        "moved": moved and finite,
        "tolerated": tolerated,
        "message": message,
        "count": engine.skipped.count,
    }


def several_updates(folder: Path, stage: int) -> dict[str, Any]:
    """Two updates of a generation batch, two passes: old logprobs are those before the first update, every time."""
    engine = new_engine(folder, stage=stage, algorithm=AlgorithmConfig(num_iterations=2))
    updates = updates_of(engine, make_taken(10, seed=8), steps=2)
    engine.prepare(updates)
    expected = [engine.logprobs(update) for update in updates]
    results = [engine.update(update) for _ in range(2) for update in updates]
    same = [
        torch.allclose(batch.old_logprobs_N, logprobs_N, rtol=0, atol=1e-5)
        for update, values in zip(updates, expected, strict=True)
        for batch, logprobs_N in zip(update, values, strict=True)
        if batch.old_logprobs_N is not None
    ]
    return {"same": same, "losses": [result["loss"] for result in results]}


def one_reduction(folder: Path, dtype: str) -> dict[str, Any]:
    """An update of several micro-batches with their gradients reduced together, against each for itself; a second one,
    which a new engine repeats from a checkpoint; and one that fails."""
    reductions, reduce = [], stage3.reduce_scatter_coalesced
    stage3.reduce_scatter_coalesced = lambda *arguments: reductions.append(None) or reduce(*arguments)
    checkpoint = folder / f"one-reduction-{dtype}"
    checkpoint.mkdir(exist_ok=True)
    # In bfloat16 an untied model: the two gradients of a tied head are otherwise summed in bfloat16.
    make = partial(
        new_engine, folder, stage=3, dtype=dtype, model="tied" if dtype == "float32" else "untied",
        gradient_checkpointing=True,
    )  # fmt: skip

    def train(engine: TrainingEngine, seed: int) -> tuple[dict[str, float], int]:
        (update,) = updates_of(engine, make_taken(13, seed=seed), budget=40)
        reductions.clear()
        return engine.update(update), len(reductions)

    expected = make()
    usual, usual_reductions = train(expected, 1)
    engine = make(coalesce_grad_reduction=True)
    found, found_reductions = train(engine, 1)
    difference = max((weights(expected)[name] - tensor).abs().max().item() for name, tensor in weights(engine).items())
    engine.save(checkpoint)
    second, end = train(engine, 2), weights(engine)
    resumed = make(coalesce_grad_reduction=True)
    resumed.load(checkpoint)
    again, end_again = train(resumed, 2), weights(resumed)
    resumed.beat = partial(int, "not a number")
    try:
        train(resumed, 3)
    except ValueError:
        reductions_of_failure = len(reductions)
    stage3.reduce_scatter_coalesced = reduce
    return {
        "metrics": [usual, found],
        "reductions": [usual_reductions, found_reductions, reductions_of_failure],
        "difference": difference,
        "resumed": again == second and equal(end, end_again),
    }


def skipped(folder: Path, stage: int) -> dict[str, Any]:
    """Four updates, in the second nothing has an advantage; once with all samples and once with those to compute."""
    algorithm = AlgorithmConfig(loss_type="grpo", steps_per_generation=4)
    taken = [
        (episode, 0.0 if number // 3 % 2 or 6 <= number < 12 else advantage)
        for number, (episode, advantage) in enumerate(make_taken(24, seed=6, stale_share=0.2))
    ]
    sequences = decided(taken, algorithm)
    ends, results, surveys = [], [], []
    for chosen in (sequences, sequences_to_compute(sequences, algorithm)):
        # A large epsilon: Adam would turn a rounding of a gradient near 0 into a whole step.
        optimizer = OptimizerConfig(learning_rate=1e-3, weight_decay=0.1, adam_epsilon=1e-3)
        engine = new_engine(folder, stage=stage, algorithm=algorithm, optimizer=optimizer)
        updates = build_updates(
            chosen,
            tokens_per_micro_batch=60,
            rank=engine.rank,
            world_size=engine.world_size,
            device=engine.device,
            num_updates=4,
        )
        surveys.append(engine.survey([batch for update in updates for batch in update]))
        engine.prepare(updates)
        results.append([engine.update(update) for update in updates])
        ends.append(weights(engine))
    return {
        "share": len(sequences_to_compute(sequences, algorithm)) / len(sequences),
        "results": results,
        "surveys": surveys,
        "difference": max((ends[0][name] - ends[1][name]).abs().max().item() for name in ends[0]),
    }


def scenarios(folder: Path, world_size: int) -> dict[str, Scenario]:
    """By name. A single rank repeats what could differ there; the rest is for two."""
    found: dict[str, Scenario] = {f"balanced {stage}": partial(balanced, folder, stage) for stage in BALANCED}
    for stage in (0, 1, 2, 3):
        found[f"gradient {stage} 40 True 13"] = partial(gradient, folder, stage, 40, True, top_quantile=0.3)
        found[f"continued {stage} bfloat16"] = partial(continued, folder, stage, "bfloat16")
        if world_size == 1:
            continue
        found[f"gradient {stage} 10000 False 13"] = partial(gradient, folder, stage, 10_000, False, entropy_coef=0.0)
        # One sample for two ranks: one of them has nothing to do.
        found[f"gradient {stage} 10000 False 1"] = partial(
            gradient, folder, stage, 10_000, False, 1, top_quantile=0.3, entropy_coef=0.0
        )
        found[f"continued {stage} float32"] = partial(continued, folder, stage, "float32")
        found[f"not_finite {stage} float32"] = partial(not_finite, folder, stage, "float32")
        found[f"not_finite {stage} bfloat16"] = partial(not_finite, folder, stage, "bfloat16")
        found[f"skipped {stage}"] = partial(skipped, folder, stage)
        found[f"several_updates {stage}"] = partial(several_updates, folder, stage)
        if stage:
            found[f"offloaded {stage}"] = partial(offloaded, folder, stage)
    if world_size > 1:
        for stage, top_quantile, entropy_coef in SHARED:
            read = {"top_quantile": top_quantile, "entropy_coef": entropy_coef}
            shared = partial(gradient, folder, stage, 80, True, 20, share="auto", **read)
            found[f"gradient {stage} 80 True 20 shared"] = shared
            found[f"gradient {stage} 80 True 20 imitation"] = partial(shared, imitates=True)
        for stage, top_quantile, entropy_coef in TOGETHER:
            read = {"top_quantile": top_quantile, "entropy_coef": entropy_coef}
            of_two = partial(gradient, folder, stage, 80, True, 20, share="auto", imitates=True, together=2, **read)
            found[f"gradient {stage} 80 True 20 together"] = of_two
        found |= scenarios_with_images(folder)
        found["unread"] = partial(unread, folder)
        for name, model in EXPORTED.items():
            stage, dtype, *_ = name.split()
            found[f"exported {name}"] = partial(exported, folder, int(stage), dtype, model)
        found["one_reduction float32"] = partial(one_reduction, folder, "float32")
        found["one_reduction bfloat16"] = partial(one_reduction, folder, "bfloat16")
        found["other_layout"] = partial(other_layout, folder)
        found["heard"] = partial(heard, folder)
    return found


if __name__ == "__main__":
    run_scenarios(scenarios)
