"""Mathematical equality with a gold answer."""

import importlib
import logging
import re
from collections.abc import Callable
from decimal import Decimal
from threading import Lock
from typing import Any

from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify
from sympy import Expr

from ..answer import answer_block
from ..author import Score, reward
from ..expansion import differ, difference, has_no_value, is_costly
from ..remembered import KeyT, Remembered, ValueT
from ..residues import equal_by_residues, has_large_power
from ..time_limit import TooCostly, limited
from ..typography import latex_of
from ..units import number_and_unit
from ..vast_numbers import is_vast

BOX = "\\boxed{"
MAX_EXPONENT = 200_000
MAX_DEPTH = 12
"""Most nested brackets: parsing LaTeX takes exponential time in them, 1.4 s at 20."""
MAX_ANSWER_CHARS = 1000
"""Longest answer in characters, unless the solution is as long: a model that repeats itself gets 0, no time-out."""
MAX_BOXES = 500
"""Most boxes in a text: a model that repeats itself gets 0 here, too."""
COMPARISON_CPU_S = 0.9
"""For one answer, and once for its solution: together below 2 s. Ordinary comparisons take milliseconds."""
TOO_COSTLY = -1.0
"""In place of a score, where the comparison was ended."""
MAX_MEMO_CHARS = 2000
MEMO_SIZE = 1 << 22
"""Size of the memory of parsed gold answers, and of that of scores, in characters: some 4,000 short ones in each."""

_TOWER = re.compile(r"\d+(?:\s*(?:\^|\*\*)\s*[{(]*\s*\d+)+")
_PRODUCT = re.compile(r"(?:\^|\*\*)\s*[{(]([^{}()]*(?:\\cdot|\\times|\*)[^{}()]*)")
_LARGE_FACTORIAL = re.compile(r"\d{6,}\s*!|!\s*[)}\]]\s*!|binom\s*\{\s*\d{6,}")
_BRACE = re.compile(r"[{}]")
_BRACKET = re.compile(r"[(\[{)\]}]|\n\n")

_DELIMITED = re.compile(r"\$|\\boxed|\\\(|\\\[|\n")
_TEXT = re.compile(r"\A\\(?:text|mathrm|textbf|mbox)\s*\{([^{}]*)\}\Z")
_TEXT_COMMAND = re.compile(r"\\(?:text|mathrm|textbf|mbox|begin|end)\s*\{[^{}]*\}|\\[A-Za-z]+")
_WORD = re.compile(r"[^\W\d_]{2,}")
_FORMULA = re.compile(
    r"\A\s*[-+]?\s*[(\[]|\A\s*[-+]\s*[A-Za-z]|\A\s*[-+]\s+\d|[\\^_+*/=<>|]|(?<=[\w)}])\s*[-\u2212]|\d\s*[A-Za-z(]"
)
_AND_OR = re.compile(r"(?:\s*,)?\s+(?:and|or)\s+(?=[-+.(\\\d]|[A-Za-z]\s*[=<>])")
_LISTED = re.compile(r"\d\s*[,;]\s+[-+]?\s?\.?\d|\d\s*(?:,\s*[-+]|;)\s?\.?\d|\d,\d+,[-+]?\d")
_GROUPED_NUMBER = re.compile(r"\A\s*[-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?\s*\Z")
_TWO_OR_ONE = re.compile(r"\A\s*[-+]?\d+,\d+\s*\Z")
_GROUP = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_FACTORIAL = re.compile(r"\A\s*\d{1,5}\s*!\s*\Z")
_POWER_OF_TEN = re.compile(r"\A\s*[-+]?\d+(?:\.\d+)?[eE][-+]?\d{1,2}\s*\Z", re.ASCII)
_CLOCK_OR_RATIO = re.compile(r"\d\s*:\s*\d")
_ONLY_CLOCK_OR_RATIO = re.compile(r"\A\s*\d+(?:\s*:\s*\d+)+\s*\Z")
MAX_FORMULA_CHARS = 300
_EMPHASIS = re.compile(r"\A(\*\*|__|`)([^*_`\n]+)\1\Z")
_EQUALS = re.compile(r"\A(\s*\$?\s*)=\s*(?![=>])")

