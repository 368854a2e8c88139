"""Countdown: reach a target with the given numbers and the four basic operations."""

import re
from fractions import Fraction
from typing import Annotated, Any

from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError

from ..answers.place import answer_block
from ..author import Score, reward

MAX_EXPRESSION_CHARS = 1000
MAX_DEPTH = 50
"""Limit of nested parentheses and signs."""

_TOKEN = re.compile(r"[0-9]+|[-+*/()]")
_NOTHING_ELSE = re.compile(r"(?:[ \t]*+(?:0(?![0-9])|[1-9][0-9]*+|[-+*/()]))*+")
"""Possessive, so that it looks at every character once."""
_SIGNS = {
    "×": "*", "·": "*", "⋅": "*", "÷": "/", "−": "-", "\\times": "*", "\\cdot": "*", "\\div": "/", "\\left(": "(",
    "\\right)": ")",
}  # fmt: skip
"""Operators as mathematics and LaTeX write them."""
_SIGN = re.compile("|".join(f"{re.escape(sign)}(?![A-Za-z])" for sign in _SIGNS))
_WRAPPED = re.compile(r"\$([^$]*)\$|\\\((.*)\\\)|\\boxed\{([^{}]*)\}")
_INTEGER = re.compile(r"-?[0-9]+")
_NUMPY = re.compile(
    r"\b(?:np|numpy|torch)\.|\b(?:array|tensor)\b|\bu?int\d+\b|\bfloat\d+\b|\bdtype\s*=|(?<=\d)\.0*(?![\d.eE])"
)
"""What NumPy writes around numbers, and the point of one that is whole: `array([44., 19.])`."""
_NOT_WHOLE = re.compile(r"[0-9][.eE]|\.[0-9]")
_WORD = re.compile(r"\b[^\W\d]\w*|\d+_\w*")
"""`true`, `1_0`."""
_LONG_EXPONENT = re.compile(r"[eE][-+]?[0-9_]{4}")


class _NoExpressionError(Exception):
    """The text is no arithmetic expression of ours."""


def _without_booleans(value: Any) -> Any:
    if any(isinstance(number, bool) for number in (value if isinstance(value, list) else [value])):
        raise PydanticCustomError("boolean", "true and false are no numbers")  # pydantic takes them for 1 and 0
    return value


@reward
def countdown(
    completion: str,
    *,
    nums: Annotated[list[int] | str, BeforeValidator(_without_booleans)],
    target: Annotated[int | float | str, BeforeValidator(_without_booleans)],
    truncated: bool | None = None,
) -> Score:
    """1 when the equation in `<answer>` uses every number of `nums` exactly once and equals `target`, else 0.

    The first `<answer>…</answer>` without a line break behind the thought counts, without one there the first of the
    whole completion, and in it what stands before the first `=` (`<answer>(1 + 2) / 3 = 1</answer>`). Allowed are ASCII
    integers without leading zeros, `+ - * /` (also as `× ÷ · −`, `\\times`, `\\div`, `\\cdot`), signs, parentheses,
    blanks and tabs, and around all of it `$…$`, `\\(…\\)` or `\\boxed{…}`. Everything else, `//`, `**` and `1.5` too,
    scores 0, and so do a division by zero and more than 1,000 characters. Arithmetic is exact, in rational
    numbers, so `target` is compared exactly: 0.1 means one tenth.

    `nums` may also be text, such as `[44, 19, 35]` from a CSV file, and so may each number in the list and `target`;
    `true` is no number.

    Source: the Countdown experiment of ms-swift after mini-deepseek-r1, `CountdownORM`, which hands the text to
    `eval` and so takes `//`, hangs on `44**19**35` and compares floats within 1e-5.
    """
    numbers = sorted(_numbers(nums))
    wanted = _target(target)
    answer = answer_block(completion, one_line=True, truncated=truncated)
    if answer is None:
        return Score(0.0)
    expression = _written_plainly(answer)
    log = {"expression": expression[:200]}
    try:
        tokens = _tokens(expression)
        # Compared before anything is computed: it bounds the size of every intermediate result.
        used = sorted(int(symbol) for symbol in tokens if symbol.isdigit())
        if used != numbers:
            return Score(0.0, log=log)
        return Score(float(_Parser(tokens).value() == wanted), log=log)
    except (_NoExpressionError, ZeroDivisionError):
        return Score(0.0, log=log)


