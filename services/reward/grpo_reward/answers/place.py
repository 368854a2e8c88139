"""Where the answer stands in a completion, or in a worked solution."""

import re
from typing import NamedTuple

OPENING, CLOSING = "<answer>", "</answer>"
THINK_OPENING, THINK_CLOSING = "<think>", "</think>"
MAX_BOXES = 500
"""Most boxes in a text: a model that repeats itself has no answer."""

_MARK = re.compile(r"(?P<box>\\{1,4}(?:boxed|fbox)(?![A-Za-z])\s*(?P<brace>\{)?)|\\.|(?P<open>\{)|\}", re.DOTALL)
_WITHOUT_BRACES = re.compile(r"[^\s$]*")
_NO_ANSWER = re.compile(r"[\s.…]*|\\[lc]?dots|(?:\\text\s*\{)?\s*(?:(?:your|the|final)\s+)*answer\s*\}?", re.I)
_NAME = r"(?:\$?\s*(?:[A-Za-z]\w{0,9}|\\[A-Za-z]{1,10})(?:_\{?\w{1,9}\}?)?\s*=\s*)?"
_BESIDE = re.compile(rf"\s*(?:[,;]|,?\s*(?:and|or)\b|或|和|与|及|、|，)\s*{_NAME}", re.I)
_BELOW = re.compile(rf"[\s.,;]*\n\s*(?:[-*•]|\d{{1,2}}[.)])?\s*{_NAME}")
_DELIMITER = re.compile(r"\$|\\[()\[\]]|\\q?quad|\\[ ,;]|\\text\s*\{([^{}]*)\}")
MAX_BETWEEN = 60

_PHRASE = re.compile(r"final\s+answer(?:\s{1,3}\S{1,30}){0,5}?\s+is\b\W{0,2}?(?::|(?=\s|\*|\$))\s*", re.I)
_SENTENCE = re.compile(r"(?:[^\n.]|\.(?!\s|\**\s|\**\Z))*")
FORMULA = re.compile(r"\$\$.{1,1000}?\$\$|\$[^$\n]{1,1000}\$|\\\(.{1,1000}?\\\)|\\\[.{1,1000}?\\\]", re.DOTALL)
MAX_BEFORE = 60
_NAMED = (
    r"[\s#*_>-]*(?:(?:so|thus|therefore|hence|then),?\s+)?(?:(?:the|my)\s+)?(?:(?:final|correct)\s+)?"
    r"(?:answer\b|答案)[*_\s]*"
)
_LAST_LINE = re.compile(rf"{_NAMED}(?:[:：是为]|is\b:?)[*_\s]*(?P<said>\S.*)", re.I)
_HEADING = re.compile(rf"{_NAMED}[:：]?[*_\s]*", re.I)
MAX_LAST_LINE_CHARS = 300


class Box(NamedTuple):
    start: int
    end: int
    text: str


def answer_block(text: str, *, one_line: bool = False, truncated: bool | None = None) -> str | None:
    """What stands in the first `<answer>…</answer>` behind the thought, without surrounding white space, or None.

    A thought may speak of the tags. Where no block stands behind it, the first block of the whole text counts, as in
    the recipes this project follows. With `one_line` one with a line break is passed over. With `truncated` false,
    where none is closed, one that runs to the end counts: its tag was the stop string.
    """
    _, closing, behind = text.rpartition(THINK_CLOSING)
    block = _first_block(behind, one_line, truncated) if closing else None
    return _first_block(text, one_line, truncated) if block is None else block


def _first_block(text: str, one_line: bool, truncated: bool | None) -> str | None:
    # `str.find` takes linear time: on thousands of opening tags `re.search(r"<answer>(.*?)</answer>")` takes seconds.
    start = text.find(OPENING)
    end = -1
    while start >= 0:
        start += len(OPENING)
        if end < start:
            end = text.find(CLOSING, start)
        if end < 0:
            rest = text[text.rfind(OPENING) + len(OPENING) :].strip()
            one_line = one_line and "\n" in rest
            return rest if truncated is False and not one_line and not is_unfinished(text) and "<" not in rest else None
        line_break = text.rfind("\n", start, end) if one_line else -1
        if line_break < 0:
            return text[start:end].strip()
        start = text.find(OPENING, line_break)
    return None


def is_unfinished(text: str) -> bool:
    """Whether the text ends inside a thought: what stands there was considered, not answered."""
    return text.rfind(THINK_OPENING) > text.rfind(THINK_CLOSING)


