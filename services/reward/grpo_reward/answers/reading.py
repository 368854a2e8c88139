"""What an answer is: a formula, a number with a unit, a list, a sentence with one in it, or text and nothing else."""

import logging
import re
from dataclasses import dataclass, replace
from typing import Any

from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse
from sympy import Eq, FiniteSet, Interval, Symbol, Tuple

from .formula import MAX_FORMULA_CHARS, formula
from .labels import without_label
from .place import FORMULA, announced
from .plain import plain, squeezed, typed
from .units import Unit, number_and_unit
from .words import CHANGES, as_list, in_signs, words_of

MAX_WORDS = 4
"""Most words beside a formula; more are a sentence."""
_CONTENT = re.compile(r"[\dA-Za-z\\]")
_DASH = re.compile(r"(?<![\w)}\]\s])\s*–\s?(?=[\d\\(.])|\A–\s?")
_LOOSE = re.compile(r"\A(?:[-+–,:;=.]\s+|[,:;=]|\.(?!\d))+|[-+–,:;=.(\s]+\Z")
_STATES = r"(?:is|are|was|were|equals?|gets?|gives?)"
_STATED = re.compile(rf"\b{_STATES}\s*\Z", re.I)
_MINUS = re.compile(rf"(\A|=|\b{_STATES}(?=\s))\s*-\s+(?=[\d\\(.]|[a-z](?![a-z]))", re.I)
"""A minus, set off by a blank. Behind any other word it is a dash."""
_AMOUNT = re.compile(r"[\d$€£¥₹₩]")
_REASON = re.compile(r"\b(?:because|since|so|thus|hence|therefore|then|is|are|gives?|we|get)\b", re.I)
_PRONOUN = re.compile(r"(?<!\S)[AaI](?!\S)")
_NAME = re.compile(r"\\?[A-Za-z]+(?:_\{?\w+\}?)?")
_POWER_OF_NOUN = re.compile(r"\^\s*\{?\s*-?\d\s*\}?")
_DECIMAL_COMMA = re.compile(r"[-+]?(?:\d+,(?:\d{1,2}|\d{4,})|0,\d+)")
_GROUPED = re.compile(r"(?:[^,;]*=\s*)?[-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_GROUP = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_DOMAIN = re.compile(
    r"\s*(?:[,;]\s*(?:where\s+)?|(?P<open>\())\s*(?P<name>[a-z])\s*\\in\s*(?:\\mathbb\s*\{?\s*)?(?P<set>[NZ])\s*\}?\s*(?(open)\))\Z"
)
"""What a family's number runs through: `2k\\pi, k \\in \\mathbb{Z}`, also in parentheses, in any font."""
_ANYWHERE = (LatexExtractionConfig(), ExprExtractionConfig())

# It warns once per process that its own time-outs are off. They are on purpose: they need signals, which a plugin may
# need as well, and do not interrupt code that holds the interpreter; here the whole worker is killed.
logging.getLogger("math_verify").setLevel(logging.ERROR)


@dataclass(frozen=True)
class Reading:
    """`texts`: spellings that are equal where one of them is. `values`: none for what is text and nothing else.

    `label`: the letter before them, as in `(C) 12`. `domain`: the Z or N behind a family, as in `k\\pi, k\\in Z`.
    """

    texts: frozenset[str]
    values: tuple[Any, ...] = ()
    unit: Unit | None = None
    is_percent: bool = False
    label: str | None = None
    domain: str | None = None

    @property
    def is_list(self) -> bool:
        return any(isinstance(value, FiniteSet | Tuple | Interval) and len(value.args) > 1 for value in self.values)


def read(text: str, *, of_list: bool = False) -> Reading:
    """`text` as mathematics. `of_list`: it answers a list, in which a comma is no decimal point.

    Up to MAX_WORDS words beside one formula or number are a name or a noun and tell nothing, unless they make another
    number of it. Beside more words a single formula counts, and of several the last formula or number, as `math_verify`
    finds it.
    """
    spelled = plain(text)
    label, value = without_label(spelled)
    if label:
        reading = read(value, of_list=of_list)
        return replace(reading, texts=reading.texts | {squeezed(spelled)}, label=label)
    domain = _DOMAIN.search(spelled)
    if domain and re.search(rf"(?<![A-Za-z]){domain['name']}(?![A-Za-z])", spelled[: domain.start()]):
        reading = read(spelled[: domain.start()], of_list=of_list)
        return replace(reading, texts=reading.texts | {squeezed(spelled)}, domain=domain["set"])
    whole = _MINUS.sub(r"\1 -", in_signs(_DASH.sub("-", _one_line(spelled, of_list)))).strip()
    words = words_of(whole)
    if words and not words_of(listed := as_list(whole)):
        whole, words = listed, []
    texts = frozenset(filter(None, (squeezed(spelled), squeezed(whole))))
    if not words:
        return replace(_of_formula(whole, of_list), texts=texts)
    amount = _behind_words(whole, words)
    if (apart := number_and_unit(amount)) and not words_of(apart[0]):
        return replace(_of_formula(amount, of_list), texts=texts)
    formulas = _between(whole, words)
    if len(words) > MAX_WORDS or len(spelled) > MAX_FORMULA_CHARS:
        return _of_prose(text, formulas)
    if not formulas and len(words) == 1:
        return Reading(texts, (Symbol(whole.lower()),))
    if len(formulas) > 1 and (_REASON.search(whole) or re.search(r"[.!?]\s", spelled)):
        return _of_prose(text, formulas)
    if len(formulas) != 1 or CHANGES.search(whole):
        return Reading(texts)
    return replace(_of_formula(formulas[0], of_list), texts=texts | {squeezed(formulas[0])})


