"""Where the answer stands in a completion, so that another can be put in its place."""

import re
from dataclasses import dataclass

from ..answers.place import CLOSING, OPENING

TAGS = ((OPENING, CLOSING), ("<tool_call>", "</tool_call>"))
BOX, HASHES = "\\boxed{", "####"
_FENCED = re.compile(r"^```\w*\n(.*?)^```", re.DOTALL | re.MULTILINE)
_DIGIT = re.compile(r"[0-9]")
_LETTERS = "ABCD"


@dataclass(frozen=True)
class Frame:
    """A completion is `before` + answer + `after`."""

    before: str
    answer: str
    after: str

    def around(self, answer: str) -> str:
        return self.before + answer + self.after


def frame_of(completion: str) -> Frame:
    """By the last block of tags, the last `\\boxed{…}`, fenced block or `####`; without these all of it is the answer.

    A fenced block inside tags is the narrower frame.
    """
    for opening, closing in TAGS:
        start, end = completion.rfind(opening), completion.rfind(closing)
        if 0 <= start < end:
            start += len(opening)
            return _cut(completion, *_fence(completion, start, end) or (start, end))
    start = completion.rfind(BOX)
    brace = _closing_brace(completion, start + len(BOX)) if start >= 0 else None
    if brace is not None:
        return _cut(completion, start + len(BOX), brace)
    start = completion.rfind(HASHES)
    whole = start + len(HASHES) if start >= 0 else 0, len(completion)
    return _cut(completion, *_fence(completion, 0, len(completion)) or whole)


def _fence(text: str, start: int, end: int) -> tuple[int, int] | None:
    """Inside the last fenced block between `start` and `end`, behind its language."""
    blocks = list(_FENCED.finditer(text, start, end))
    return blocks[-1].span(1) if blocks else None


def _cut(text: str, start: int, end: int) -> Frame:
    """White space at the ends belongs to the frame."""
    answer = text[start:end].strip()
    if not answer:
        return Frame(text[:start], "", text[end:])
    start = text.index(answer, start)
    return Frame(text[:start], answer, text[start + len(answer) :])


def _closing_brace(text: str, start: int) -> int | None:
    depth = 1
    for position in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return position
    return None


def wrong_answers(answer: str) -> list[str]:
    """Answers near `answer` that are most likely wrong: every digit one up, or the next letter, or another word."""
    if _DIGIT.search(answer):
        return [_DIGIT.sub(lambda digit: str((int(digit[0]) + 1) % 10), answer)]
    if len(answer) == 1 and answer.upper() in _LETTERS:
        return [letter for letter in _LETTERS if letter != answer.upper()][:1]
    return ["something else"]
