"""Sequences that share in every way, and an update of them in padded rows and with shared prefixes."""

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import torch
from tests.rollout.families.models import FAMILIES
from tests.trainer.made_episodes import VERSION, decided
from transformers import AutoModelForCausalLM, PreTrainedModel

from grpo_trainer.algorithm.batching import collate
from grpo_trainer.algorithm.loss import policy_loss
from grpo_trainer.algorithm.prefixes import PrefixSharing
from grpo_trainer.algorithm.sequences import Episode, MicroBatch, Segment, TrainingSequence, Turn, single_turn
from grpo_trainer.algorithm.surrogates.clipped import clipped
from grpo_trainer.config.algorithm import AlgorithmConfig
from grpo_trainer.engine.model import attention_for
from grpo_trainer.engine.policy import Policy

SHARING = PrefixSharing()
Learnt = tuple[torch.Tensor, float, torch.Tensor]
"""Logprobs, the loss and the gradient of one update."""


def forest_of_all_kinds(seed: int = 3) -> list[TrainingSequence]:
    """Groups of a prompt whose completions begin alike, an equal pair, a completion that goes on where another ends, a
    whole completion that is context of another episode, a masked turn at the end that another one trains, and a
    sequence that shares nothing; advantages, versions and logprobs of their own."""
    rng = random.Random(seed)

    def tokens(least: int, most: int) -> list[int]:
        return [rng.randrange(5, 100) for _ in range(rng.randint(least, most))]

    taken = []
    for prompt in (tokens(4, 9), tokens(7, 12)):
        begin = tokens(2, 2)
        completions = [[*(begin if number % 2 else []), *tokens(2, 12)] for number in range(4)]
        completions += [completions[0], completions[1] + tokens(1, 3)]
        taken += [(prompt, completion) for completion in completions]
        taken.append((prompt + completions[2], tokens(3, 4)))
    taken.append((tokens(3, 3), tokens(5, 9)))
    rng.shuffle(taken)
    episodes = [
        single_turn(
            f"e-{number}", prompt, completion, versions=[(VERSION - number % 2, len(completion))], finish_reason="stop",
            logprobs=[rng.gauss(-4.5, 0.5) for _ in completion],
        )
        for number, (prompt, completion) in enumerate(taken)
    ]  # fmt: skip
    prompt, said = taken[0]
    start, middle = len(prompt), len(prompt) + len(said)
    masked = Turn(middle, middle + 3, [(VERSION, 3)], "stop", masked="mixed")
    turns = [Turn(start, middle, [(VERSION, len(said))], "stop"), masked]
    further = tokens(5, 5)
    episodes += [
        Episode("masked at its end", [Segment([*prompt, *said, *further], turns)]),
        single_turn("goes on", prompt, said + further, versions=[(VERSION, len(said) + 5)], finish_reason="stop"),
    ]
    sequences = decided([(episode, rng.gauss(0, 1)) for episode in episodes])
    weights = np.random.default_rng(seed)
    return [
        replace(one, weights_L=one.weights_L * weights.uniform(0.5, 2.0, one.num_tokens).astype(np.float32))
        for one in sequences
    ]


def batches(parts: list[list[TrainingSequence]], prefixes: PrefixSharing | None) -> list[MicroBatch]:
    return [
        collate(part, version=VERSION, update_tokens=1, pad_token_id=0, device="cpu", prefixes=prefixes)
        for part in parts
    ]


def learnt(policy: Policy, update: list[MicroBatch]) -> Learnt:
    algorithm = AlgorithmConfig(loss_type="grpo", entropy_coef=0.01)
    logprobs, loss = [], 0.0
    policy.zero_grad()
    for batch in update:
        logprobs_N, entropy_N = policy(*batch.inputs)
        batch.old_logprobs_N = torch.where(batch.fresh_N, logprobs_N.detach() - 0.01, batch.rollout_logprobs_N)
        of_batch, _ = policy_loss(logprobs_N, entropy_N, batch, algorithm, clipped)
        of_batch.backward()
        loss += of_batch.item()
        logprobs.append(logprobs_N.detach())
    grads = [parameter.grad for parameter in policy.parameters() if parameter.grad is not None]
    return torch.cat(logprobs), loss, torch.cat([grad.flatten().double() for grad in grads])


def of_family(name: str) -> PreTrainedModel:
    """The tiny model of a family, with windows shorter than its sequences and weights that attend to something."""
    config = FAMILIES[name].config()
    text = config.get_text_config()
    if getattr(text, "sliding_window", None):
        text.sliding_window = 5
    torch.manual_seed(0)
    attention = attention_for(config, "sdpa")
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation=attention).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, parameter.shape[-1] ** -0.5)
    return model


def both_ways(
    model: PreTrainedModel, sequences: list[TrainingSequence], cuts: Sequence[int] = ()
) -> tuple[Learnt, Learnt]:
    """One padded micro-batch, and shared ones cut at `cuts`."""
    policy = Policy(model, temperature=0.9, chunk_tokens=8)
    edges = [0, *cuts, len(sequences)]
    expected = learnt(policy, batches([sequences], None))
    return expected, learnt(policy, batches([sequences[a:b] for a, b in pairwise(edges)], SHARING))


def gradient_difference(name: str) -> float:
    """How far a family's gradient with shared prefixes is from that of padded rows, over its size, in float32."""
    expected, found = both_ways(of_family(name), forest_of_all_kinds())
    return float((found[2] - expected[2]).norm() / expected[2].norm())