def _one_line(text: str, of_list: bool) -> str:
    """Lines are a list, those of a derivation its last equation."""
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    if len(lines) < 2 or "\\begin" in text:
        return " ".join(lines)
    left = [line.partition("=") for line in lines]
    is_derivation = all(sign for _, sign, _ in left) and left[0][0] != left[-1][0] and not of_list
    return lines[-1] if is_derivation else ", ".join(line.rstrip(",;") for line in lines)


def _behind_words(text: str, words: list[re.Match[str]]) -> str:
    """The formula with the first amount and what follows it; empty when the words before it may change its value.

    It begins behind the last word before the amount, not at the amount: 3 is a part of `\\pi/3 meters`.
    """
    amount = _AMOUNT.search(text)
    before = [word for word in words if amount and word.end() <= amount.start()]
    if not before:
        return text
    start = before[-1].end()
    beside_words = any(_CONTENT.search(part) for part in _parts(text[:start], before))
    if CHANGES.search(text, 0, start) or (beside_words and not _STATED.search(text, 0, start)):
        return ""
    return _LOOSE.sub("", text[start:].strip()).strip()


def _between(text: str, words: list[re.Match[str]]) -> list[str]:
    """What stands between the words, if it has a digit, a letter or a command. Of `x is 5 apples` not the x."""
    loose = [_LOOSE.sub("", part.strip()).strip() for part in _parts(text, words)]
    behind = [*(word.group() for word in words), ""]
    return [
        part
        for part, word in zip(loose, behind, strict=True)
        if _CONTENT.search(part)
        and not _POWER_OF_NOUN.fullmatch(part)
        and not (_NAME.fullmatch(part) and _STATED.fullmatch(word))
    ]


def _parts(text: str, words: list[re.Match[str]]) -> list[str]:
    ends = [0, *(word.end() for word in words)]
    starts = [*(word.start() for word in words), len(text)]
    return [_PRONOUN.sub("", text[end:start]) for end, start in zip(ends, starts, strict=True)]


def _of_formula(text: str, of_list: bool) -> Reading:
    number, unit = number_and_unit(text) or (text, None)
    is_percent = number.endswith("%") and number.count("%") == 1
    number = number.removesuffix("%").strip() if is_percent else number
    if _GROUPED.fullmatch(number):
        number = number.replace(",", "")
    elif _DECIMAL_COMMA.fullmatch(number) and not of_list:
        number = number.replace(",", ".")
    elif ", " in number or ";" in number:
        number = _GROUP.sub("", number)
    value = formula(number)
    if value is None:
        return Reading(frozenset())
    if isinstance(value, Eq) and not value.free_symbols and "equiv" not in number:
        value = value.rhs  # 16 - 3 - 4 = 9
    product = formula(text) if unit and text.isascii() and "$" not in text else None  # `5 m^2` beside `5m^2`
    return Reading(frozenset(), (value,) if product is None else (value, product), unit, is_percent)


def _of_prose(text: str, formulas: list[str]) -> Reading:
    """`formulas` stand between the words: `math_verify` would take the 5 of a single `x + 5`."""
    said = announced(text)
    if said is None and (marked := list(FORMULA.finditer(text))):
        said = None if re.search(r"\d", text[marked[-1].end() :]) else marked[-1].group()
    if said is not None and said.strip() != text.strip():
        return read(said)
    if len(formulas) == 1 and re.search(r"\d", formulas[0]) and (only := _of_formula(formulas[0], False)).values:
        return only
    found = parse(in_signs(typed(text)), _ANYWHERE, extraction_mode="first_match", parsing_timeout=None)
    values = tuple(value for value in found if not isinstance(value, str))
    return Reading(frozenset(squeezed(plain(part)) for part in found if isinstance(part, str)), values)
