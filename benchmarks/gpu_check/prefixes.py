"""Shared prefixes, each token of a micro-batch computed once, against a padded row for each sequence."""

import gc
import random
import statistics
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from grpo_trainer.algorithm.batching import micro_batches, parts_of_ranks, tokens_of_updates
from grpo_trainer.algorithm.decisions import sequences_of
from grpo_trainer.algorithm.planning import plan_updates
from grpo_trainer.algorithm.sequences import Episode, Segment, TrainingSequence, Turn, single_turn
from grpo_trainer.config.algorithm import AlgorithmConfig

from .check import Check, Figures, Needs, Place, check
from .policies import TINY, VERSION, free, new_engine, save_policy
from .throughput import SHAPES

if TYPE_CHECKING:
    from grpo_trainer.engine.training_engine import TrainingEngine

WEIGHT_DEVIATION = 0.05
"""Weights so large that what attends to a token of another path is beyond the bound of logprobs, tiny or not."""
GROUP, TURNS, UPDATES = 8, 5, 4


@dataclass(frozen=True)
class Updates:
    """What a few updates of one batch do and cost."""

    norms: torch.Tensor
    logprobs: torch.Tensor
    """Before the first update, of the sequences as they were given [N]."""
    prompt_turned: float | None
    """Mean difference of logprobs in padded rows with the prompt's tokens turned around: what attention to the prompt
    does to them."""
    computed: int
    """Tokens of a forward pass, without padding."""
    seconds: float
    peak: int | None
    """Bytes on the GPU above what was there; None on a CPU."""


def groups(
    rng: random.Random, vocabulary: int, *, prompt: int, longest: int, count: int
) -> list[tuple[Episode, float]]:
    """Groups of completions of 1 token to `longest`, after one prompt each."""
    taken = []
    for group in range(count):
        ids = [rng.randrange(vocabulary) for _ in range(prompt)]
        for member in range(GROUP):
            said = [rng.randrange(vocabulary) for _ in range(rng.randint(1, longest))]
            versions, logprobs = [(VERSION, len(said))], [-5.0] * len(said)
            name = f"e-{group}-{member}"
            made = single_turn(name, ids, said, versions=versions, finish_reason="stop", logprobs=logprobs)
            taken.append((made, rng.gauss(0, 1)))
    return taken


