"""What a teacher scores: the sampled tokens behind the prompt that it reads; and where the policy is its own teacher,
the sequences that the ranks score."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from .sequences import Episode, Segment, TrainingSequence, untrained_sequence


def behind(prompt_ids: list[int], segment: Segment) -> Segment:
    """Return the segment with another prompt before its first turn. Its sampled tokens are those of before."""
    start = segment.turns[0].start
    moved = len(prompt_ids) - start
    turns = [replace(turn, start=turn.start + moved, end=turn.end + moved) for turn in segment.turns]
    return replace(segment, token_ids=[*prompt_ids, *segment.token_ids[start:]], turns=turns)


def sequences_to_teach(taught: Sequence[tuple[Episode, list[int]]], *, version: int) -> list[TrainingSequence]:
    """Return the sampled tokens of each episode behind its teacher's prompt, to be scored by policy `version`: all of
    them are in the mask, those of masked turns, too. They carry the number of the episode; one without a sampled token
    has none."""
    found = []
    for number, (episode, prompt_ids) in enumerate(taught):
        for segment in episode.segments:
            if segment.num_sampled:
                seen = behind(prompt_ids, segment)
                turns = [replace(turn, masked=None) for turn in seen.turns]
                sequence = untrained_sequence(replace(seen, turns=turns), episode=number)
                sequence.versions_L[sequence.loss_mask_L] = version
                found.append(sequence)
    return found


def take_logprobs(episodes: Sequence[Episode], scored: Mapping[int, list[float]]) -> None:
    """Give the episodes what their own policy found of their sampled tokens, by the number of the episode."""
    for number, episode in enumerate(episodes):
        episode.teacher_logprobs = scored.get(number, [])
