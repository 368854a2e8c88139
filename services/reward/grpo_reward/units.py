"""Units after a number: one unit in its usual spellings is one unit, and nothing is converted.

A unit is set off from its number by a blank or by `\\text{…}`: `3 m^2` has one, `3m^2` is a formula.
"""

import re

Unit = frozenset[tuple[str, int]]
"""What a unit is made of: `m/s^2` is {("m", 1), ("s", -2)}."""

_PREFIXES = {
    "k": "kilo",
    "c": "centi",
    "m": "milli",
    "d": "deci",
    "n": "nano",
    "\u03bc": "micro",
    "M": "mega",
    "G": "giga",
}
_METRIC = {
    "m": "meter metre", "g": "gram", "s": "second", "L": "liter litre", "N": "newton", "J": "joule", "W": "watt",
    "V": "volt", "A": "ampere amp", "Pa": "pascal", "Hz": "hertz", "mol": "mole", "Wh": "watt-hour",
    "eV": "electronvolt", "cal": "calorie",
}  # fmt: skip
_OTHERS = {
    "s": "sec secs", "min": "min mins minute", "h": "h hr hrs hour", "day": "day", "week": "week wk", "month": "month",
    "year": "year yr yrs", "in": "in inch inches", "ft": "ft foot feet", "yd": "yd yds yard", "mi": "mi mile",
    "lb": "lb lbs pound", "oz": "oz ounce", "gal": "gal gallon", "K": "K kelvin", "L": "l", "mL": "ml", "cm": "cms",
    "kg": "kgs", "km": "kms", "ton": "ton tonne",
}  # fmt: skip
_PRODUCTS = {"mph": (("mi", 1), ("h", -1)), "kph": (("km", 1), ("h", -1)), "kmh": (("km", 1), ("h", -1))}
_POWERS = {"square": 2, "sq": 2, "squared": 2, "cubic": 3, "cu": 3, "cubed": 3}


def _spellings() -> dict[str, str]:
    """Every spelling → its symbol. Symbols as they are (mW is no MW), words in lower case, one and many."""
    found = {}
    for symbol, words in _METRIC.items():
        for short, long in {"": "", **_PREFIXES}.items():
            found[short + symbol] = short + symbol
            for word in words.split():
                found |= dict.fromkeys((long + word, f"{long}{word}s"), short + symbol)
    for symbol, words in _OTHERS.items():
        for word in words.split():
            found |= dict.fromkeys((word, f"{word}s") if len(word) > 3 else (word,), symbol)
    return found


_SYMBOLS = _spellings()
_SET = re.compile(r"\\(?:text|mathrm|textrm|mbox|operatorname|rm)\s*\{([^{}]*)\}")
_BLANK = re.compile(r"\\[ ,;:!]|~|\\quad")
_PART = re.compile(
    r"(?P<over>/|\bper\b)|(?P<times>\*|\\cdot|\\times|\u00b7)|(?P<power>\^\s*\{?\s*(?P<exponent>-?\d+)\s*\}?)"
    r"|(?P<word>[A-Za-z\u03bc\u00b5]+(?:-hours?)?)\.?|(?P<blank>\s+)"
)
_NUMBER_THEN = re.compile(r"\A(?P<number>.*(?:[\d})\]]|\\pi))\s+(?P<unit>[A-Za-z\u03bc\u00b5][^=<>]*)\Z", re.DOTALL)


def number_and_unit(text: str) -> tuple[str, Unit] | None:
    """`text` without its unit, and that unit; None when it does not end with one that is set off."""
    apart = _NUMBER_THEN.match(_SET.sub(r" \1", _BLANK.sub(" ", text)).strip())
    unit = _unit_of(apart["unit"]) if apart else None
    return (apart["number"], unit) if apart and unit is not None else None


def _unit_of(text: str) -> Unit | None:
    """None for what has a word that is no unit."""
    powers: dict[str, int] = {}
    position, sign, pending = 0, 1, 1
    last: tuple[tuple[str, int], ...] = ()
    while position < len(text):
        part = _PART.match(text, position)
        if part is None:
            return None
        position = part.end()
        word = part["word"] or ""
        if part["over"]:
            sign = -1
        elif part["power"] or word.lower() in ("squared", "cubed"):
            exponent = int(part["exponent"]) if part["power"] else _POWERS[word.lower()]
            for name, power in last:
                powers[name] += power * (exponent - 1)
            last = ()
        elif word.lower() in _POWERS:
            pending = _POWERS[word.lower()]
        elif word:
            symbol = _SYMBOLS.get(word.replace("\u00b5", "\u03bc")) or _SYMBOLS.get(
                word.lower() if len(word) > 3 else ""
            )
            made_of = _PRODUCTS.get(word.lower()) or (((symbol, 1),) if symbol else None)
            if made_of is None:
                return None
            last = tuple((symbol, power * pending * sign) for symbol, power in made_of)
            for symbol, power in last:
                powers[symbol] = powers.get(symbol, 0) + power
            pending = sign = 1
    return frozenset((symbol, power) for symbol, power in powers.items() if power) or None