_ANYWHERE = (LatexExtractionConfig(), ExprExtractionConfig())
_BOXED = (LatexExtractionConfig(boxed_match_priority=0, try_extract_without_anchor=False),)

# It warns once per process that its own time-outs are off. They are on purpose: they need signals, which a plugin may
# need as well, and do not interrupt code that holds the interpreter; here the whole worker is killed.
logging.getLogger("math_verify").setLevel(logging.ERROR)


@reward
def accuracy(completion: str, *, solution: str, unparsable: float | None = None) -> Score:
    """1 when the answer equals `solution` mathematically, else 0; `unparsable` when `solution` cannot be parsed.

    The answer is what stands in the first `<answer>…</answer>`, in LaTeX or as a plain expression; without such a block
    it is what stands in `\\boxed{…}` or after "the final answer is". `solution` may be a whole worked solution; its
    answer is found in the same way. Where it can be parsed, an answer equal to it as text is right. What people type is
    read as LaTeX: `2√2`, `10⁵`, `½`, `5×10³`, `10{,}000`, `10\\,000`, `0.\\overline{3}`, full-width digits, `**42**`. A
    formula of one line without words is read as one also without dollar signs, in `solution` and in the block;
    math_verify takes its first number, 2 for `2\\pi r`. So is a list, `3, 5, 7` or `1 or -2`, of which math_verify
    takes the last number. `2,3` without a blank is 2.3 there, and here, unless it answers a `solution` that is a list.
    Units that a blank sets off from their number (`5 m/s`) do not count beside a number without one. Of two with units
    both have to agree, in their usual spellings (`5 meters per second`); nothing is converted, and `5m` is a formula.
    `12:30` is compared as text.

    With a decimal point in either, values are equal to six decimals, and those below 0.001 to three digits.

    `unparsable` is null by default: such a sample is unscorable and takes no part. The R1-Zero walk-through gives it
    0.5, open-r1 1, ms-swift 0; a number that every sample of a group gets teaches nothing, but moves the run's mean.
    `cosine`, `length` and `math_boxed`, which ask this reward, leave such samples unscorable.

    Two expressions with different values at a point are not equal; nothing is multiplied out to find that. Those with
    more than 200 terms when multiplied out, such as `(x+y)^{29}(z+w)^{29}`, are equal when their values are at three
    points, and those with numbers of more than 100 digits, such as `2^{1000000}+1`, when their remainders on division
    by three large primes are. Where there are no values (sets, equations, `\\sum`), what is so large scores 0 at once.
    So do towers such as `9^{9^9}` or `e^{e^{e^{20}}}`, factorials of six digits or of factorials, more than 12 nested
    brackets or 1000 characters, unless the solution has such a thing, too; and so do answers of more than 500 boxes.
    An answer that still takes more than 0.9 s of processor time scores 0, with `too_costly` in its log: a time-out
    would take the sample out of the training, and a policy would learn to hide wrong answers so. When the solution
    itself takes as long, the sample is unscorable.

    Source: math_verify, with the choices of TRL's `accuracy_reward` (an unparsable gold answer is no score) and
    ms-swift's `<answer>` block. The order of arguments is verify(gold, answer): it is not symmetric.
    """
    gold = _block_or_all(solution)
    if not _parsed_gold(gold):
        return Score(
            unparsable, detail="the column solution has no answer that can be parsed", log={"solution_parsed": False}
        )
    answer = answer_block(completion)
    if answer is None:
        score = _memoized(gold, latex_of(completion), False)
    else:
        score = _memoized(gold, _EQUALS.sub(r"\1", _EMPHASIS.sub(r"\2", latex_of(answer))), True)
    if score != TOO_COSTLY:
        return Score(score)
    if _memoized(gold, "7", True) == TOO_COSTLY:
        return Score(None, detail="the column solution takes too long to be compared with anything")
    return Score(0.0, log={"too_costly": True})


def _block_or_all(solution: str) -> str:
    block = answer_block(solution)
    return _EQUALS.sub(r"\1", latex_of(solution.strip() if block is None else block))


