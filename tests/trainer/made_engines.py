"""Small engines of the tests, on the models in a folder, and what is looked at in them."""

from pathlib import Path
from typing import Any

import deepspeed
import torch
from tests.trainer.made_episodes import VERSION, Taken, build_updates, decided

from grpo_proto.transport import plan_manifest, view_tensor
from grpo_trainer.algorithm.sequences import MicroBatch
from grpo_trainer.config.algorithm import AlgorithmConfig
from grpo_trainer.config.lora import LoraConfig
from grpo_trainer.config.optimization import DeepSpeedConfig, OptimizerConfig
from grpo_trainer.config.run_config import ModelConfig
from grpo_trainer.engine.output_head import Policy
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
    coalesce_grad_reduction: bool = False,
    offload_optimizer: bool = False,
) -> TrainingEngine:
    return TrainingEngine(
        ModelConfig(
            name_or_path=str(folder / model),
            dtype=dtype,
            logprob_chunk_tokens=8,
            gradient_checkpointing=gradient_checkpointing,
        ),
        optimizer or OptimizerConfig(learning_rate=1e-3, weight_decay=0.1, lr_scheduler_type="linear"),
        DeepSpeedConfig(
            zero_stage=stage,
            overlap_comm=overlap_comm,
            share_prefixes=share,
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
        OptimizerConfig(learning_rate=1e-2, weight_decay=0.1),
        DeepSpeedConfig(zero_stage=stage),
        AlgorithmConfig(loss_type="grpo", beta=0.1, entropy_coef=0.01),
        temperature=0.9,
        total_updates=100,
        seed=1,
        push_kind=push_kind,
        base_digest=digest,
    )


def updates_of(
    engine: TrainingEngine, taken: Taken, *, budget: int = 60, steps: int = 1, padded: bool = False
) -> list[list[MicroBatch]]:
    return build_updates(
        decided(taken, engine.algorithm.model_copy(update={"steps_per_generation": steps})),
        version=VERSION,
        tokens_per_micro_batch=budget,
        rank=engine.rank,
        world_size=engine.world_size,
        pad_token_id=0,
        device=engine.device,
        prefixes=None if padded else engine.prefixes,
    )


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
