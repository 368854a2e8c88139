"""Stale tokens by turn: what an older policy sampled than the bound allows is masked, and the rest is trained.

A turn is masked whole: what stands behind a stale token of it was sampled by a mixture. Long episodes would otherwise
be dropped, and sampled again, for ever.
"""

from dataclasses import replace

from .sequences import Group

STALE = "stale"


def mask_stale_turns(group: Group, oldest: int) -> None:
    """Mask every turn of `group` with a token of a version before `oldest`."""
    for episode in group.episodes:
        for segment in episode.segments:
            for number, turn in enumerate(segment.turns):
                if turn.masked is None and any(version < oldest for version, _ in turn.versions):
                    segment.turns[number] = replace(turn, masked=STALE)


def is_stale(group: Group) -> bool:
    """Whether nothing of `group` can be trained on, because it is stale."""
    masks = [turn.masked for episode in group.episodes for turn in episode.turns if turn.num_tokens]
    return STALE in masks and None not in masks