def _memoized(gold: str, text: str, tagged: bool) -> float:
    """The samples of a group often give the same answer; long texts are not worth their memory."""
    if len(text) > MAX_MEMO_CHARS:
        return _compare_in_time(gold, text, tagged)
    return _once(
        remembered_scores,
        (gold, text, tagged),
        lambda: _compare_in_time(gold, text, tagged),
        lambda _: len(gold) + len(text),
    )


def _compare_in_time(gold: str, text: str, tagged: bool) -> float:
    _parsed_gold(gold)  # whose time is not the answer's
    try:
        return limited(lambda: _compare(gold, text, tagged), cpu_s=COMPARISON_CPU_S)
    except TooCostly:
        return TOO_COSTLY


def _parsed_gold(gold: str) -> list[Any]:
    """What is parsed has formulas no larger than their text allows, and parts of that text."""

    def size(parsed: list[Any]) -> int:
        return len(gold) + sum(len(part) for part in parsed if isinstance(part, str))

    return _once(remembered_golds, gold, lambda: _parse_gold(gold), size)


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
remembered_golds: Remembered[str, list[Any]] = Remembered(MEMO_SIZE)
"""What this process has parsed of gold answers."""
remembered_scores: Remembered[tuple[str, str, bool], float] = Remembered(MEMO_SIZE)
"""By gold answer, text, and whether that stood in a block."""


def _parse_gold(gold: str) -> list[Any]:
    if _ONLY_CLOCK_OR_RATIO.search(gold):
        return [gold]
    if _CLOCK_OR_RATIO.search(gold) and not _DELIMITED.search(gold):
        return []  # of 12:30 the parser takes 12
    if _FACTORIAL.search(gold):
        gold = f"${gold}$"  # of 10! it takes 10; in an answer the sign may be joy
    return list(parse(_as_formula(gold), extraction_mode="first_match", parsing_timeout=None))


def _compare(gold: str, text: str, tagged: bool) -> float:
    if text.count(BOX) > MAX_BOXES:
        return 0.0
    parts = [text] if tagged else _boxes(text)
    whole = tagged or (text.count(BOX) == 1 and f"{BOX}{parts[0]}}}" in text)
    if whole and _bare(parts[0]) == _bare(gold):
        return 1.0
    if _ONLY_CLOCK_OR_RATIO.search(gold) or (whole and _ONLY_CLOCK_OR_RATIO.search(_bare(parts[0]))):
        return float(whole and "".join(_bare(parts[0]).split()) == "".join(_bare(gold).split()))
    if whole and _other_units(parts[0], gold):
        return 0.0
    if any(len(part) > max(MAX_ANSWER_CHARS, len(gold)) for part in parts):
        return 0.0
    if max(map(_depth, parts)) > max(MAX_DEPTH, *map(_depth, _boxes(gold))):
        return 0.0
    if any(map(_LARGE_FACTORIAL.search, parts)) and not any(map(_LARGE_FACTORIAL.search, _boxes(gold))):
        return 0.0
    if any(map(_has_tower, parts)) and not _is_large_gold(gold):
        return 0.0
    where = _ANYWHERE if tagged else _BOXED
    if whole:
        number, gold = _without_units(parts[0], gold)
        text = number if tagged else text.replace(f"{BOX}{parts[0]}}}", f"{BOX}{number}}}")
    if tagged:
        text = f"${text}$" if _TWO_OR_ONE.search(text) and _LISTED.search(gold) else _as_formula(text)
    answers = parse(text, where, extraction_mode="first_match", parsing_timeout=None)
    return float(any(_equal(expected, answer) for expected in _parsed_gold(gold) for answer in answers))


def _as_formula(text: str) -> str:
    """A formula without dollar signs gets them: in plain text the parser takes the first number, 2 for `2\\pi r`."""
    if len(text) > MAX_FORMULA_CHARS or _DELIMITED.search(text) or "**" in text:
        return text
    if _POWER_OF_TEN.search(text):
        return format(Decimal(text.strip()), "f")
    formula = _AND_OR.sub(r" \\text{ or } ", text)
    if _LISTED.search(formula) and not _GROUPED_NUMBER.search(formula):
        formula = _GROUP.sub("", formula) if ", " in formula or ";" in formula else formula
    elif not _FORMULA.search(formula):
        return text
    return text if _WORD.search(_TEXT_COMMAND.sub(" ", formula)) else f"${formula}$"


