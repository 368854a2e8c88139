"""The one protocol between a run's prompts and the groups that it trains and evaluates on.

Pipeline and evaluation know a `Sampler` and nothing of what stands behind it: single prompts (`single_turn.py`), or
episodes of several turns.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from grpo_proto import Sampling
from grpo_proto.messages.rollout import StructuredOutputs

from ..algorithm.sequences import Group
from ..config.rollout import RolloutConfig
from ..data.prompt_row import PromptRow
from ..group_trace import NO_TRACE, GroupTrace


@dataclass(frozen=True)
class Asked:
    """A row to sample one group for, with its seed. `position`: of the row in the run, or in a held-out set."""

    position: int
    row: PromptRow
    seed: int
    trace: GroupTrace = NO_TRACE
    of: str = ""
    """What is asked for other than the training, such as one of the ways to sample a held-out set: rows of the same
    position are told apart by it."""


class Sampler(Protocol):
    """Turn rows into groups on the servers that have our weights."""

    lost_requests: int
    """Failed attempts since this process began, or since its last rollback."""

    @property
    def failing_since_s(self) -> float | None:
        """Since when (seconds since the epoch) the longest failing request has failed; None when no request fails."""

    async def sample(
        self, asked: Sequence[Asked], *, min_version: int | None, n: int, sampling: Sampling
    ) -> list[Group]:
        """Sample one group of `n` episodes for each row with policy `min_version` or newer, in the order of `asked`.

        None takes whatever the servers serve, also if it is no policy of ours.
        A group that could not be sampled, and never will be, is missing. An episode that has a `total` needs no score.

        Raises RunError when the servers do not answer within their retry budget.
        """
        ...


def training_sampling(config: RolloutConfig) -> Sampling:
    regex = config.structured_outputs_regex
    return Sampling(
        temperature=config.temperature,
        top_p=config.top_p,
        top_k=config.top_k,
        min_p=config.min_p,
        repetition_penalty=config.repetition_penalty,
        presence_penalty=config.presence_penalty,
        frequency_penalty=config.frequency_penalty,
        logit_bias=config.logit_bias,
        bad_words=config.bad_words,
        structured_outputs=StructuredOutputs(regex=regex) if regex is not None else None,
        min_tokens=config.min_tokens,
        max_tokens=config.max_completion_length,
        stop=config.stop,
        stop_token_ids=config.stop_token_ids,
    )