def answered(text: str) -> str:
    """What follows the thought; nothing where that never ends."""
    return "" if is_unfinished(text) else text.rpartition(THINK_CLOSING)[2]


def boxed(text: str, *, listed: bool = False) -> str | None:
    """What stands in the last box, and in those right before it; None without a box, or when the last is not closed.

    Boxes with nothing but a comma, "and" or "or" (and `x =`) between them are one answer of several parts; with
    `listed` so are boxes on following lines. Braces count as LaTeX counts them: `\\{` is none.
    """
    boxes = _boxes(text)
    if not boxes:
        return None
    parts = [boxes[-1].text]
    for before, box in zip(reversed(boxes[:-1]), reversed(boxes), strict=False):
        between = text[before.end : box.start]
        if len(between) > MAX_BETWEEN:
            break
        between = _DELIMITER.sub(r"\1 ", between)
        if not (_BESIDE.fullmatch(between) or (listed and _BELOW.fullmatch(between))):
            break
        parts.insert(0, before.text)
    return ", ".join(dict.fromkeys(parts))


def unboxed(text: str) -> str:
    """`text` without its boxes and what stands in them."""
    if "box" not in text:
        return text
    parts, end = [], 0
    for box in sorted(_found(text)[0]):
        if box.start >= end:
            parts.append(text[end : box.start])
            end = box.end
    return " ".join([*parts, text[end:]])


def has_box(text: str) -> bool:
    """Whether there is one that holds something, or one that is not closed."""
    found, is_open = _found(text)
    return is_open or any(not _NO_ANSWER.fullmatch(box.text) for box in found)


def _boxes(text: str) -> list[Box]:
    """Boxes that hold something, by their start; none when the last one is not closed, or when there are too many."""
    found, is_open = _found(text)
    return [] if is_open else sorted(box for box in found if not _NO_ANSWER.fullmatch(box.text))


def _found(text: str) -> tuple[list[Box], bool]:
    """All closed boxes, and whether the last one is not closed, or there are too many."""
    starts = [start for name in ("\\boxed", "\\fbox") if (start := text.find(name)) >= 0]
    if not starts or text.count("\\boxed") + text.count("\\fbox") > MAX_BOXES:
        return [], bool(starts)
    found: list[Box] = []
    opened: list[tuple[int, int] | None] = []
    for mark in _MARK.finditer(text, min(starts)):
        if mark["brace"]:
            opened.append(mark.span())
        elif mark["box"]:
            bare = _WITHOUT_BRACES.match(text, mark.end())
            found.append(Box(mark.start(), bare.end() if bare else mark.end(), bare.group() if bare else ""))
        elif mark["open"]:
            opened.append(None)
        elif mark.group() == "}" and opened and (began := opened.pop()):
            found.append(Box(began[0], mark.end(), text[began[1] : mark.start()].strip()))
    last_open = max((began[0] for began in opened if began), default=-1)
    return found, last_open > max((box.start for box in found), default=-1)


def announced(text: str) -> str | None:
    """What follows "the final answer is", to the end of its sentence.

    Else what a last line such as `Answer: 34` says, or one below a heading `### Final Answer`; else the last formula
    that "answer" announces.
    """
    text = answered(text)
    sentences = [match.group() for phrase in _PHRASE.finditer(text) if (match := _SENTENCE.match(text, phrase.end()))]
    if sentences:
        return next((sentence for sentence in reversed(sentences) if re.search(r"[\d$\\]", sentence)), sentences[-1])
    if (said := _said_last(text)) and not FORMULA.search(said):
        return said
    for formula in reversed(list(FORMULA.finditer(text))):
        if "answer" in text[max(0, formula.start() - MAX_BEFORE) : formula.start()].lower():
            return formula.group()
    return None


def _said_last(text: str) -> str | None:
    """What the last line announces, or the heading above it; None where the line goes on with another sentence."""
    above, last = ["", "", *(line for line in text[-2 * MAX_LAST_LINE_CHARS :].split("\n") if line.strip())][-2:]
    if len(last) > MAX_LAST_LINE_CHARS:
        return None
    announced = _LAST_LINE.fullmatch(last)
    said = announced["said"] if announced else last if _HEADING.fullmatch(above) else ""
    sentence = _SENTENCE.match(said)
    return said if sentence and said[sentence.end() :].strip("*. ") == "" and said.strip() else None
