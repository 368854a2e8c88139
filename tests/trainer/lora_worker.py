"""One rank of the LoRA tests: runs every scenario of `test_lora_engine.py` and writes what it saw to a file.

torchrun --nproc-per-node N lora_worker.py FOLDER
"""

from functools import partial
from pathlib import Path
from typing import Any

import torch
from tests.trainer.made_engines import equal, new_lora_engine, pushed, updates_of, weights
from tests.trainer.made_episodes import make_taken
from tests.trainer.tested_rank import Scenario, run_scenarios

from grpo_trainer.config.lora import LoraConfig
from grpo_trainer.engine.training_engine import TrainingEngine
from grpo_trainer.errors import UsageError


def train(engine: TrainingEngine, seeds: range) -> list[dict[str, float]]:
    results = []
    for seed in seeds:
        updates = updates_of(engine, make_taken(9, seed=seed), budget=40)
        engine.prepare(updates)
        results += [engine.update(update) for update in updates]
    return results


def logprobs(engine: TrainingEngine, *, reference: bool = False) -> list[float]:
    """Of sequences that both ranks share."""
    (update,) = updates_of(engine, make_taken(6, seed=2), budget=10_000, padded=True)
    (found_N,) = engine.logprobs(update, reference=reference)
    return found_N.tolist()


def learned(folder: Path, stage: int, dtype: str, tied: bool, checkpointing: bool = False) -> dict[str, Any]:
    """Three updates: what moves, what the reference says, and what both kinds of push send."""
    engine = new_lora_engine(folder, stage=stage, dtype=dtype, tied=tied, checkpointing=checkpointing)
    name = f"{engine.world_size}-{stage}-{dtype}-{tied}"
    before, at_start = weights(engine), logprobs(engine)
    metrics = train(engine, range(3))
    after = weights(engine)
    own, reference = logprobs(engine), logprobs(engine, reference=True)
    adapter = engine.adapter_state()
    merged = engine.whole_state()
    sent_adapter = pushed(engine)
    config = engine.export.peft_config
    engine.export = engine.make_export("full")
    sent_merged = pushed(engine)
    trained = {n for n, p in engine.policy.named_parameters() if p.requires_grad}
    if engine.rank == 0:
        engine.write_adapter(folder / f"adapter-{name}", adapter)
        engine.write_hf(folder / f"merged-{name}", merged)
    (update,) = updates_of(engine, make_taken(6, seed=2), budget=10_000, padded=True)
    torch.save(
        (update[0].input_ids_BL, update[0].hidden_N, update[0].target_N), folder / f"batch-{name}-{engine.rank}.pt"
    )
    return {
        "moved": sorted(n for n in before if not torch.equal(before[n], after[n])),
        "trained": sorted(trained),
        "start": at_start,
        "own": own,
        "reference": reference,
        "kl": [m["kl"] for m in metrics],
        "grad_norms": [m["grad_norm"] for m in metrics],
        "push_is_adapter": engine.rank > 0 or equal(sent_adapter, adapter),
        "merged_push_is_file": engine.rank > 0 or all(torch.equal(sent_merged[n], merged[n]) for n in sent_merged),
        "names": sorted(sent_merged),
        "config": config,
    }


def continued(folder: Path, stage: int, dtype: str) -> dict[str, Any]:
    """Two updates, a checkpoint, two more; and the same two again from the checkpoint in a new engine."""
    checkpoint = folder / f"lora-checkpoint-{torch.distributed.get_world_size()}-{stage}-{dtype}"
    engine = new_lora_engine(folder, stage=stage, dtype=dtype)
    train(engine, range(2))
    checkpoint.mkdir(exist_ok=True)
    engine.save(checkpoint)
    num_bytes = sum(file.stat().st_size for file in checkpoint.rglob("*") if file.is_file())
    metrics, end = train(engine, range(2, 4)), weights(engine)
    resumed = new_lora_engine(folder, stage=stage, dtype=dtype)
    resumed.load(checkpoint)
    again, final = train(resumed, range(2, 4)), weights(resumed)
    engine.load(checkpoint)
    gone_back = train(engine, range(2, 4)) == metrics and equal(end, weights(engine))
    messages = []
    others = ({"digest": "cd" * 32}, {"lora": LoraConfig(r=8, alpha=8)})
    for other in others if stage == 2 else ():
        try:
            new_lora_engine(folder, stage=stage, dtype=dtype, **other).load(checkpoint)
        except UsageError as error:
            messages.append(str(error))
    return {
        "same_metrics": metrics == again,
        "same_end": equal(end, final),
        "same_after_going_back": gone_back,
        "messages": messages,
        "bytes": num_bytes,
        "base_bytes": sum(p.nbytes for n, p in weights(engine).items() if "lora_" not in n),
    }


