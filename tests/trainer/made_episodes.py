"""Episodes and training sequences, for tests that need many."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from grpo_proto import RewardScore
from grpo_trainer.algorithm.batching import micro_batches, parts_of_ranks, tokens_of_updates
from grpo_trainer.algorithm.decisions import sequences_of
from grpo_trainer.algorithm.demonstrations import Demonstrations
from grpo_trainer.algorithm.image_tokens import Images
from grpo_trainer.algorithm.planning import plan_updates
from grpo_trainer.algorithm.prefixes import PrefixSharing
from grpo_trainer.algorithm.sequences import Episode, MicroBatch, Segment, TrainingSequence, Turn, single_turn
from grpo_trainer.config.algorithm import AlgorithmConfig
from grpo_trainer.config.chord import ChordConfig
from grpo_trainer.data.demonstrations import Example
from grpo_trainer.engine.imitation import Imitation

MAX_COMPLETION_LENGTH = 14
VERSION = 1
"""The policy that is trained: what is fresh is of it, what is stale of the one before."""

Taken = list[tuple[Episode, float]]


def make_taken(count: int, *, seed: int = 0, stale_share: float = 0.0, logprobs: bool = True) -> Taken:
    """Episodes of one turn, prompts of 1 to 9 and completions of 1 to 14 tokens, with any advantage."""
    rng = random.Random(seed)
    taken = []
    for number in range(count):
        prompt = [rng.randrange(5, 100) for _ in range(rng.randint(1, 9))]
        completion = [rng.randrange(5, 100) for _ in range(rng.randint(1, MAX_COMPLETION_LENGTH))]
        rollout = [rng.gauss(-4.5, 0.5) for _ in completion] if logprobs else None
        advantage = rng.gauss(0, 1)
        version = VERSION if rng.random() >= stale_share else VERSION - 1
        versions = [(version, len(completion))]
        episode = single_turn(
            f"e-{number}", prompt, completion, versions=versions, finish_reason="stop", logprobs=rollout
        )
        taken.append((episode, advantage))
    return taken


def decided(taken: Taken, algorithm: AlgorithmConfig | None = None) -> list[TrainingSequence]:
    return sequences_of(taken, algorithm or AlgorithmConfig(), max_completion_length=MAX_COMPLETION_LENGTH)


def make_sequences(count: int, algorithm: AlgorithmConfig | None = None, **how: object) -> list[TrainingSequence]:
    return decided(make_taken(count, **how), algorithm)  # type: ignore[arg-type]


def build_updates(
    sequences: list[TrainingSequence],
    *,
    version: int = VERSION,
    tokens_per_micro_batch: int,
    rank: int = 0,
    world_size: int = 1,
    pad_token_id: int = 0,
    device: object = "cpu",
    num_updates: int | None = None,
    prefixes: PrefixSharing | None = None,
    see: Callable[[list[TrainingSequence]], Images | None] = lambda _: None,
) -> list[list[MicroBatch]]:
    """The micro-batches of one rank, the way the loop and the ranks make them."""
    plan = plan_updates(
        sequences,
        world_size=world_size,
        tokens_per_micro_batch=tokens_per_micro_batch,
        prefixes=prefixes,
        num_updates=num_updates,
    )
    parts, plans = parts_of_ranks(sequences, plan, world_size)
    update_tokens = tokens_of_updates(sequences, plan)
    return micro_batches(
        parts[rank],
        plans[rank],
        update_tokens,
        version=version,
        pad_token_id=pad_token_id,
        device=device,  # type: ignore[arg-type]
        prefixes=prefixes,
        images=see(parts[rank]),
    )


def one_completion(prompt: list[int], completion: list[int], *, fresh: bool = True, advantage: float = 0.0) -> Taken:
    versions = [(VERSION if fresh else VERSION - 1, len(completion))]
    return [(single_turn("e", prompt, completion, versions=versions, finish_reason="stop"), advantage)]


def two_segments(number: int = 0) -> Episode:
    """An episode of three turns: two in the first segment, a masked and a trained one in the second."""
    first = Segment(
        list(range(5, 25)),
        [Turn(3, 8, [(VERSION - 1, 2), (VERSION, 3)], "stop", "a"), Turn(12, 20, [(VERSION, 8)], "tool_calls", "b")],
        [-1.0 - 0.1 * k for k in range(13)],
    )
    second = Segment(
        list(range(30, 40)),
        [Turn(2, 4, [(VERSION, 2)], "stop", "c", masked="too old"), Turn(6, 10, [(VERSION, 4)], "stop", "d")],
        [-2.0 - 0.1 * k for k in range(6)],
        parent=0,
        fork_at=2,
    )
    return Episode(f"e-{number}", [first, second])


def completion(
    episode_id: str,
    token_ids: list[int],
    logprobs: list[float],
    text: str,
    finish_reason: str,
    versions: list[tuple[int, int]],
    rewards: dict[str, RewardScore] | None = None,
    total: float | None = None,
    advantage: float | None = None,
    unscored_because: tuple[str, RewardScore] | None = None,
    *,
    prompt: Sequence[int] = (1,),
) -> Episode:
    """An episode of one turn, with what became of it."""
    made = single_turn(
        episode_id,
        list(prompt),
        token_ids,
        versions=versions,
        finish_reason=finish_reason,
        text=text,
        logprobs=logprobs,
    )
    made.rewards, made.total, made.advantage = rewards or {}, total, advantage
    made.unscored_because = unscored_because
    return made


def saying(episode: Episode, text: str) -> Episode:
    """The same episode of one turn with another text."""
    (segment,) = episode.segments
    (turn,) = segment.turns
    return replace(episode, segments=[replace(segment, turns=[replace(turn, text=text)])])


def conversation(episode_id: str = "c", *, version: int = VERSION) -> Episode:
    """A question, a tool's call and the answer, cut off by a limit; a side branch was sampled before the answer."""

    def turn(start: int, end: int, text: str, order: int, masked: str | None = None) -> Turn:
        return Turn(start, end, [(version, end - start)], "stop", text, masked=masked, order=order)

    call = {"id": "call_1", "type": "function", "function": {"name": "calc", "arguments": '{"expr": "3*4"}'}}
    answered = Segment([5, 1, 6, 7, 2, 8, 9], [turn(2, 4, "calc", 0), turn(5, 7, "12", 2)], [-0.1] * 4)
    branch = Segment(
        [5, 1, 12, 13],
        [turn(2, 4, "notes", 1, "undelivered")],
        [-0.2] * 2,
        parent=0,
        fork_at=2,
        fork_reason="another program",
    )
    return Episode(
        episode_id,
        [answered, branch],
        status="truncated",
        cause="policy",
        transcript=[
            {"role": "user", "content": "What is 3*4?"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": "12"},
            {"role": "assistant", "content": "12"},
        ],
        opening=1,
    )


def made_imitation(**how: Any) -> Imitation:
    """Three tenths of the loss: five demonstrations of 1 to 9 tokens behind a prompt of two."""
    config = ChordConfig(sft_dataset="made", sft_batch_size=5, mu_peak=0.3, enable_phi_function=True)
    examples = [Example(input_ids=[7, 8, *range(9, 10 + k)], completion_mask=[0, 0] + [1] * (1 + k)) for k in range(9)]
    (update,) = build_updates(
        Demonstrations(examples, config, seed=1).of_update(0, version=VERSION),
        tokens_per_micro_batch=how.pop("budget"),
        **how,
    )
    return Imitation(update, config.mu_peak, config.enable_phi_function)
