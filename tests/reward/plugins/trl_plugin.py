"""Rewards as people write them for TRL; nothing here knows of this project."""

import asyncio

import numpy as np


def _helper(completions):
    raise AssertionError("no reward")


def parse(text):
    raise AssertionError("no reward")


def says_answer(completions, answer, **kwargs):
    """1 when the answer stands in the completion."""
    contents = [completion[0]["content"] for completion in completions]
    hits = [gold in text for text, gold in zip(contents, answer, strict=True)]
    kwargs["log_extra"]("answer", answer)
    kwargs["log_metric"]("hit_rate", sum(hits) / len(hits))
    return [1.0 if hit else None for hit in hits]


async def later(prompts, completions, completion_ids, trainer_state):
    await asyncio.sleep(0)
    return np.asarray([len(ids) + trainer_state.global_step for ids in completion_ids], dtype=np.float32)


def flags(completions, hint=None):
    return [hint is None and text == "yes" for text in completions]


def needs_more(completions, trainer_state, **kwargs):
    return [trainer_state.max_steps for _ in completions]
