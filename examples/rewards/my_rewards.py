"""Rewards of your own: copy this file, change it, and start the server with it.

    grpo-reward serve --plugin my_rewards.py

A reward is a function with `@reward` above it. Its parameters say what it needs: those without a default are columns of
your dataset, those with one are params that a run can set. It returns a finite number, None when the sample is none of
its business (None is not 0: it takes no part in the average), or a `Score` with a reason, log columns or metrics.
It runs in a worker process. When it takes longer than `timeout_s`, or crashes, this one score is lost, and with it the
total of its sample if the reward has a weight; nothing else is.
"""

import re

from grpo_reward import Score, reward


@reward
def last_number(completion: str, *, answer: float, tolerance: float = 1e-6) -> Score:
    """1 when the last number in the completion is the column `answer`, else 0."""
    numbers = re.findall(r"-?\d+(?:\.\d+)?", completion)
    if not numbers:
        return Score(0.0, log={"found": None})
    return Score(float(abs(float(numbers[-1]) - answer) <= tolerance), log={"found": numbers[-1]})


@reward
def polite(completion: str, *, truncated: bool | None = None) -> float | None:
    """1 when the completion says please. Completions that ran into the length limit are not judged."""
    if truncated:
        return None
    return float("please" in completion.lower())


@reward
def rank_by_length(completions: list[str], **columns: list[object]) -> list[float | None]:
    """From 1 for the shortest completion of the request down to 0 for the longest.

    With a parameter `completions` a function sees the whole request at once, as reward functions of TRL
    and ms-swift do; `columns` has a list for every column.
    """
    order = sorted(len(text) for text in completions)
    last = max(len(order) - 1, 1)
    return [1.0 - order.index(len(text)) / last for text in completions]
