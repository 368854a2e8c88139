"""Small engines of the tests, on the models in a folder, and what is looked at in them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import deepspeed
import torch
from safetensors.torch import load_file
from tests.trainer.made_episodes import VERSION, Taken, build_updates, decided, made_imitation, make_taken
from transformers import AutoModelForCausalLM

from grpo_proto.transport import plan_manifest, view_tensor
from grpo_trainer.algorithm.sequences import MicroBatch
from grpo_trainer.config.algorithm import AlgorithmConfig
from grpo_trainer.config.lora import LoraConfig
from grpo_trainer.config.optimization import DeepSpeedConfig, OptimizerConfig
from grpo_trainer.config.run_config import ModelConfig
from grpo_trainer.engine.imitation import Imitation
from grpo_trainer.engine.policy import Policy
from grpo_trainer.engine.training_engine import TrainingEngine

BASE_DIGEST = "ab" * 32


def new_engine(
    folder: Path,
    *,
    stage: int,
    dtype: str = "float32",
    algorithm: AlgorithmConfig | None = None,
    optimizer: OptimizerConfig | None = None,
    gradient_checkpointing: bool = False,
    model: str = "tied",
    overlap_comm: bool = False,
    share: Any = "auto",
    together: int = 1,
    coalesce_grad_reduction: bool = False,
    offload_optimizer: bool = False,
    frozen: Sequence[str] = (),
    but: Sequence[str] = (),
    train_vision_tower: bool = False,
) -> TrainingEngine:
    """`frozen`, `but`: patterns of the parameters that are frozen, and of the exceptions."""
    return TrainingEngine(
        ModelConfig(
            name_or_path=str(folder / model),
            dtype=dtype,
            logprob_chunk_tokens=8,
            gradient_checkpointing=gradient_checkpointing,
            freeze_parameters_regex=list(frozen),
            trainable_parameters_regex=list(but),
            train_vision_tower=train_vision_tower,
        ),
        optimizer or OptimizerConfig(learning_rate=1e-3, weight_decay=0.1, lr_scheduler_type="linear"),
        DeepSpeedConfig(
            zero_stage=stage,
            overlap_comm=overlap_comm,
            share_prefixes=share,
            sequence_parallel_size=together,
            coalesce_grad_reduction=coalesce_grad_reduction,
            offload_optimizer=offload_optimizer,
        ),
        algorithm or AlgorithmConfig(loss_type="grpo"),
        temperature=0.9,
        total_updates=100,
        seed=1,
    )


def new_lora_engine(
    folder: Path,
    *,
    stage: int,
    dtype: str = "float32",
    tied: bool = True,
    model: str | None = None,
    load_in_4bit: bool = False,
    lora: LoraConfig | None = None,
    push_kind: Any = "lora",
    checkpointing: bool = False,
    digest: str = BASE_DIGEST,
    optimizer: OptimizerConfig | None = None,
) -> TrainingEngine:
    return TrainingEngine(
        ModelConfig(
            name_or_path=str(folder / (model or ("tied" if tied else "untied"))),
            dtype=dtype,
            logprob_chunk_tokens=8,
            gradient_checkpointing=checkpointing,
            lora=lora or LoraConfig(r=4, alpha=8),
            load_in_4bit=load_in_4bit,
        ),
        optimizer or OptimizerConfig(learning_rate=1e-2, weight_decay=0.1),
        DeepSpeedConfig(zero_stage=stage),
        AlgorithmConfig(loss_type="grpo", beta=0.1, entropy_coef=0.01),
        temperature=0.9,
        total_updates=100,
        seed=1,
        push_kind=push_kind,
        base_digest=digest,
    )


def updates_of(
    engine: TrainingEngine, taken: Taken, *, budget: int = 60, steps: int = 1, padded: bool = False, together: int = 1
) -> list[list[MicroBatch]]:
    """`together`: ranks that have the same micro-batches."""
    return build_updates(
        decided(taken, engine.algorithm.model_copy(update={"steps_per_generation": steps})),
        version=VERSION,
        tokens_per_micro_batch=budget,
        rank=engine.rank // together,
        world_size=engine.world_size // together,
        pad_token_id=0,
        device=engine.device,
        prefixes=None if padded else engine.prefixes,
    )


def imitation_of(engine: TrainingEngine, *, budget: int, together: int = 1) -> Imitation:
    """The part of a rank."""
    part = {"rank": engine.rank // together, "world_size": engine.world_size // together}
    return made_imitation(budget=budget, **part, prefixes=engine.prefixes)


def balanced(folder: Path, stage: int) -> dict[str, Any]:
    """Updates in which nothing but the balance of the experts has a gradient: a dozen of one batch, then one of a
    single sample, for which only one of two ranks has something to do."""
    engine = new_engine(
        folder,
        stage=stage,
        model="experts",
        algorithm=AlgorithmConfig(loss_type="grpo", router_aux_loss_coef=0.5),
        optimizer=OptimizerConfig(learning_rate=1e-3),
    )
    taken = [(episode, 0.0) for episode, _ in make_taken(9)]
    of_all, of_one = updates_of(engine, taken)[0], updates_of(engine, taken[:1])[0]
    found = []
    for update in (*[of_all] * 12, of_one):
        engine.prepare([update])
        found.append(engine.update(update))
    return {"found": found}


def exported(folder: Path, stage: int, dtype: str, model: str) -> dict[str, Any]:
    """What a push sends, what `write_hf` writes and what the engine computes are one model."""
    engine = new_engine(folder, stage=stage, dtype=dtype, model=model)
    (update,) = updates_of(engine, make_taken(6, seed=2), budget=10_000, padded=True)
    engine.update(update)
    target = folder / f"hf-{engine.world_size}-{stage}-{dtype}-{model}"
    state = engine.whole_state()
    if engine.rank == 0:
        engine.write_hf(target, state)
    sent = pushed(engine)
    (logprobs_N,) = engine.logprobs(update)
    if engine.rank > 0:
        return {}
    saved = AutoModelForCausalLM.from_pretrained(target, dtype=getattr(torch, dtype))
    batch = update[0]
    with torch.no_grad():
        all_logprobs = (saved(batch.input_ids_BL).logits.float() / 0.9).log_softmax(-1)
    expected_N = all_logprobs.flatten(0, 1)[batch.hidden_N].gather(1, batch.target_N[:, None])[:, 0]
    return {
        "equal": equal(sent, load_file(target / "model.safetensors")),
        "files": sorted(path.name for path in target.iterdir()),
        "difference": (logprobs_N - expected_N).abs().max().item(),
    }


class LayerPasses:
    """Counts the forward passes of an engine's first layer."""

    def __init__(self, engine: TrainingEngine):
        self.count = 0
        engine.policy.model.get_decoder().layers[0].register_forward_pre_hook(self._add)

    def _add(self, *_: Any) -> None:
        self.count += 1


def weights(engine: TrainingEngine) -> dict[str, torch.Tensor]:
    """All parameters, whole, as this rank has them."""
    return whole(engine, engine.policy)


def reference_weights(engine: TrainingEngine) -> dict[str, torch.Tensor]:
    return whole(engine, getattr(engine.reference, "module", engine.reference))


def whole(engine: TrainingEngine, policy: Policy) -> dict[str, torch.Tensor]:
    found = {}
    for name, parameter in policy.model.named_parameters():
        with deepspeed.zero.GatheredParameters([parameter], enabled=engine.zero_stage == 3):
            found[name] = parameter.detach().clone()
    return found


def pushed(engine: TrainingEngine) -> dict[str, torch.Tensor]:
    """All parameters by way of the buckets of a push; only rank 0's are filled."""
    manifest = plan_manifest(engine.export.listed(), 40_000)
    found = {}
    for number, buffer in enumerate(engine.export.buckets(manifest, engine.device)):
        for spec in manifest.tensors:
            if spec.bucket == number:
                # What a rank other than 0 helps to gather is not there to be looked at.
                found[spec.name] = view_tensor(buffer, spec).clone() if engine.rank == 0 else buffer
    return found


def equal(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
