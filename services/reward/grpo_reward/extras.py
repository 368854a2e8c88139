"""How much an answer may hold beside its scores: log columns, metrics, details.

Each score has limits of its own (see `scorer.py`), 64 KiB of log among them; but a request may ask for a quarter of a
million scores. So what they have to say is counted, about as it stands in memory: beyond MAX_ANSWER_BYTES, or when all
answers in the making together have MAX_HELD_BYTES, a score comes without log and metrics, and its detail says so.
The scores themselves are never left out.
"""

import contextlib
import logging
from collections.abc import Iterator

from pydantic_core import PydanticSerializationError, to_json

from grpo_proto import RewardScore

log = logging.getLogger("grpo_reward")

MAX_ANSWER_BYTES, MAX_HELD_BYTES = 32 * 2**20, 256 * 2**20
OBJECT_BYTES, VALUE_BYTES = 232, 64
"""Bytes that an object of JSON, and a list or a value, take in Python beside their text."""
MAX_KEPT_DETAIL_CHARS = 100
"""Characters kept of a detail for which there is no place any more."""
MAX_REMEMBERED_BYTES = 4096
"""Scores with more than that are not kept for a later request."""


def extra_bytes(score: RewardScore) -> int:
    """About how many bytes detail, log and metrics take."""
    size = len(score.detail or "")
    if score.log is None and score.metrics is None:
        return size
    try:
        body = to_json((score.log, score.metrics))
    except PydanticSerializationError:  # no valid Unicode: it could not be sent either
        return MAX_HELD_BYTES
    values = body.count(b",") + body.count(b"[")
    return size + len(body) + OBJECT_BYTES * body.count(b"{") + VALUE_BYTES * values


class Extras:
    """What the scores of all answers in the making have to say. Belongs to one event loop."""

    def __init__(self, max_answer_bytes: int = MAX_ANSWER_BYTES, max_held_bytes: int = MAX_HELD_BYTES):
        self.max_answer_bytes, self.max_held_bytes = max_answer_bytes, max_held_bytes
        self.held_bytes = 0

    @contextlib.contextmanager
    def answer(self) -> Iterator["AnswerExtras"]:
        """The extras of one answer, counted while it is made."""
        answer = AnswerExtras(self)
        try:
            yield answer
        finally:
            self.held_bytes -= answer.held_bytes
            if answer.num_cut:
                log.warning("an answer came without what %d of its scores had to log: %s", answer.num_cut, answer.why)


class AnswerExtras:
    """What the scores of one answer have to say."""

    def __init__(self, extras: Extras):
        self._extras = extras
        self.held_bytes = self.num_cut = 0
        self.why = ""

    def bound(self, scores: list[RewardScore | None]) -> None:
        """Count what has come, and cut in place what is too much."""
        for position, score in enumerate(scores):
            if score is not None and (size := extra_bytes(score)):
                scores[position] = self._bounded(score, size)

    def _bounded(self, score: RewardScore, size: int) -> RewardScore:
        extras = self._extras
        if self.held_bytes + size > extras.max_answer_bytes:
            self.why = f"those of one answer may have {extras.max_answer_bytes} bytes"
        elif extras.held_bytes + size > extras.max_held_bytes:
            self.why = f"those of all answers at once may have {extras.max_held_bytes} bytes"
        else:
            self.held_bytes += size
            extras.held_bytes += size
            return score
        self.num_cut += 1
        detail = score.detail
        if detail is not None and len(detail) > MAX_KEPT_DETAIL_CHARS:
            detail = f"{detail[:MAX_KEPT_DETAIL_CHARS]}…"
        if score.log is not None or score.metrics is not None:
            left_out = f"log and metrics left out: {self.why}"
            detail = f"{detail}; {left_out}" if detail else left_out
        return score.model_copy(update={"detail": detail, "log": None, "metrics": None})
