"""The gradient of an update with images, on the ranks of an engine and by one model alone."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tests.trainer.made_engines import new_engine, weights
from tests.trainer.made_episodes import build_updates
from tests.trainer.made_vision import seen_sequences

from grpo_trainer.algorithm.loss import old_logprobs, policy_loss
from grpo_trainer.algorithm.sequences import TrainingSequence
from grpo_trainer.algorithm.surrogates.clipped import clipped
from grpo_trainer.config.algorithm import AlgorithmConfig
from grpo_trainer.config.model import ModelConfig
from grpo_trainer.config.optimization import OptimizerConfig
from grpo_trainer.engine.images import VisionTower
from grpo_trainer.engine.model import load_policy

SCALE = 1000.0
ALGORITHM = AlgorithmConfig(loss_type="grpo", beta=0.1)
PLACES = 20
"""Of a picture under the processor of `tiny_vision_model.py`: five tiles."""


def vision_sequences(kind: str = "mixed") -> list[TrainingSequence]:
    """`one rank sees`: the images are those of one group, and all others are text."""
    sequences = seen_sequences(lambda _: PLACES, image_token=6)
    if kind != "one rank sees":
        return sequences
    text = [one for one in sequences if not one.images]
    return [replace(one, episode=number) for number, one in enumerate([*sequences[:2], *text * 4])]


def seen(folder: Path, stage: int, kind: str = "mixed") -> dict[str, Any]:
    """Plain descent with a huge rate; the ranks have unequal numbers of images."""
    together = 2 if kind == "together" else 1
    engine = new_engine(
        folder,
        stage=stage,
        together=together,
        model="vision",
        optimizer=OptimizerConfig(name="sgd", learning_rate=SCALE, max_grad_norm=1e9),
        algorithm=ALGORITHM,
        gradient_checkpointing=True,
    )
    tower = VisionTower.of(engine.policy.model, str(folder / "vision"), device=engine.device, sharded=stage == 3)
    assert tower is not None
    looks = Looks(tower)
    updates = build_updates(
        vision_sequences(kind),
        tokens_per_micro_batch=80,
        rank=engine.rank // together,
        world_size=engine.world_size // together,
        prefixes=engine.prefixes,
        see=tower.see,
    )
    before = weights(engine)
    engine.prepare(updates)
    engine.update(updates[0])
    after = weights(engine)
    found = {name: (before[name].double() - after[name].double()) / SCALE for name in before}
    if engine.rank == 0:
        torch.save(found, folder / f"seen-{stage}-{kind}.pt")
    with_images = sum(batch.images is not None for batch in updates[0])
    return {"looks": looks.count, "with_images": with_images, "micro_batches": len(updates[0])}


class Looks:
    """Counts the images that go through a tower, blank ones included."""

    def __init__(self, tower: VisionTower):
        self.count = 0
        look = tower._look

        def counted(image: Any) -> Any:
            self.count += 1
            return look(image)

        tower._look = counted  # type: ignore[method-assign]


def plain_gradient(folder: Path, kind: str) -> dict[str, torch.Tensor]:
    """The same update as one padded micro-batch of one model without DeepSpeed."""
    config = ModelConfig(name_or_path=str(folder / "vision"), dtype="float32")
    policy = load_policy(config, temperature=0.9, zero3=None)
    tower = VisionTower.of(policy.model, config.name_or_path, device=torch.device("cpu"), sharded=False)
    assert tower is not None
    ((batch,),) = build_updates(vision_sequences(kind), tokens_per_micro_batch=10_000, see=tower.see)
    logprobs_N, entropy_N = policy(*batch.inputs)
    batch.old_logprobs_N, batch.ref_logprobs_N = old_logprobs(batch, logprobs_N), logprobs_N.detach()
    loss, _ = policy_loss(logprobs_N, entropy_N, batch, ALGORITHM, clipped)
    loss.backward()
    return {name: p.grad.double() for name, p in policy.model.named_parameters() if p.grad is not None}
