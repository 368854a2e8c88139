"""Units of a number: one unit in its usual spellings is one unit, and nothing is converted.

A unit is set off from its number by a blank (`plain` sets one for `\\text{…}`), or has several letters: `3 m^2` and
`3cm` have one, `3m^2` is a formula. Signs and codes of money stand before it as well. The base of `52_8` counts as one.
"""

import re
import tomllib
from collections import Counter
from pathlib import Path

Unit = frozenset[tuple[str, int]]
"""What a unit is made of: `m/s^2` is {("m", 1), ("s", -2)}."""

_LISTED = tomllib.loads(Path(__file__).with_name("units.toml").read_text())
_POWERS = {"square": 2, "sq": 2, "squared": 2, "cubic": 3, "cu": 3, "cubed": 3}
_SYMBOLS = {
    spelling: short + symbol
    for symbol, words in _LISTED["metric"].items()
    for short, long in _LISTED["prefixes"].items()
    for spelling in [short + symbol, *(long + word + end for word in words for end in ("", "s"))]
    if spelling not in _LISTED["letters"]["of_formulas"]
} | {
    word + end: symbol
    for symbol, words in _LISTED["others"].items()
    for word in words
    for end in (("", "s") if len(word) > 3 or word in ("day", "cup", "deg") else ("",))
}
"""Every spelling → its symbol. Symbols as they are (mW is no MW), words in lower case, one and many."""
_FACTOR = re.compile(
    r"\s*(?P<over>/|per\b)?\s*(?:\*|\\cdot|\\times)?\s*(?:(?P<before>square|sq|cubic|cu)\b\.?)?\s*"
    r"(?P<word>(?:US|CA|AU|C|A)?[$€£₹₩¢]|°[CF]|[^\W\d_]+(?:-(?:hour|year)s?)?)\.?"
    r"(?:\s*\^\s*\{?\s*(?P<exponent>-?\d{1,3})\s*\}?|\s+(?P<behind>squared|cubed)\b)?\s*",
    re.IGNORECASE,
)
_DEGREES = re.compile(r"\s*(?:\^\\circ|°|degrees?\b)\s*(?P<scale>[CF](?:elsius|ahrenheit)?)?\Z", re.IGNORECASE)
_NUMBER_THEN = re.compile(
    r"(.*(?:[\d})\]%!]|\\pi))(?:(?:\s+|(?=[A-Za-z]{2}))([^\W\d_°][^=<>]*|°[CF])|\s*([$€£₹₩¢]))", re.DOTALL
)
_MONEY_THEN = re.compile(
    r"(-?)\s*([A-Z]{0,3}[$€£¥₹₩]|USD|EUR|GBP|Rs|INR|RMB|CNY|JPY|KRW|CHF|CAD|AUD|人民币)\.?\s*(-?[\d.].*)",
    re.DOTALL,
)
_BASE = re.compile(r"(-?\d+)\s*_\s*\{?(\d{1,2})\}?")


def number_and_unit(text: str) -> tuple[str, Unit] | None:
    """`text` without its unit, and that unit; None when it has none that is set off."""
    if based := _BASE.fullmatch(text):
        return based[1], frozenset({("base", int(based[2]))})
    if money := _MONEY_THEN.fullmatch(text):
        amount = number_and_unit(money[3])
        return money[1] + (amount[0] if amount else money[3]), _unit_of(money[2]) or frozenset()
    apart = _NUMBER_THEN.fullmatch(
        _DEGREES.sub(lambda sign: f" °{sign['scale'][0].upper()}" if sign["scale"] else " deg", text)
    )
    unit = _unit_of(apart[2] or apart[3]) if apart else None
    return (apart[1], unit) if apart and unit is not None else None


def agree(one: Unit, other: Unit) -> bool:
    """Whether they are the same; a pound is one of mass or of money."""

    def with_pounds_as(unit: str) -> list[Unit]:
        return [frozenset((unit if name == "pound" else name, power) for name, power in side) for side in (one, other)]

    return any(first == second for first, second in map(with_pounds_as, ("lb", "GBP")))


def _unit_of(text: str) -> Unit | None:
    """None for what has a word that is no unit."""
    powers: Counter[str] = Counter()
    position = 0
    while position < len(text):
        factor = _FACTOR.match(text, position)
        made_of = _made_of(factor["word"]) if factor else None
        if factor is None or made_of is None:
            return None
        exponent = int(factor["exponent"] or 1) * _POWERS.get((factor["before"] or factor["behind"] or "").lower(), 1)
        for symbol, power in made_of:
            powers[symbol] += power * exponent * (-1 if factor["over"] else 1)
        position = factor.end()
    return frozenset((symbol, power) for symbol, power in powers.items() if power) or None


def _made_of(word: str) -> Unit | None:
    if formula := _LISTED["made_of"].get(word.lower()):
        return _unit_of(formula)
    symbol = _SYMBOLS.get(word.replace("\u00b5", "\u03bc")) or _SYMBOLS.get(word.lower() if len(word) > 3 else "")
    return frozenset({(symbol, 1)}) if symbol else None
