"""Policies of random weights, training engines for them, and the updates that they make."""

import random
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from grpo_trainer.algorithm.batching import micro_batches, parts_of_ranks, tokens_of_updates
from grpo_trainer.algorithm.decisions import sequences_of
from grpo_trainer.algorithm.planning import plan_updates
from grpo_trainer.algorithm.sequences import MicroBatch, single_turn
from grpo_trainer.config.algorithm import AlgorithmConfig
from grpo_trainer.config.lora import LoraConfig
from grpo_trainer.config.model import ModelConfig
from grpo_trainer.config.optimization import DeepSpeedConfig, OptimizerConfig

if TYPE_CHECKING:
    from grpo_trainer.engine.training_engine import TrainingEngine

VERSION = 1


@dataclass(frozen=True)
class Shape:
    """Of a Qwen2 model with tied embeddings."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int = 151_936

    @property
    def num_parameters(self) -> int:
        kv = self.hidden // self.heads * self.kv_heads
        attention = 2 * self.hidden * self.hidden + 2 * self.hidden * kv + self.hidden + 2 * kv
        layer = attention + 3 * self.hidden * self.intermediate + 2 * self.hidden
        return self.vocabulary * self.hidden + self.layers * layer + self.hidden


TINY = Shape(hidden=64, intermediate=128, layers=2, heads=2, kv_heads=1, vocabulary=128)
SMALL = Shape(hidden=512, intermediate=2048, layers=8, heads=8, kv_heads=2, vocabulary=32_000)


def save_policy(
    folder: Path,
    shape: Shape,
    device: torch.device,
    dtype: torch.dtype,
    *,
    in_nf4: bool = False,
    seed: int = 0,
    deviation: float = 0.02,
) -> Path:
    """Save a model of random weights in `dtype`, made on `device`: three billion numbers take a CPU minutes.

    `in_nf4`: with the values of NF4. `deviation`: the standard deviation of the weights.
    """
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=32_768,
        tie_word_embeddings=True,
        initializer_range=deviation,
        bos_token_id=None,
        eos_token_id=None,
    )
    with device:
        model = Qwen2ForCausalLM(config).to(dtype)
    if in_nf4:
        from grpo_trainer.lora.nf4 import round_to_nf4  # peft, without which the other checks do

        round_to_nf4(model)
    model.save_pretrained(folder)
    return folder


def new_engine(
    folder: Path,
    *,
    dtype: str,
    zero_stage: int,
    offload: bool = False,
    recompute: bool = False,
    rate: float = 1e-4,
    lora: LoraConfig | None = None,
    load_in_4bit: bool = False,
    share: Literal["auto", "never"] = "auto",
    together: int = 1,
    attention: Literal["sdpa", "flash_attention_2"] = "sdpa",
) -> "TrainingEngine":
    # DeepSpeed takes seconds to import, and the other checks do without it.
    from grpo_trainer.engine.training_engine import TrainingEngine

    return TrainingEngine(
        ModelConfig(
            name_or_path=str(folder),
            dtype=dtype,
            attn_implementation=attention,
            gradient_checkpointing=recompute,
            lora=lora,
            load_in_4bit=load_in_4bit,
        ),
        OptimizerConfig(learning_rate=rate),
        DeepSpeedConfig(
            zero_stage=zero_stage,
            offload_optimizer=offload,
            share_prefixes=share,
            sequence_parallel_size=together,
            timeout_s=300.0,
        ),
        AlgorithmConfig(),
        temperature=1.0,
        total_updates=1000,
        seed=0,
    )


def made_update(
    engine: "TrainingEngine",
    vocabulary: int,
    *,
    completions: int,
    length: int,
    tokens_per_micro_batch: int,
    for_each_rank: bool = False,
) -> list[MicroBatch]:
    """This rank's micro-batches of one update: completions of half of `length` tokens after prompts of the other.

    `for_each_rank`: all of the update's, the same on every rank.
    """
    rank, world_size = (0, 1) if for_each_rank else (engine.rank, engine.world_size)
    rng = random.Random(0)
    algorithm = AlgorithmConfig()
    prompt_length = length // 2
    longest = length - prompt_length
    taken = []
    for number in range(completions):
        prompt, completion = ([rng.randrange(vocabulary) for _ in range(n)] for n in (prompt_length, longest))
        episode = single_turn(
            f"e-{number}",
            prompt,
            completion,
            versions=[(VERSION, longest)],
            finish_reason="stop",
            logprobs=[-5.0] * longest,
        )
        taken.append((episode, rng.gauss(0, 1)))
    sequences = sequences_of(taken, algorithm, max_completion_length=longest)
    plan = plan_updates(
        sequences,
        world_size=world_size,
        tokens_per_micro_batch=tokens_per_micro_batch,
        prefixes=engine.prefixes,
        num_updates=1,
    )
    parts, plans = parts_of_ranks(sequences, plan, world_size)
    (update,) = micro_batches(
        parts[rank],
        plans[rank],
        tokens_of_updates(sequences, plan),
        version=VERSION,
        pad_token_id=0,
        device=engine.device,
        prefixes=engine.prefixes,
    )
    return update


def free(engine: "TrainingEngine") -> None:
    """Give back the memory of masters and moments.

    DeepSpeed's hooks on the parameters hang on autograd, where no collector looks: they keep the engine and its
    optimizer alive beyond their last names. So the optimizers are emptied.
    """
    sharded = engine._engine.optimizer
    engine._engine.destroy()
    sharded.optimizer.state.clear()
    sharded.optimizer.param_groups.clear()
    vars(sharded).clear()
    if engine.device.type == "cuda":
        torch.cuda.empty_cache()
