"""OpenRLHF's remote reward: `--reward.remote_url http://HOST:8001/get_reward?rewards=…`.

Its client sends one sample a request, texts decoded with their special tokens, and reads `rewards`, `scores` (dynamic
filtering and evaluation) and `extra_logs`, each a list. It makes tensors of all three, so that a null would stop the
run, and it expects the same `extra_logs` from every answer.
"""

import logging
import re
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BaseModel

from grpo_proto import ScoreSample
from grpo_proto.messages.base import StopAtFirstFault

from ..refusal import Refusal
from .base import Adapter, PeerRequest, Scored, labelled_columns
from .choice import Choice

log = logging.getLogger("grpo_reward.adapters")

END_TOKENS = (
    "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "<end_of_turn>", "<eos>", "</s>",
    "<｜end▁of▁sentence｜>", "<|end|>", "<|return|>", "<turn|>", "<|user|>",
)  # fmt: skip
"""How Qwen, Llama, Gemma, Mistral, DeepSeek, Phi, gpt-oss and GLM end a turn.

A `format` reward would never hold with one behind it."""

BEGINNING = re.compile(r"\s*(?:<s>|<bos>|<\|begin_of_text\|>|<\|startoftext\|>|<｜begin▁of▁sentence｜>)?\s*")
"""What a tokenizer puts before a text that it encodes, so that it stands in `query` and not in `prompts`."""
MAX_SHOWN_CHARS = 80


class OpenRLHFRequest(PeerRequest):
    """OpenRLHF → reward server. `query` is prompt and response in one; all lists have the same length."""

    query: Annotated[list[str], StopAtFirstFault()]
    prompts: Annotated[list[str], StopAtFirstFault()] | None = None
    labels: list[Any] | None = None


class OpenRLHFRewards(BaseModel):
    """Reward server → OpenRLHF. One number per sample everywhere."""

    rewards: list[float]
    scores: list[float]
    extra_logs: dict[str, list[float]]


def samples(body: OpenRLHFRequest, choice: Choice) -> list[ScoreSample]:
    """Raises Refusal 422 when the lists differ in length."""
    count = len(body.query)
    prompts: Sequence[str | None] = body.prompts or [None] * count
    labels: Sequence[Any] = body.labels or [None] * count
    for name, values in (("prompts", prompts), ("labels", labels)):
        if len(values) != count:
            raise Refusal(422, "invalid_value", f"{name} has {len(values)} entries and query has {count}")
    end = choice.own.get("end")
    ends = END_TOKENS if end is None else (end,)
    return [
        ScoreSample(
            prompt=prompt,
            completion=completion_of(query, prompt, ends),
            columns=columns,
        )
        for query, prompt, columns in zip(body.query, prompts, labelled_columns(labels, choice), strict=True)
    ]


def completion_of(query: str, prompt: str | None, ends: tuple[str, ...]) -> str:
    """What follows the prompt, without one end token. The texts that begin a sequence, and blanks, need not agree.

    A query that does not begin with its prompt stays whole, with a line in the log: an answer in the prompt is scored.
    """
    completion = query
    if prompt and query.startswith(prompt):
        completion = query[len(prompt) :]
    elif prompt:
        behind, wanted = (BEGINNING.sub("", text, count=1) for text in (query, prompt))
        if behind.startswith(wanted):
            completion = behind[len(wanted) :]
        else:
            _warn_of_whole(query, prompt)
    end = next((end for end in ends if end and completion.endswith(end)), "")
    return completion.removesuffix(end)


def _warn_of_whole(query: str, prompt: str) -> None:
    """Once for a process: it would be a line for each sample."""
    if _WARNED:
        return
    _WARNED.append(True)
    log.warning(
        "/get_reward: a query does not begin with its prompt and is scored with it, so that an answer in the prompt "
        "counts: send prompts as the tokenizer decodes them. The query begins with %r, the prompt with %r",
        query[:MAX_SHOWN_CHARS],
        prompt[:MAX_SHOWN_CHARS],
    )


_WARNED: list[bool] = []


def answer(body: OpenRLHFRequest, choice: Choice, found: list[Scored]) -> dict[str, Any]:
    """`rewards` is the weighted sum, `scores` the first reward alone: filtering wants right or wrong in [0, 1]."""
    names = [spec.name for spec in choice.rewards]
    return {
        "rewards": [sample.total for sample in found],
        "scores": [sample.scores[names[0]] for sample in found],
        "extra_logs": {name: [sample.scores[name] for sample in found] for name in names},
    }


ADAPTER = Adapter(
    path="/get_reward",
    summary="OpenRLHF's remote reward: rewards, scores and extra_logs, one number per sample.",
    body=OpenRLHFRequest,
    answers_with=OpenRLHFRewards,
    samples=samples,
    answer=answer,
    example={
        "query": ["What is 1/2 + 1/4?<think>2/4 + 1/4</think><answer>3/4</answer><|im_end|>"],
        "prompts": ["What is 1/2 + 1/4?"],
        "labels": ["0.75"],
    },
    example_rewards="accuracy format:0.1",
    many="query",
    options={"end": "The text that ends a response and is no part of it, instead of the well-known end tokens."},
)
