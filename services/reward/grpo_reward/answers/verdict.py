"""Whether the answer of a completion is the one of a solution."""

import importlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock

from ..author import Score
from ..remembered import KeyT, Remembered, ValueT
from ..time_limit import TooCostly, limited
from .equality import same
from .place import announced, answer_block, boxed, has_box
from .plain import plain, squeezed
from .reading import Reading, read

COMPARISON_CPU_S = 0.9
"""For one answer, and once for its solution: together below 2 s. Ordinary comparisons take milliseconds."""
TOO_COSTLY = -1.0
"""In place of a score, where the comparison was ended."""
UNPARSED = {"solution_parsed": False}
MAX_MEMO_CHARS = 2000
MEMO_SIZE = 1 << 22
"""Size of the memory of what was read of solutions, and of that of scores, in characters: some 4,000 short ones each."""

MAX_DEPTH = 12
"""Most nested brackets: parsing LaTeX takes exponential time in them, 1.4 s at 20."""
MAX_ANSWER_CHARS = 1000
"""Longest answer in characters, unless the solution is as long: a model that repeats itself gets 0, no time-out."""
_BRACKET = re.compile(r"[(\[{)\]}]|\n\n")
_JOY = re.compile(r"\d+!")
"""In an answer; `$10!$` is a factorial."""


@dataclass(frozen=True)
class Gold:
    """What a solution says, and the text that says it."""

    text: str
    reading: Reading

    @property
    def size(self) -> int:
        """What is parsed has formulas no larger than their text allows, and parts of that text."""
        return len(self.text) + sum(map(len, self.reading.texts))


def judged(solution: str, completion: str, *, only_boxed: bool = False, truncated: bool | None = None) -> Score:
    """1 when the completion's answer is the solution's, else 0; no score when the solution has none.

    With `only_boxed` an answer stands in a box, and nowhere else.
    """
    gold = gold_of(solution)
    if not gold.reading.values and not gold.reading.texts:
        return Score(None, detail="the column solution has no answer that can be parsed", log=UNPARSED)
    listed = gold.reading.is_list
    answer = (
        boxed(completion, listed=listed) if only_boxed else answer_of(completion, listed=listed, truncated=truncated)
    )
    if not only_boxed and answer and "!" not in gold.text and _JOY.fullmatch(answer):
        answer = answer[:-1]
    log = {"boxed": answer and answer[:200]} if only_boxed else None
    if answer is None or not answer.strip():
        return Score(0.0, log=log)
    score = _memoized(solution, gold, answer)
    if score != TOO_COSTLY:
        return Score(score, log=log)
    if _memoized(solution, gold, "7") == TOO_COSTLY:
        return Score(None, detail="the column solution takes too long to be compared with anything")
    return Score(0.0, log={"too_costly": True} | (log or {}))


def answer_of(completion: str, *, listed: bool = False, truncated: bool | None = None) -> str | None:
    """What stands in the first `<answer>`, else in the last box, else behind "the final answer is"."""
    block = answer_block(completion, truncated=truncated)
    where = completion if block is None else block
    if has_box(where):
        return boxed(where, listed=listed)
    return announced(completion) if block is None else block


def gold_of(solution: str) -> Gold:
    return _once(remembered_golds, solution, lambda: _read_gold(solution), lambda gold: len(solution) + gold.size)


def _read_gold(solution: str) -> Gold:
    block = answer_block(solution)
    text = solution if block is None else block
    box = boxed(text) if has_box(text) else None
    is_formula = box is not None or "$" in text or "\\" in text
    text = text if box is None else box
    reading = read(text, of_list=is_formula)
    if not reading.values and not is_formula and not any(map(str.isdigit, text)):
        reading = Reading(frozenset())
    return Gold(text, reading)


def _memoized(solution: str, gold: Gold, answer: str) -> float:
    """The samples of a group often give the same answer; long texts are not worth their memory."""
    if len(answer) > MAX_MEMO_CHARS:
        return _compare_in_time(gold, answer)
    return _once(
        remembered_scores,
        (solution, answer),
        lambda: _compare_in_time(gold, answer),
        lambda _: len(solution) + len(answer),
    )


def _compare_in_time(gold: Gold, answer: str) -> float:
    try:
        return limited(lambda: _compare(gold, answer), cpu_s=COMPARISON_CPU_S)
    except TooCostly:
        return TOO_COSTLY


def _compare(gold: Gold, answer: str) -> float:
    if len(answer) <= MAX_MEMO_CHARS and squeezed(plain(answer)) in gold.reading.texts:
        return 1.0
    if len(answer) > max(MAX_ANSWER_CHARS, len(gold.text)) or _depth(answer) > max(MAX_DEPTH, _depth(gold.text)):
        return 0.0
    return float(same(gold.reading, read(answer, of_list=gold.reading.is_list)))


def _depth(text: str) -> int:
    """Greatest number of open brackets of any kind (an interval `[0, 1)` is closed), counted anew per paragraph."""
    depth = deepest = 0
    for match in _BRACKET.finditer(text):
        bracket = match.group()
        if bracket in "([{":
            depth += 1
            deepest = max(deepest, depth)
        else:
            depth = max(0, depth - 1) if bracket in ")]}" else 0
    return deepest


def _once(
    memory: Remembered[KeyT, ValueT], key: KeyT, make: Callable[[], ValueT], size: Callable[[ValueT], int]
) -> ValueT:
    """What `make` gives, remembered. Without worker processes, rewards run in threads."""
    with _lock:
        known = memory.get(key)
    if known is not None:
        return known[0]
    value = make()
    with _lock:
        memory.put(key, value, size(value))
    return value


_lock = Lock()
remembered_golds: Remembered[str, Gold] = Remembered(MEMO_SIZE)
"""What this process has read of solutions."""
remembered_scores: Remembered[tuple[str, str], float] = Remembered(MEMO_SIZE)
"""By solution and answer."""


def _warm_up() -> None:
    """Fill the parser's tables and SymPy’s caches once, before workers are forked, and import what it imports late.

    A fresh worker would take a tenth of a second for that, and one without free file descriptors would fail at it in
    a `try` of math_verify's, which makes "not equal" of every failure.
    """
    for late in ("sympy.physics.units", "sympy.sets.setexpr", "sympy.sets.handlers.issubset"):
        importlib.import_module(late)
    for gold, answer in (
        ("\\frac{1}{2}", "0.5"),
        ("3x + 2", "2 + 3x"),
        ("\\sqrt{8}", "2\\sqrt{2}"),
        ("(1, 2)", "[1, 2)"),
        ("We have 3 of them. It is $5$ or 7 then", "6"),
    ):
        judged(f"${gold}$", f"<answer>{answer}</answer>")


_warm_up()
