"""Whether the answer of a completion is the one of a solution."""

import importlib
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from ..author import Score
from ..remembered import Remembered
from ..time_limit import TooCostly, limited
from .equality import same
from .place import announced, answer_block, boxed, has_box, unboxed
from .plain import plain, squeezed
from .reading import Reading, read

COMPARISON_CPU_S = 0.9
"""For one answer, and once for its solution: together below 2 s. Ordinary comparisons take milliseconds."""
TOO_COSTLY = -1.0
"""In place of a score, where the comparison was ended."""
NULLS = frozenset({"None", "nan", "NaN", "null", "<NA>", "NaT"})
"""What pandas and others write for a null in a column of text: no solution."""
UNPARSED = {"solution_parsed": False}
MEMO_SIZE, MAX_MEMO_CHARS = 1 << 22, 2000
"""Size in characters of each memory, of solutions and of scores, some 4,000 short ones; longest answer in it."""
MAX_DEPTH = 12
"""Most nested brackets: parsing LaTeX takes exponential time in them, 1.4 s at 20."""
MAX_ANSWER_CHARS = 1000
"""Longest answer in characters, unless the solution is as long: a model that repeats itself gets 0, no time-out."""
_BRACKET = re.compile(r"[(\[{)\]}]|\n\n")


@dataclass(frozen=True)
class Gold:
    """What a solution says, and the text that says it."""

    text: str
    reading: Reading


remembered_golds: Remembered[str, Gold] = Remembered(MEMO_SIZE)
"""What this process has read of solutions."""
remembered_scores: Remembered[tuple[str, str], float] = Remembered(MEMO_SIZE)
"""By solution and answer."""


def judged(solution: str, answer_of: Callable[[Gold], str | None]) -> Score:
    """1 when the answer that `answer_of` finds is the solution's, else 0; no score when the solution has none."""
    gold = remembered_golds.once(solution, lambda: _read_gold(solution), lambda gold: len(solution) + len(gold.text))
    if not gold.reading.values and not gold.reading.texts:
        return Score(None, detail="the column solution has no answer that can be parsed", log=UNPARSED)
    answer = answer_of(gold)
    score = _remembered(solution, gold, answer) if answer and answer.strip() else 0.0
    if score != TOO_COSTLY:
        return Score(score)
    if _remembered(solution, gold, "7") == TOO_COSTLY:
        return Score(None, detail="the column solution takes too long to be compared with anything")
    return Score(0.0, log={"too_costly": True})


def answer_in(completion: str, gold: Gold, truncated: bool | None = None) -> str | None:
    """What stands in `<answer>`, else in the last box, else behind "the final answer is"."""
    block = answer_block(completion, truncated=truncated)
    where = completion if block is None else block
    if has_box(where):
        return boxed(where, listed=gold.reading.is_list)
    answer = announced(completion) if block is None else unboxed(block)
    is_joy = answer is not None and "!" not in gold.text and re.fullmatch(r"\d+!", answer)
    return answer[:-1] if answer and is_joy else answer  # `$10!$` is a factorial


def _read_gold(solution: str) -> Gold:
    if solution.strip() in NULLS:
        return Gold("", Reading(frozenset()))
    block = answer_block(solution)
    text = (solution if block is None else block).rpartition("####")[2]  # as GSM8K has it
    box = boxed(text) if has_box(text) else None
    is_formula = box is not None or "$" in text or "\\" in text
    text = text if box is None else box
    reading = read(text, of_list=is_formula)
    if "," in text and not is_formula and len(reading.values) == 1:  # 2,3 may be 2.3, and a list
        reading = replace(reading, values=tuple({*reading.values, *read(text, of_list=True).values}))
    is_prose = not reading.values and not reading.label and not is_formula and not any(map(str.isdigit, text))
    return Gold(text, Reading(frozenset()) if is_prose else reading)


def _remembered(solution: str, gold: Gold, answer: str) -> float:
    """The samples of a group often give the same answer; long texts are not worth their memory."""
    if len(answer) > MAX_MEMO_CHARS:
        return _compare_in_time(gold, answer)
    size = len(solution) + len(answer)
    return remembered_scores.once((solution, answer), lambda: _compare_in_time(gold, answer), lambda _: size)


def _compare_in_time(gold: Gold, answer: str) -> float:
    try:
        return limited(lambda: _compare(gold, answer), cpu_s=COMPARISON_CPU_S)
    except (TooCostly, RecursionError):
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
        depth = depth + 1 if match.group() in "([{" else max(0, depth - 1) if match.group() in ")]}" else 0
        deepest = max(deepest, depth)
    return deepest


def _warm_up() -> None:
    """Fill the parser's tables and SymPy’s caches once, before workers are forked, and import what it imports late.

    A fresh worker would take a tenth of a second for that, and one without free file descriptors would fail at it in
    a `try` of math_verify's, which makes "not equal" of every failure.
    """
    for late in ("sympy.physics.units", "sympy.sets.setexpr", "sympy.sets.handlers.issubset"):
        importlib.import_module(late)
    pairs = [
        ("\\frac{1}{2}", "0.5"),
        ("3x + 2", "2 + 3x"),
        ("\\sqrt{8}", "2\\sqrt{2}"),
        ("(1, 2)", "[1, 2)"),
        ("x=1", "1"),
        ("(0, 1)", "0 < x < 1"),
    ]
    for gold, answer in [*pairs, ("We have 3 of them. It is $5$ or 7 then", "6 and that is all of it")]:
        judged(f"${gold}$", lambda _, answer=answer: answer)  # type: ignore[misc]


_warm_up()