def _numbers(nums: list[int] | str) -> list[int]:
    if isinstance(nums, str):
        nums = _NUMPY.sub("", nums)
    if isinstance(nums, str) and _NOT_WHOLE.search(nums):
        raise ValueError(f"the column nums has numbers that are not whole: {nums[:100]!r}")
    if isinstance(nums, str) and (word := _WORD.search(nums)):
        raise ValueError(f"the column nums has {word[0][:20]!r}, which is no number: {nums[:100]!r}")
    numbers = [int(number) for number in _INTEGER.findall(nums)] if isinstance(nums, str) else nums
    if not numbers:
        raise ValueError("the column nums has no numbers")
    if min(numbers) < 0:
        raise ValueError(f"the column nums has a negative number, which no expression could use: {min(numbers)}")
    return numbers


def _target(target: int | float | str) -> Fraction | int:
    """The decimal digits as written, not the binary fraction nearest to them."""
    if type(target) is int:  # which True is not
        return target
    text = _NUMPY.sub("", str(target)).strip("() \n")
    try:
        # 1e99999999 would be a number of a hundred million digits.
        if _LONG_EXPONENT.search(text) is None:
            return Fraction(text)
    except (ValueError, ZeroDivisionError):
        pass
    raise ValueError(f"the column target is no number that could be reached: {text[:100]!r}")


def _written_plainly(answer: str) -> str:
    """What stands before the first `=`, with the operators of ASCII and nothing around it."""
    text = answer
    for _ in range(2):  # `$\\boxed{…}$`
        wrapped = _WRAPPED.fullmatch(text.strip())
        text = next((part for part in wrapped.groups() if part is not None), "") if wrapped else text
    return _SIGN.sub(lambda sign: _SIGNS[sign.group()], text.partition("=")[0]).strip()


def _tokens(expression: str) -> list[str]:
    if len(expression) > MAX_EXPRESSION_CHARS:
        raise _NoExpressionError
    if _NOTHING_ELSE.fullmatch(expression) is None:
        raise _NoExpressionError
    return _TOKEN.findall(expression)


class _Parser:
    """Recursive descent: sum → product → factor. Whole numbers stay `int`, for speed, until a division has a rest."""

    def __init__(self, tokens: list[str]):
        self._tokens = [*tokens, ""]
        self._next = 0

    def value(self) -> Fraction | int:
        value = self._sum(0)
        if self._tokens[self._next]:
            raise _NoExpressionError
        return value

    def _sum(self, depth: int) -> Fraction | int:
        value = self._product(depth)
        while (operator := self._tokens[self._next]) in ("+", "-"):
            self._next += 1
            operand = self._product(depth)
            value = value + operand if operator == "+" else value - operand
        return value

    def _product(self, depth: int) -> Fraction | int:
        value = self._factor(depth)
        while (operator := self._tokens[self._next]) in ("*", "/"):
            self._next += 1
            operand = self._factor(depth)
            if operator == "*":
                value = value * operand
            elif isinstance(value, int) and isinstance(operand, int) and operand and value % operand == 0:
                value = value // operand
            else:
                value = Fraction(value) / operand
        return value

    def _factor(self, depth: int) -> Fraction | int:
        if depth > MAX_DEPTH:
            raise _NoExpressionError
        symbol = self._tokens[self._next]
        self._next += 1
        if symbol.isdigit():
            return int(symbol)
        if symbol in ("+", "-"):
            operand = self._factor(depth + 1)
            return -operand if symbol == "-" else operand
        if symbol == "(":
            value = self._sum(depth + 1)
            if self._tokens[self._next] != ")":
                raise _NoExpressionError
            self._next += 1
            return value
        raise _NoExpressionError
