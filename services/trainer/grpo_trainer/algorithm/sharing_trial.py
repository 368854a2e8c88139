"""The trial of shared prefixes: a small forest of a run's own prompts, to be computed shared and in padded rows."""

from collections.abc import Sequence
from itertools import cycle, islice

from .sequences import Segment, TrainingSequence, Turn, untrained_sequence

STEM_TOKENS, COMPLETION_TOKENS = 512, 12


def trial_sequences(prompts: Sequence[list[int]], *, window: int | None, longest: int) -> list[TrainingSequence]:
    """Make sequences of at most `longest` tokens that share in every way: a prompt, an equal pair, a fork within the
    completion, a sequence that ends where another goes on, and one whose completion is the context of the next.

    `prompts` are token ids, at least one; of long ones the beginning is taken. With a `window` of attention the first
    prompt is longer than it, if the run's sequences can be.
    """
    beyond = min(window or 0, longest - COMPLETION_TOKENS)
    stems = [ids[:STEM_TOKENS] for ids in prompts if ids][:2]
    stems[0] = list(islice(cycle([token for ids in prompts for token in ids]), max(len(stems[0]), beyond)))
    # Any tokens will do as completions; those of the prompts are in the vocabulary.
    words = list(islice(cycle([token for ids in reversed(prompts) for token in ids]), 3 * COMPLETION_TOKENS))
    said, other, last = (words[start::3] for start in range(3))
    half = COMPLETION_TOKENS // 2
    endings = [said, said, said[:half] + other[:half], said[:half], said + last, other]
    found = []
    for stem in stems:
        for ending in endings:
            start = min(len(stem), max(longest - len(ending), 1))
            found.append((stem[:start], ending[: max(longest - start, 1)]))
    return [_sequence(stem, ending, number) for number, (stem, ending) in enumerate(found)]


def _sequence(stem: list[int], ending: list[int], number: int) -> TrainingSequence:
    length = len(stem) + len(ending)
    turn = Turn(len(stem), length, [(0, len(ending))], "stop")
    return untrained_sequence(Segment([*stem, *ending], [turn]), episode=number)