def in_four_bits(folder: Path, stage: int, dtype: str) -> dict[str, Any]:
    """The same updates with the model below whole and in NF4; then a checkpoint of the latter, its pushes and files."""
    new = partial(new_lora_engine, folder, stage=stage, dtype=dtype, model=f"nf4-{dtype}")
    whole, kept = new(), new(load_in_4bit=True)
    metrics = [train(engine, range(2)) for engine in (whole, kept)]
    references = [logprobs(engine, reference=True) for engine in (whole, kept)]
    adapters = [engine.adapter_state() for engine in (whole, kept)]
    merged = [engine.whole_state() for engine in (whole, kept)]
    sent_adapter = pushed(kept)
    kept.export = kept.make_export("full")
    sent_merged = pushed(kept)
    if kept.rank == 0:
        kept.write_hf(folder / f"merged-nf4-{stage}-{dtype}", merged[1])
    checkpoint = folder / f"nf4-checkpoint-{stage}-{dtype}"
    checkpoint.mkdir(exist_ok=True)
    kept.save(checkpoint)
    end = train(kept, range(2, 4)), weights(kept)
    resumed = new(load_in_4bit=True)
    resumed.load(checkpoint)
    again = train(resumed, range(2, 4)), weights(resumed)
    return {
        "same_metrics": metrics[0] == metrics[1],
        "same_reference": references[0] == references[1],
        "same_adapter": equal(*adapters),
        "same_merged": equal(*merged),
        "push_is_adapter": kept.rank > 0 or equal(sent_adapter, adapters[1]),
        "merged_push_is_file": kept.rank > 0 or all(torch.equal(sent_merged[n], merged[1][n]) for n in sent_merged),
        "goes_on": end[0] == again[0] and equal(end[1], again[1]),
        "bytes": [_below_adapter(engine) for engine in (whole, kept)],
    }


def _below_adapter(engine: TrainingEngine) -> int:
    """Bytes of the frozen model in memory."""
    model = engine.policy.model
    return sum(t.nbytes for n, t in [*model.named_parameters(), *model.named_buffers()] if ".lora_" not in n)


def drops_out(folder: Path) -> dict[str, Any]:
    """Dropout acts in updates, and nowhere that logprobs are compared."""
    engine = new_lora_engine(folder, stage=0, lora=LoraConfig(r=4, alpha=8, dropout=0.5))
    train(engine, range(2))
    (update,) = updates_of(engine, make_taken(6, seed=2), budget=10_000, padded=True)
    engine.prepare([update])
    return {
        "compared": [logprobs(engine), logprobs(engine)],
        "old": update[0].old_logprobs_N is not None,
        "kl": [measure(update)["kl"] for measure in (engine.survey, engine.update)],
    }


def parameters(folder: Path, stage: int) -> dict[str, Any]:
    """An adapter on a parameter, as on fused experts, and on one linear layer."""
    lora = LoraConfig(r=4, alpha=8, target_modules=["q_proj"], target_parameters=["mlp.up_proj.weight"])
    engine = new_lora_engine(folder, stage=stage, lora=lora, checkpointing=True)
    metrics = train(engine, range(2))
    return {"grad_norms": [m["grad_norm"] for m in metrics], "trained": sorted(engine.adapter_state())}


def started(folder: Path) -> dict[str, Any]:
    """A new run starts from the adapter of `learned`."""
    saved = folder / f"adapter-{torch.distributed.get_world_size()}-2-float32-True"
    engine = new_lora_engine(folder, stage=2, lora=LoraConfig(r=4, alpha=8, adapter=saved))
    messages = []
    for other in ({"r": 8, "alpha": 8}, {"r": 4, "alpha": 4}, {"r": 4, "alpha": 8, "target_modules": ["q_proj"]}):
        try:
            new_lora_engine(folder, stage=2, lora=LoraConfig(adapter=saved, **other))
        except UsageError as error:
            messages.append(str(error))
    return {"own": logprobs(engine), "messages": messages}


def scenarios(folder: Path, world_size: int) -> dict[str, Scenario]:
    found: dict[str, Scenario] = {}
    for stage in (2, 3) if world_size > 1 else (0,):
        found[f"learned {stage} float32"] = partial(learned, folder, stage, "float32", True)
        found[f"parameters {stage}"] = partial(parameters, folder, stage)
        found[f"continued {stage} float32"] = partial(continued, folder, stage, "float32")
        found[f"continued {stage} bfloat16"] = partial(continued, folder, stage, "bfloat16")
    if world_size == 1:
        found["checkpointing"] = partial(learned, folder, 0, "float32", False, True)
        found["no checkpointing"] = partial(learned, folder, 0, "float32", False)
        found["learned 0 bfloat16"] = partial(learned, folder, 0, "bfloat16", True)
        found |= {f"nf4 0 {dtype}": partial(in_four_bits, folder, 0, dtype) for dtype in ("float32", "bfloat16")}
        found["drops_out"] = partial(drops_out, folder)
    else:
        found["nf4 2 bfloat16"] = partial(in_four_bits, folder, 2, "bfloat16")
        found["started"] = partial(started, folder)
    return found


if __name__ == "__main__":
    run_scenarios(scenarios)
