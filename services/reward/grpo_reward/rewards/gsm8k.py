"""Grade-school mathematics: one number after `####`."""

import re
import unicodedata
from collections import deque
from decimal import Decimal
from fractions import Fraction

from pydantic import StrictFloat, StrictInt

from ..answers.words import in_signs
from ..author import Score, reward

_BLANK = " \u00a0\u2009\u202f"
# What makes one expression of several runs of digits. All of it is taken, so that 1/2, 1.000.000, 1e3, 2^3, 5:30 and
# 6*3 are never read as what they begin with.
_JOINT = (
    r"[.,:_'’]|\s*+(?:[/*+×·÷⁄xX-]|\*\*|\^\s*\{?\s*-?|\\(?:times|cdot|div)(?![a-z]))\s*+|[eE][+-]?"
    rf"|[{_BLANK}](?=\d{{3}}(?!\d))|\s(?=\d++\s*/\s*\d)"
)
_LIST = r"|\s*+(?:,|;|or|and|to)\s++-?|[ \t]*+\|[ \t]*+-?|[ \t]++-?"
_START, _END = r"(?<![\w.,])(-?(?:\d++|\.\d++)(?:(?:", r")\d++)*+(?:\s*\^(?!\s*\{?\s*\\circ))?)"
_NUMBER_OR_LIST = re.compile(_START + _JOINT + _LIST + _END)
_NUMBER = re.compile(_START + _JOINT + _END)

# Behind the number, but for the exponent of a unit, as in m^2, m2 and \\text{m}^{-1}.
_FURTHER = re.compile(r"(?P<unit>[^\W\d_]\}?\s?(?:\^\s?\{?\s?-?\d++|[23](?!\w)))|[\d¼-¾⅐-⅞]")
_WORD = re.compile(r"[^\W\d_]+")
_OR = re.compile(r"\b(?:or|maybe|perhaps|possibly|alternatively|otherwise|either)\b", re.IGNORECASE)

# No number has more than 400 digits before its point: what is done with it, and its text, stays small.
_GROUPED = rf"[1-9]\d{{0,2}}(?:([,'’{_BLANK}])\d{{3}})(?:\1\d{{3}}){{0,131}}|[1-9]\d?(?:,\d\d){{1,197}},\d{{3}}"
_DECIMAL = re.compile(rf"(?:{_GROUPED}|\d{{1,400}})(?:\.\d{{1,400}})?|\.\d{{1,400}}")
_MIXED = re.compile(r"(\d{1,9})\s(\d{1,9})\s*/\s*(\d{1,9})")

_ANOTHER = re.compile(
    r"\d\s?(?:factorial|pi|π|score|gross|myriad)(?![^\W\d_])|\b(?:not|twice|double|triple|(?:square|cube) of)\s+\d",
    re.I,
)
_MINUS = re.compile("[\u2212\u2013\u2010\u2011\ufe63\uff0d]")
_CURRENCY = re.compile(r"(?P<letter>[^\W\d_])?\\?[$€£¥₹]")
_FRACTION = re.compile(r"(?P<whole>\d)?\s?\\[dt]?frac\s*\{(-?[\d.,]{1,400})\}\s*\{([\d.,]{1,400})\}")


@reward
def gsm8k(completion: str, *, answer: str | StrictInt | StrictFloat, strict: bool = True) -> Score:
    """1 when the completion's number equals the one of `answer`, else 0; unscorable when `answer` has none.

    Both are the first number that follows the last `####`; an `answer` without `####` is the number itself. With
    `strict` false a completion without `####` is taken at its last number.

    Commas (blanks, apostrophes) between groups of digits do not count, nor do a currency, a unit, a per cent sign and a
    full stop behind the number: $1,800.00, 1800 apples and 1800 are equal. Words that make another number count: 18
    million, negative 18, 18 halves, 18 times 2, 18万. 1/2, 1 1/2 and `\\frac{1}{2}` are fractions.
    What is more than one number is none, so that it is never read as what it begins with: 1.000.000, 1,5, 1e3, 2^3,
    5:30, 6*3, 6 x 3, "18 or 19", "18 (19)", "18 = 19", 18 19. So is a number with a further one on its line, when "or",
    "maybe" or the like, or no more than one word stands between them; "5 apples and 3 pears" and "5 (that is 2 + 3)"
    are 5.

    Source: the GSM8K data set (arXiv 2110.14168); verl's `gsm8k` compares text, so that 18.00 is
    not 18 there.
    """
    text = answer.rpartition("####")[2] if isinstance(answer, str) else format(Decimal(str(answer)), "f")
    gold = _first_number(text)
    if gold is None:
        return Score(None, detail="the column answer has no number, or one that can be read in two ways")
    _, mark, after = completion.rpartition("####")
    found = _first_number(after) if mark else None if strict else _last_number(completion)
    return Score(float(found == gold), log={"number": None if found is None else str(found)[:200]})


def _first_number(text: str) -> Decimal | Fraction | None:
    if _ANOTHER.search(text.strip().partition("\n")[0]):
        return None
    text = _plain(text).lstrip()
    if text.startswith("-"):
        text = f"-{text[1:].lstrip()}"
    match = _NUMBER_OR_LIST.search(text)
    return _value(text, match) if match and not _is_one_of_several(text, match) else None


def _is_one_of_several(text: str, match: re.Match[str]) -> bool:
    """Whether the line has a second number that could be meant as well."""
    rest = text[match.end() :].partition("\n")[0]
    further = [found.start() for found in _FURTHER.finditer(rest) if not found["unit"]]
    if not further:
        return False
    return _OR.search(rest, 0, further[-1]) is not None or len(_WORD.findall(rest, 0, further[0])) <= 1


def _last_number(text: str) -> Decimal | Fraction | None:
    text = _plain(text)
    last = deque(_NUMBER.finditer(text), maxlen=1)
    return _value(text, last[0]) if last else None


def _plain(text: str) -> str:
    """`text` without what may stand between a sign and its digits; in ASCII digits, millions in full."""
    if not text.isascii():
        text = "".join(str(unicodedata.decimal(c)) if c.isdecimal() else c for c in text)
    text = in_signs(_MINUS.sub("-", text))
    text = _CURRENCY.sub(lambda match: f"{match['letter']} " if match["letter"] else "", text)
    text = text.replace("{,}", ",").replace("\\,", ",").replace("\\!", "")
    return _FRACTION.sub(lambda match: f"{match['whole'] or ''} {match[2]}/{match[3]}".lstrip(), text)


def _value(text: str, match: re.Match[str]) -> Decimal | Fraction | None:
    """None for what is no number, or more than one."""
    digits = match.group().removeprefix("-")
    negative = match.group().startswith("-")
    if text[match.end() : match.end() + 1].isnumeric():  # 2½ and 18²
        return None
    if mixed := _MIXED.fullmatch(digits):
        whole, top, bottom = map(int, mixed.groups())
        return (-1 if negative else 1) * (whole + Fraction(top, bottom)) if bottom else None
    above, slash, below = digits.partition("/")
    numerator, denominator = _decimal(above.rstrip()), _decimal(below.lstrip())
    if numerator is None:
        return None
    if negative:
        numerator = numerator.copy_negate()  # exact, which a unary minus is not
    if not slash:
        return numerator
    return Fraction(numerator) / Fraction(denominator) if denominator else None


def _decimal(digits: str) -> Decimal | None:
    return Decimal(re.sub(r"[^\d.]", "", digits)) if _DECIMAL.fullmatch(digits) else None