def turns(rng: random.Random, vocabulary: int, *, prompt: int, longest: int, count: int) -> list[tuple[Episode, float]]:
    """2 · `count` episodes after one prompt, of five turns with a segment for each, which begins with all before it."""
    taken, ids = [], [rng.randrange(vocabulary) for _ in range(prompt)]
    for member in range(2 * count):
        history, segments = list(ids), []
        for _ in range(TURNS):
            said = [rng.randrange(vocabulary) for _ in range(rng.randint(1, longest // TURNS))]
            turn = Turn(len(history), len(history) + len(said), [(VERSION, len(said))], "stop", "")
            history = [*history, *said]
            segments.append(Segment(history, [turn], [-5.0] * len(said)))
            history = [*history, *(rng.randrange(vocabulary) for _ in range(longest // 16))]
        taken.append((Episode(f"e-{member}", segments), rng.gauss(0, 1)))
    return taken


def updates_of(engine: "TrainingEngine", sequences: list[TrainingSequence], budget: int, *, prompt: int) -> Updates:
    plan = plan_updates(sequences, world_size=1, tokens_per_micro_batch=budget, prefixes=engine.prefixes)
    (own,), plans = parts_of_ranks(sequences, plan, 1)
    (batches,) = micro_batches(
        own,
        plans[0],
        tokens_of_updates(sequences, plan),
        version=VERSION,
        pad_token_id=0,
        device=engine.device,
        prefixes=engine.prefixes,
    )
    numbers = [i for of_batch in plan[0][0] for i in of_batch]
    in_row_order = torch.cat(engine.logprobs(batches)).float().cpu()
    found = in_row_order.split([sequences[i].num_trained for i in numbers])
    is_shared = engine.prefixes is not None
    prompt_turned = None
    if not is_shared:
        others = [replace(batch, input_ids_BL=_with_prompts_turned(batch.input_ids_BL, prompt)) for batch in batches]
        prompt_turned = float((torch.cat(engine.logprobs(others)).float().cpu() - in_row_order).abs().mean())
    norms, seconds = [], []
    for _ in range(UPDATES):
        started = time.perf_counter()
        # The update reduces its metrics into Python's floats, and so waits for the GPU.
        norms.append(engine.update(batches)["grad_norm"])
        seconds.append(time.perf_counter() - started)
    return Updates(
        torch.tensor(norms),
        torch.cat([part for _, part in sorted(zip(numbers, found, strict=True), key=lambda pair: pair[0])]),
        prompt_turned,
        sum(batch.input_ids_BL.numel() for batch in batches) if is_shared else sum(s.num_tokens for s in sequences),
        statistics.median(seconds[1:]),
        torch.cuda.max_memory_allocated() if engine.device.type == "cuda" else None,
    )


def _with_prompts_turned(input_ids_BL: torch.Tensor, prompt: int) -> torch.Tensor:
    """Turn the tokens of the prompts around, all but the last one."""
    turned = input_ids_BL.clone()
    turned[:, : prompt - 1] = input_ids_BL[:, : prompt - 1].flip(1)
    return turned


def measured(folder: Path, sequences: list[TrainingSequence], budget: int, *, prompt: int, **how: object) -> Updates:
    """Updates of an engine of its own, whose memory is given back."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    engine = new_engine(folder, dtype="bfloat16", zero_stage=2, recompute=True, **how)  # type: ignore[arg-type]
    found = updates_of(engine, sequences, budget, prompt=prompt)
    free(engine)
    del engine
    gc.collect()
    return found


def against_padded(
    folder: Path, place: Place, vocabulary: int, attention: Literal["sdpa", "flash_attention_2"], *shapes: str
) -> Figures:
    # Several micro-batches also where prefixes are shared: what a micro-batch costs whatever is in it, the launches of
    # its kernels, then counts alike on both sides.
    sizes, count, budget = ((24, 24), 2, 512) if place.tiny else ((1024, 1024), 16, 8_192)
    figures: dict[str, float | None] = {}
    for shape in shapes:
        make = groups if shape == "groups" else turns
        taken = make(random.Random(0), vocabulary, prompt=sizes[0], longest=sizes[1], count=count)
        sequences = sequences_of(taken, AlgorithmConfig(), max_completion_length=sizes[1])
        run = partial(measured, folder, sequences, budget, prompt=sizes[0])
        padded, shared = run(share="never"), run(attention=attention)
        unique = shared.computed / padded.computed
        norms = (shared.norms - padded.norms).norm() / padded.norms.norm()
        figures |= {
            f"{shape}, share of computed tokens": unique,
            f"{shape}, gradient norm, relative difference": float(norms),
            f"{shape}, logprobs at the start, mean difference": float((shared.logprobs - padded.logprobs).abs().mean()),
            f"{shape}, logprobs after the prompt turned around, mean difference": padded.prompt_turned,
            f"{shape}, time / padded": shared.seconds / padded.seconds,
            f"{shape}, time / padded / share of computed tokens": shared.seconds / padded.seconds / unique,
            f"{shape}, peak / padded": None if not (shared.peak and padded.peak) else shared.peak / padded.peak,
        }
    return figures


def _of_half_a_billion(place: Place, attention: Literal["sdpa", "flash_attention_2"]) -> Figures:
    shape = TINY if place.tiny else SHAPES["0.5 B"]
    folder = save_policy(place.folder / "policy", shape, place.device, torch.bfloat16, deviation=WEIGHT_DEVIATION)
    return against_padded(folder, place, shape.vocabulary, attention, "groups", "turns")


@check(needs=Needs(memory_gib=40.0, packages=("deepspeed", "peft")), light=False)
def shared_prefixes(place: Place) -> Figures:
    """Updates of a 0.5 B model in bf16 with each token computed once, sdpa, against padded rows"""
    return _of_half_a_billion(place, "sdpa")


@check(needs=Needs(memory_gib=40.0, packages=("deepspeed", "peft", "flash_attn")), light=False)
def shared_flash_attention(place: Place) -> Figures:
    """Updates of a 0.5 B model in bf16 with each token computed once, flash attention, against padded rows with sdpa"""
    return _of_half_a_billion(place, "flash_attention_2")


@check(needs=Needs(memory_gib=40.0, packages=("deepspeed", "peft")), light=False)
def shared_prefixes_of_experts(place: Place) -> Figures:
    """Updates of a model of experts in bf16 with each token computed once, sdpa, against padded rows"""
    scale, vocabulary = (1, 128) if place.tiny else (12, 32_000)
    config = Qwen3MoeConfig(
        vocab_size=vocabulary, hidden_size=64 * scale, intermediate_size=128 * scale,
        num_hidden_layers=2 * min(scale, 4), num_attention_heads=4, num_key_value_heads=2, head_dim=16 * scale,
        num_experts=8, num_experts_per_tok=2,
        moe_intermediate_size=64 * scale, max_position_embeddings=32_768, initializer_range=0.02,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    folder = place.folder / "experts"
    with place.device:
        Qwen3MoeForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    return against_padded(folder, place, vocabulary, "sdpa", "groups")


CHECKS: list[Check] = [shared_prefixes, shared_flash_attention, shared_prefixes_of_experts]