def _other_units(text: str, gold: str) -> bool:
    """`5 m` beside `5 km`: nothing is converted, and math_verify sees the numbers alone."""
    answer, expected = (number_and_unit(_bare(side)) for side in (text, _boxes(gold)[0] if BOX in gold else gold))
    return answer is not None and expected is not None and answer[1] != expected[1]


def _without_units(text: str, gold: str) -> tuple[str, str]:
    """`5 m/s` is 5, beside a number and beside `5 meters per second`; as a formula it would be 5·m/s."""
    answer, expected = (number_and_unit(_bare(side)) for side in (text, gold))
    if answer and (expected or all(getattr(value, "is_number", True) for value in _parsed_gold(gold))):
        text = answer[0]
    if expected and not _DELIMITED.search(gold):
        gold = expected[0]
    return text, gold


def _bare(text: str) -> str:
    """`text` without the dollar signs or the `\\text` that stand around it."""
    text = text.strip()
    text = text[1:-1].strip() if len(text) > 2 and text[0] == text[-1] == "$" and text.count("$") == 2 else text
    return _TEXT.sub(r"\1", text).strip()


def _equal(gold: Any, answer: Any) -> bool:
    """`verify` for one pair. What it cannot compare is not equal; running out of memory or of files is no verdict."""
    if is_vast(answer) or is_vast(gold):
        return bool(
            gold == answer or (isinstance(gold, Expr) and isinstance(answer, Expr) and difference(gold, answer) == 0)
        )
    different = differ(gold, answer)
    if different:
        return False
    if (equal := equal_by_residues(gold, answer)) is not None:
        return equal
    if is_costly(gold) or is_costly(answer):
        if different is False:
            return True
        if not is_costly(gold) or (has_no_value(answer) and not has_no_value(gold)):
            return False
    try:
        return bool(verify(gold, answer, timeout_seconds=None, raise_on_error=True))
    except (MemoryError, RecursionError, OSError, ImportError):
        raise
    except Exception:
        return False


def _has_tower(text: str) -> bool:
    """Whether evaluating its powers takes seconds. A bound on the usual tricks: the rest meets the time limit."""
    return any(_exponent(match.group()) > MAX_EXPONENT for match in _TOWER.finditer(text)) or any(
        _product(match.group(1)) > MAX_EXPONENT for match in _PRODUCT.finditer(text)
    )


def _is_large_gold(gold: str) -> bool:
    """Also `2^{-1000000}` or `(1 + 2)^{1000000}`, whose text says nothing of it."""
    return any(map(_has_tower, _boxes(gold))) or any(
        isinstance(expected, Expr) and has_large_power(expected) for expected in _parsed_gold(gold)
    )


def _exponent(tower: str) -> int:
    """The exponent on the base of `a^b^c`, which is b^c, cut off a little above MAX_EXPONENT."""
    levels = [int(digits[:8]) for digits in re.findall(r"\d+", tower)]
    exponent = 1
    for level in reversed(levels[1:]):
        if level > 1 and exponent > 20:
            return MAX_EXPONENT + 1
        exponent = min(level**exponent, MAX_EXPONENT + 1)
    return exponent


def _product(exponent: str) -> int:
    """Product of all whole numbers in `exponent`, cut off a little above MAX_EXPONENT."""
    product = 1
    for digits in re.findall(r"\d+", exponent):
        product = min(product * max(int(digits[:8]), 1), MAX_EXPONENT + 1)
    return product


def _boxes(text: str) -> list[str]:
    """What stands in each `\\boxed{…}`, up to the next one; the end of a text without any, where an answer may be."""
    parts = text.split(BOX)[1:]
    return [_balanced(part) for part in parts] or [text[-MAX_ANSWER_CHARS:]]


def _balanced(part: str) -> str:
    """`part` up to the brace that closes the one before it; all of it when none does."""
    depth = 1
    for match in _BRACE.finditer(part):
        depth += 1 if match.group() == "{" else -1
        if depth == 0:
            return part[: match.start()]
    return part


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
    ):
        for text in (f"<answer>${answer}$</answer>", f"\\boxed{{{answer}}}", f"<answer>{answer}</answer>"):
            accuracy(text, solution=f"${gold}$")


_warm_up()
