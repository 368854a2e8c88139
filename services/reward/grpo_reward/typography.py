"""Mathematics as people and models type it, in the LaTeX that math_verify reads.

It would take the first number of what it does not know: 2 of `2√2`, 10 of `10{,}000`, 0 of `0.\\overline{3}`. Of a gold
answer that is written so, wrong answers would be paid and right ones not.
"""

import re

_PLAIN = dict(zip(map(ord, "−－﹣＋／．＝（）"), "---+/.=()", strict=True))
_PLAIN |= {0xFF10 + digit: str(digit) for digit in range(10)}
_PLAIN |= dict.fromkeys(map(ord, "\u200b\u200c\u200d\u2060\ufeff"), "")
_SIGNS = {
    "π": "pi", "∞": "infty", "×": "times", "÷": "div", "·": "cdot", "⋅": "cdot", "±": "pm", "≤": "le", "≥": "ge",
    "≠": "neq", "∪": "cup", "∩": "cap", "∈": "in",
}  # fmt: skip
_FRACTIONS = {
    "½": "1/2",
    "⅓": "1/3",
    "⅔": "2/3",
    "¼": "1/4",
    "¾": "3/4",
    "⅕": "1/5",
    "⅙": "1/6",
    "⅛": "1/8",
    "⅜": "3/8",
}
_SYMBOLS = _PLAIN | {ord(sign): f"\\{name} " for sign, name in _SIGNS.items()}
_SYMBOLS |= {ord(sign): f"\\frac{{{value[0]}}}{{{value[2]}}}" for sign, value in _FRACTIONS.items()}
_RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻"
_LOWERED = str.maketrans(_RAISED, "0123456789+-")

_CURRENCY, _DEGREE = re.compile(r"(?<!\\)\\\$"), re.compile("°(?!\\s*[A-Za-z])")
_POWER = re.compile(f"[{_RAISED}]+")
_ROOT = re.compile(r"√\s*(?:(\d+(?:\.\d+)?|[A-Za-z])|\(([^()]*)\)|\{([^{}]*)\})")
_GROUP_SIGNS = ("{,}", ",\\!", "\\!", "\\,", "\\;", "\\:", "\\ ", "~")
_GROUP_SIGN = f"(?:{'|'.join(map(re.escape, _GROUP_SIGNS))})"
_GROUPS = re.compile(rf"(?<![\d.,])\d{{1,3}}(?:{_GROUP_SIGN}\d{{3}})+(?!\d)")
_BETWEEN_GROUPS = re.compile(_GROUP_SIGN)
_REPEATING = re.compile(r"(?<![\d.])(\d{1,20})\.(\d{0,20})\\overline\s*(?:\{(\d{1,20})\}|(\d))")


def latex_of(text: str) -> str:
    """Signs, roots, powers, groups of digits and repeating decimals in LaTeX; without `\\$` and what nobody sees."""
    if "\\$" in text:
        text = _CURRENCY.sub("", text)
    if any(sign in text for sign in _GROUP_SIGNS):
        text = _GROUPS.sub(lambda number: _BETWEEN_GROUPS.sub("", number.group()), text)
    if "\\overline" in text:
        text = _REPEATING.sub(_fraction, text)
    if text.isascii():
        return text
    text = _POWER.sub(lambda power: f"^{{{power.group().translate(_LOWERED)}}}", text)
    text = _ROOT.sub(lambda root: f"\\sqrt{{{next(filter(None, root.groups()), '')}}}", text)
    return _DEGREE.sub(r"^\\circ ", text.translate(_SYMBOLS))


def _fraction(number: re.Match[str]) -> str:
    """0.1\\overline{6} is (16 − 1)/90."""
    whole, once, repeated = number.group(1), number.group(2), number.group(3) or number.group(4)
    above = int(whole + once + repeated) - int(whole + once)
    below = (10 ** len(repeated) - 1) * 10 ** len(once)
    return f"\\frac{{{above}}}{{{below}}}"
