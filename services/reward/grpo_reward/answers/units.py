"""Units of a number: one unit in its usual spellings is one unit, and nothing is converted.

A unit is set off from its number by a blank (`plain` sets one for `\\text{…}`): `3 m^2` has one, `3m^2` is a formula.
Signs and codes of money stand before it as well. The base of `52_8` counts as a unit does.
"""

import re

Unit = frozenset[tuple[str, int]]
"""What a unit is made of: `m/s^2` is {("m", 1), ("s", -2)}."""

_NO_UNITS = {"F", "C", "T", "t", "pt", "cd"}
"""Symbols that are letters of a formula more often."""
_PREFIXES = {"k": "kilo", "c": "centi", "m": "milli", "d": "deci", "h": "hecto", "n": "nano", "p": "pico"}
_PREFIXES |= {"\u03bc": "micro", "M": "mega", "G": "giga", "T": "tera"}
_METRIC = {
    "m": "meter metre", "g": "gram gramme", "s": "second", "L": "liter litre", "N": "newton", "J": "joule", "W": "watt",
    "V": "volt", "A": "ampere amp", "Pa": "pascal", "Hz": "hertz", "mol": "mole", "Wh": "watt-hour", "F": "farad",
    "eV": "electronvolt", "cal": "calorie", "B": "byte", "bit": "bit", "ohm": "ohm", "T": "tesla", "C": "coulomb",
    "Wb": "weber", "bar": "bar", "rad": "radian", "lm": "lumen", "ha": "hectare", "Bq": "becquerel",
}  # fmt: skip
_OTHERS = {
    "s": "sec secs 秒", "min": "min mins minute 分钟", "h": "h hr hrs hour 小时", "day": "day 天 日", "week": "week wk wks 周",
    "month": "month mo 月", "year": "year yr yrs 年", "decade": "decade", "century": "century centuries",
    "in": "in inch inches", "ft": "ft foot feet", "yd": "yd yds yard", "mi": "mi mile", "acre": "acre", "pt": "pint",
    "lb": "lb lbs pound £ GBP", "oz": "oz ounce", "gal": "gal gallon", "qt": "qt quart", "cup": "cup", "K": "K kelvin",
    "tbsp": "tbsp tablespoon", "tsp": "tsp teaspoon", "L": "l 升", "mL": "ml cc 毫升", "m": "米", "km": "kms 千米 公里",
    "cm": "cms 厘米", "mm": "mms 毫米", "g": "克", "kg": "kgs 千克 公斤", "ton": "ton tonne t 吨", "knot": "knot kn",
    "degC": "°C celsius 摄氏度", "degF": "°F fahrenheit", "degree": "degree deg 度", "psi": "psi", "atm": "atm",
    "dB": "dB decibel", "kB": "KB", "USD": "$ US$ USD dollar 美元", "EUR": "€ EUR euro 欧元", "cent": "cent ¢ 美分",
    "INR": "₹ INR Rs rupee", "JPY": "JPY yen 日元", "CNY": "CNY RMB yuan 元 人民币", "KRW": "₩ KRW won", "CHF": "CHF franc",
    "CAD": "CA$ C$ CAD", "AUD": "A$ AU$ AUD", "penny": "penny pence pennies", "rpm": "rpm", "light-year": "light-year ly",
    "kbit": "kb", "Mbit": "Mb", "Gbit": "Gb", "KiB": "KiB kibibyte", "MiB": "MiB mebibyte", "GiB": "GiB gibibyte",
    "TiB": "TiB tebibyte",
}  # fmt: skip
_PRODUCTS = dict.fromkeys(("mph",), (("mi", 1), ("h", -1))) | dict.fromkeys(
    ("kph", "kmh", "kmph"), (("km", 1), ("h", -1))
)
_PRODUCTS |= {
    "mbps": (("Mbit", 1), ("s", -1)),
    "gbps": (("Gbit", 1), ("s", -1)),
    "sqft": (("ft", 2),),
    "fps": (("ft", 1), ("s", -1)),
}
_PRODUCTS |= {"平方米": (("m", 2),), "立方米": (("m", 3),), "平方厘米": (("cm", 2),), "立方厘米": (("cm", 3),)}
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
            found |= dict.fromkeys(
                (word, f"{word}s") if len(word) > 3 or word in ("day", "cup", "deg") else (word,), symbol
            )
    return {word: symbol for word, symbol in found.items() if word not in _NO_UNITS}


_SYMBOLS = _spellings()
_PART = re.compile(
    r"(?P<over>/|\bper\b)|(?P<times>\*|\\cdot|\\times)|(?P<power>\^\s*\{?\s*(?P<exponent>-?\d{1,3})\s*\}?)"
    r"|(?P<word>(?:US|CA|AU|C|A)?[$€£₹₩¢]|°[CF]|[^\W\d_]+(?:-(?:hour|year)s?)?)\.?|(?P<blank>\s+)"
)
_DEGREES = re.compile(r"\s*(?:\^\\circ|°)\s*(?P<scale>[CF]?)\Z")
_NUMBER_THEN = re.compile(r"(.*(?:[\d})\]%]|\\pi))(?:\s+([^\W\d_°][^=<>]*|°[CF])|\s*([$€£₹₩¢]))", re.DOTALL)
_MONEY_THEN = re.compile(
    r"(-?)\s*((?:US|CA|AU|C|A)?[$€£¥₹₩]|USD|EUR|GBP|Rs|INR|RMB|CNY|JPY|KRW|CHF|CAD|AUD|人民币)\.?\s*(-?[\d.].*)",
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
    apart = _NUMBER_THEN.fullmatch(_DEGREES.sub(lambda sign: f" °{sign['scale']}" if sign["scale"] else " deg", text))
    unit = _unit_of(apart[2] or apart[3]) if apart else None
    return (apart[1], unit) if apart and unit is not None else None


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
