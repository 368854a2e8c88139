"""The gradient of an update with images, on the ranks of an engine and by one model alone."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tests.trainer.engine_cases import IN_A_ROW, LEARNT, SEEN
from tests.trainer.made_engines import new_engine, weights
from tests.trainer.made_episodes import build_updates
from tests.trainer.made_vision import seen_sequences

from grpo_proto.images import decode_image
from grpo_trainer.algorithm.loss import old_logprobs, policy_loss
from grpo_trainer.algorithm.sequences import MicroBatch, TrainingSequence
from grpo_trainer.algorithm.surrogates.clipped import clipped
from grpo_trainer.config.algorithm import AlgorithmConfig
from grpo_trainer.config.model import ModelConfig
from grpo_trainer.config.optimization import OptimizerConfig
from grpo_trainer.engine.images import see
from grpo_trainer.engine.model import load_policy
from grpo_trainer.engine.training_engine import TrainingEngine
from grpo_trainer.engine.vision_tower import Features, VisionTower

SCALE = 1000.0
ALGORITHM = AlgorithmConfig(loss_type="grpo", beta=0.1)
PLACES = 20
"""Of a picture under the processor of `tiny_vision_model.py`: five tiles."""


def scenarios_with_images(folder: Path) -> dict[str, Callable[[], Any]]:
    found: dict[str, Callable[[], Any]] = {}
    found |= {f"seen {stage} {kind}": partial(seen, folder, stage, kind) for stage, kind in SEEN}
    found |= {f"learnt {stage} {kind}": partial(seen, folder, stage, kind, learns=True) for stage, kind in LEARNT}
    return found | {f"in a row {stage} {one}": partial(learnt_in_a_row, folder, stage, one) for stage, one in IN_A_ROW}


def vision_sequences(kind: str = "mixed") -> list[TrainingSequence]:
    """`one rank sees`: the images are those of one group, and all others are text; `text`: there are none."""
    sequences = seen_sequences(lambda _: PLACES, image_token=6)
    if kind not in ("one rank sees", "text"):
        return sequences
    text = [one for one in sequences if not one.images]
    if kind == "text":
        return [replace(one, episode=number) for number, one in enumerate(text * 4)]
    return [replace(one, episode=number) for number, one in enumerate([*sequences[:2], *text * 4])]


def seen(folder: Path, stage: int, kind: str = "mixed", *, learns: bool = False) -> dict[str, Any]:
    """Plain descent with a huge rate; each rank has some of the images. `learns`: the tower is trained, too."""
    together = 2 if kind == "together" else 1
    engine = new_engine(
        folder,
        stage=stage,
        together=together,
        model="vision",
        optimizer=OptimizerConfig(name="sgd", learning_rate=SCALE, max_grad_norm=1e9),
        algorithm=ALGORITHM,
        gradient_checkpointing=True,
        train_vision_tower=learns,
    )
    assert engine.sight.tower is not None
    looks = Looks(engine.sight.tower)
    updates = build_updates(
        vision_sequences(kind),
        tokens_per_micro_batch=80,
        rank=engine.rank // together,
        world_size=engine.world_size // together,
        prefixes=engine.prefixes,
        see=engine.sight.see,
    )
    before = weights(engine)
    engine.prepare(updates)
    engine.update(updates[0])
    after = weights(engine)
    found = {name: (before[name].double() - after[name].double()) / SCALE for name in before}
    if engine.rank == 0:
        torch.save(found, folder / f"{'learnt' if learns else 'seen'}-{stage}-{kind}.pt")
    with_images = sum(batch.images is not None for batch in updates[0])
    shown = {key: images for batch in updates[0] if batch.images for key, images in batch.images.prompts.items()}
    num_images = sum(map(len, shown.values()))
    result = {"looks": looks.count, "images": num_images, "with_images": with_images, "micro_batches": len(updates[0])}
    if learns:
        result |= {
            "after": distance(engine, updates[0], after),
            "reference": distance(engine, updates[0], before, reference=True),
        }
    return result


ROW = [("mixed", 80), ("mixed", 10_000), ("one rank sees", 80), ("text", 80), ("mixed", 80)]
"""Updates that follow each other: what they show, and the budget of a micro-batch, which is one or several."""
RATE = 0.3
BY_TOKEN = AlgorithmConfig(loss_type="grpo")


def learnt_in_a_row(folder: Path, stage: int, setting: str) -> None:
    """Writes how far each update has moved the weights."""
    engine = new_engine(
        folder,
        stage=stage,
        model="vision",
        optimizer=OptimizerConfig(name="sgd", learning_rate=RATE, max_grad_norm=1e9, lr_scheduler_type="constant"),
        algorithm=BY_TOKEN,
        train_vision_tower=True,
        offload_optimizer=setting == "offload",
        coalesce_grad_reduction=setting == "coalesce",
    )
    moves = []
    for kind, budget in ROW:
        (update,) = build_updates(
            vision_sequences(kind), tokens_per_micro_batch=budget, rank=engine.rank, world_size=engine.world_size,
            prefixes=engine.prefixes, see=engine.sight.see,
        )  # fmt: skip
        before = weights(engine)
        engine.prepare([update])
        engine.update(update)
        moves.append({name: tensor.double() - before[name].double() for name, tensor in weights(engine).items()})
    if engine.rank == 0:
        torch.save(moves, folder / f"row-{stage}-{setting}.pt")


def plain_moves(folder: Path) -> list[dict[str, torch.Tensor]]:
    """The same by one model without DeepSpeed, each update in one graph."""
    config = ModelConfig(name_or_path=str(folder / "vision"), dtype="float32", train_vision_tower=True)
    policy = load_policy(config, temperature=0.9, zero3=None)
    moves = []
    for kind, _ in ROW:
        tower = OpenTower.of(policy.model, config.name_or_path, device=torch.device("cpu"), sharded=False)
        assert tower is not None
        ((batch,),) = build_updates(vision_sequences(kind), tokens_per_micro_batch=10_000, see=partial(see, tower))
        logprobs_N, entropy_N = policy(*batch.inputs)
        batch.old_logprobs_N = old_logprobs(batch, logprobs_N)
        loss, _ = policy_loss(logprobs_N, entropy_N, batch, BY_TOKEN, clipped)
        loss.backward()
        move = {}
        for name, parameter in policy.model.named_parameters():
            move[name] = torch.zeros_like(parameter) if parameter.grad is None else -RATE * parameter.grad
            parameter.data += move[name]
            parameter.grad = None
        moves.append(move)
    return moves


@torch.no_grad()  # type: ignore[untyped-decorator]
def distance(
    engine: TrainingEngine, batches: list[MicroBatch], state: dict[str, torch.Tensor], *, reference: bool = False
) -> float:
    """How far the engine's logprobs are from those of a model with the weights `state`, relative to the farthest from
    0: the huge rate has made them large."""
    config = ModelConfig(name_or_path=engine.model_config.name_or_path, dtype="float32")
    plain = load_policy(config, temperature=0.9, zero3=None)
    plain.group = engine.policy.group
    plain.model.load_state_dict(state, strict=False)
    tower = VisionTower.of(plain.model, config.name_or_path, device=engine.device, sharded=False)
    assert tower is not None
    tower.look_again(batch.images for batch in batches)
    shown = [replace(batch, images=batch.images and replace(batch.images, tower=tower)) for batch in batches]
    expected_N = torch.cat([plain(*batch.inputs)[0] for batch in shown])
    own_N = torch.cat(engine.logprobs(batches, reference=reference))
    return float((own_N - expected_N).norm() / expected_N.norm()) if len(own_N) else 0.0


class Looks:
    """Counts the images that go through a tower, blank ones included."""

    def __init__(self, tower: VisionTower):
        self.count = 0
        look = tower._look

        def counted(image: Any) -> Any:
            self.count += 1
            return look(image)

        tower._look = counted  # type: ignore[method-assign]


class OpenTower(VisionTower):
    """Whose features have the graph of the tower behind them."""

    def features_of(self, images: Sequence[str]) -> Features:
        return Features(tuple(images), [self._look(decode_image(one)) for one in images])


def plain_gradient(folder: Path, kind: str, *, learns: bool = False) -> dict[str, torch.Tensor]:
    """The same update as one padded micro-batch of one model without DeepSpeed, in one graph."""
    config = ModelConfig(name_or_path=str(folder / "vision"), dtype="float32", train_vision_tower=learns)
    policy = load_policy(config, temperature=0.9, zero3=None)
    tower = (OpenTower if learns else VisionTower).of(
        policy.model, config.name_or_path, device=torch.device("cpu"), sharded=False
    )
    assert tower is not None
    ((batch,),) = build_updates(vision_sequences(kind), tokens_per_micro_batch=10_000, see=partial(see, tower))
    logprobs_N, entropy_N = policy(*batch.inputs)
    batch.old_logprobs_N, batch.ref_logprobs_N = old_logprobs(batch, logprobs_N), logprobs_N.detach()
    loss, _ = policy_loss(logprobs_N, entropy_N, batch, ALGORITHM, clipped)
    loss.backward()
    return {name: p.grad.double() for name, p in policy.model.named_parameters() if p.grad is not None}
