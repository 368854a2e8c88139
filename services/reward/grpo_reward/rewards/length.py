"""Short among those of the same prompt."""

import json
from collections import defaultdict
from typing import Any, Literal

from ..answers.gold_text import text_of_boolean
from ..author import Score, reward
from .accuracy import accuracy


@reward(columns=["solution"])
def length(
    completions: list[str],
    *,
    prompts: list[Any],
    completion_ids: list[list[int] | None],
    solution: list[str],
    unit: Literal["tokens", "characters"] = "tokens",
    prefix: str = "",
) -> list[Score]:
    """Within a group a right answer earns more the shorter it is, a wrong one loses when it is longer than the middle.

    With λ = 0.5 − (L − L_min) / (L_max − L_min) over the completions of one prompt: λ for a right answer, min(0, λ) for
    a wrong one, and 0 for all when L_max = L_min. From 0.5 down to −0.5. Right or wrong is what `accuracy` says; where
    that is unscorable, so is this, and the length takes no part.

    `prefix` is for `accuracy`: text the prompt has written already, such as `<think>`. Its length does not count.

    Samples with the same prompt in one request are a group, so a group must not be spread over requests;
    without prompts the whole request is one.

    Source: Kimi k1.5 (arXiv 2501.12599), section 2.3.3, as in open-r1's `len_reward`.
    """
    judged = [_judged(text, gold, prefix) for text, gold in zip(completions, solution, strict=True)]
    groups: dict[str, list[int]] = defaultdict(list)
    for position, (prompt, verdict) in enumerate(zip(prompts, judged, strict=True)):
        if verdict.score is not None:
            groups[json.dumps(prompt, sort_keys=True)].append(position)
    results = judged
    for positions in groups.values():
        lengths = [_length(completions[position], completion_ids[position], unit) for position in positions]
        shortest, longest = min(lengths), max(lengths)
        for position, size in zip(positions, lengths, strict=True):
            share = 0.5 - (size - shortest) / (longest - shortest) if longest > shortest else 0.0
            results[position] = Score(share if judged[position].score else min(0.0, share))
    return results


def _judged(text: str, gold: Any, prefix: str) -> Score:
    gold = text_of_boolean(gold)
    if not isinstance(gold, str):
        return Score(None, detail=f"column solution: {gold!r:.100} is no text")
    return accuracy(text, solution=gold, prefix=prefix)


def _length(text: str, token_ids: list[int] | None, unit: str) -> int:
    if unit == "characters":
        return len(text)
    if token_ids is None:
        raise ValueError('no completion_token_ids came with the sample: send them or set unit to "characters"')
    return len(token_ids)
