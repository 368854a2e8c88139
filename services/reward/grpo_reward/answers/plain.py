"""One spelling for what is written in many: signs, LaTeX's fonts and spacing, marks around the answer.

Behind it there are ASCII digits, one minus, one blank, `\\frac`, `\\le`, letters without a font. What people type is
LaTeX there, which the parser reads: of `2√2` it would take the 2, of `10{,}000` the 10.
"""

import re
import unicodedata

_SIGNS = {
    "π": "pi", "∞": "infty", "×": "times", "÷": "div", "·": "cdot", "⋅": "cdot", "±": "pm", "≤": "le", "≦": "le",
    "⩽": "le", "≥": "ge", "≧": "ge", "⩾": "ge", "≠": "ne", "∪": "cup", "∩": "cap", "∈": "in", "∅": "emptyset",
    "≈": "approx", "≡": "equiv", "∠": "angle", "△": "triangle", "ℝ": "mathbb{R}", "ℤ": "mathbb{Z}",
    "α": "alpha", "β": "beta", "γ": "gamma", "δ": "delta", "θ": "theta", "λ": "lambda", "ρ": "rho", "σ": "sigma",
    "φ": "phi", "ω": "omega",
}  # fmt: skip
_FRACTIONS = {
    "½": "12", "⅓": "13", "⅔": "23", "¼": "14", "¾": "34", "⅕": "15", "⅙": "16", "⅛": "18", "⅜": "38", "⅝": "58",
}  # fmt: skip
_TYPED = {"。": ".", "、": ",", "∶": ":", "⁄": "/", "′": "'", "’": "'", "‘": "'", "″": "''"}
_TYPED |= dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff", "") | dict.fromkeys(
    "\xa0\u2002\u2003\u2007\u2009\u200a\u202f\u3000", " "
)
_TYPED |= dict.fromkeys("−﹣‐‑", "-") | dict.fromkeys("–—―‒〜～", "–")
_TYPED |= {sign: f"\\{name} " for sign, name in _SIGNS.items()}
_TYPED |= {sign: f"\\frac{{{parts[0]}}}{{{parts[1]}}}" for sign, parts in _FRACTIONS.items()}
_SYMBOLS = {code: chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)} | str.maketrans(_TYPED)
_RAISED, _LOWERED = "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻", "₀₁₂₃₄₅₆₇₈₉₊₋"
_ON_THE_LINE = str.maketrans(_RAISED + _LOWERED, "0123456789+-" * 2)
_OFF_THE_LINE = re.compile(f"(?P<up>[{_RAISED}]+)|[{_LOWERED}]+")
_ROOT = re.compile(r"√\s*(?:(\d+(?:\.\d+)?|[A-Za-z])|\(([^()]*)\)|\{([^{}]*)\})")
_DEGREE = re.compile(r"°(?!\s*[CF]\b)\s?")

_GROUP_SIGN = r"(?:\{,\}|,\\!|\\[!,;: ]|~)"
_GROUPS = re.compile(rf"(?<![\d.,])\d{{1,3}}(?:{_GROUP_SIGN}\s?\d{{3}})+(?!\d)")
_NOT_DIGITS = re.compile(r"\D+")
_REPEATING = re.compile(
    r"(?<![\d.])(\d{1,20})\.(\d{0,20})\\(?:overline|dot(?=\s*\{?\d\}?(?!\s*\d*\\dot)))\s*(?:\{(\d{1,20})\}|(\d))"
)
_CHOOSE = re.compile(r"\{([^{}\\]{1,20})\\choose(?![A-Za-z])([^{}\\]{1,20})\}")
_MODULUS = re.compile(r"\\pmod\s*(\d)(?!\d)")

FUNCTIONS = "sin|cos|tan|cot|csc|arcsin|arccos|arctan|sinh|cosh|tanh|log|ln|lg|exp|det|max|gcd|lcm"
GREEK = "alpha|beta|gamma|delta|epsilon|zeta|eta|theta|iota|kappa|lambda|mu|nu|xi|rho|sigma|tau|phi|chi|omega|pi"
_UNITS_OF_ONE_LETTER = "mgsLNJWVAKh"
_SPACING = re.compile(
    r"(?P<kept>\\\\)|\\!|\\\Z|\\(?:left|right)\s*\.|\\(?:left|right|[bB]igg?[lr]?)(?![A-Za-z])"
    r"|(?P<blank>\\[,;:> ()\[\]]|~|\\(?:q?quad|displaystyle|[lL]arge|LARGE|[hH]uge|small|rm|bf|it)(?![A-Za-z])"
    r"|\\hspace\s*\{[^{}]*\})"
)
_FONT = re.compile(
    r"\\(?:(?P<text>text[a-z]*|mbox|hbox|mathrm|operatorname\*?)|math(?:bf|it|sf|tt)|boldsymbol|bm|pmb|underline)\s*\{((?:[^{}]|\{[^{}]*\})*)\}"
    r"|\\(?:text)?color\s*\{[^{}]*\}"
)
_SAME = {
    "dfrac": "frac", "tfrac": "frac", "cfrac": "frac", "leq": "le", "leqslant": "le", "geq": "ge", "geqslant": "ge",
    "neq": "ne", "varnothing": "emptyset", "lbrace": "{", "rbrace": "}", "dots": "ldots", "cdots": "ldots",
    "degree": "^\\circ", "langle": "(", "rangle": ")",
    "lvert": "|", "rvert": "|", "vert": "|", "mid": "|", "%": "%", "land": "wedge", "lg": "log",
    "rightarrow": "to", "ast": "*",
}  # fmt: skip
_COMMAND = re.compile(r"\\([A-Za-z]+|%)")
_ARRAY = re.compile(
    r"(\(|\[|\\\{)\s*\\begin\{(array|matrix|aligned)\}(?:\{[^{}]*\})?(.*?)\\end\{\2\}\s*([)\]]?)", re.DOTALL
)
_ENVIRONMENT = {"(": "pmatrix", "[": "bmatrix", "\\{": "cases"}
_CIRCLE = re.compile(r"\^\s*\{\s*\\circ\s*\}")
_DOLLAR = re.compile(r"(?<!\\)\$")
_STARS = re.compile(r"(?<![\w)}*])\*\*([^*\n]+)\*\*(?![\w({*])")
_EMPHASIS = re.compile(r"\A(__|`+|\"|“|\{)([^*`\n{}\"”]+)(?:\1|\}|”)\Z")
_BEFORE = re.compile(r"\A(?:=(?![=>])|\*{1,3}|#{1,6}\s|\\approx\b|\\therefore\b|:)\s*")
_AFTER = re.compile(r"(?<![.\s])\s*(?:[.,;:]|\*{1,3})\s*\Z")
_LOOSE_BLANK = re.compile(r"(?<![^\W_])\s+|\s+(?![^\W_])")
_ONE_IN_BRACES = re.compile(r"(?<=[\^_])\{(\w)\}")


def typed(text: str) -> str:
    """Signs, roots, powers, groups of digits and repeating decimals in LaTeX, without what nobody sees."""
    if "\\" in text or "{,}" in text or "~" in text:
        text = _GROUPS.sub(lambda number: _NOT_DIGITS.sub("", number.group()), text)
        if "\\overline" in text or "\\dot" in text:
            text = _REPEATING.sub(_fraction, text)
        text = _MODULUS.sub(r"\\pmod{\1}", _CHOOSE.sub(r"\\binom{\1}{\2}", text))
    if text.isascii():
        return text
    text = "".join(str(unicodedata.decimal(c)) if c.isdecimal() and c > "\x7f" else c for c in text)
    text = _OFF_THE_LINE.sub(lambda run: f"{'^' if run['up'] else '_'}{{{run.group().translate(_ON_THE_LINE)}}}", text)
    text = _ROOT.sub(lambda root: f"\\sqrt{{{next(filter(None, root.groups()), '')}}}", text)
    return _DEGREE.sub(r"^\\circ ", text).translate(_SYMBOLS)


def plain(text: str) -> str:
    """An answer in the one spelling, without the marks around it: dollar signs, emphasis, a full stop, a first `=`."""
    text = typed(text.strip()).replace("{,}", ",")
    if len(_DOLLAR.findall(text)) % 2 == 0:
        text = _DOLLAR.sub("", text)  # one alone is a currency
    if "\\" in text or "~" in text:
        text = _ARRAY.sub(
            _environment, _CIRCLE.sub(r"^\\circ", _COMMAND.sub(_synonym, _unset(_SPACING.sub(_space, text))))
        )
        text = text.replace("\\$", "$")
    text, before = re.sub(r"[ \t]+", " ", _STARS.sub(r"\1", text).strip()), ""
    while text != before:
        before, text = text, _BEFORE.sub("", _AFTER.sub("", _EMPHASIS.sub(r"\2", text).strip()))
    return text


def squeezed(text: str) -> str:
    """`plain` text without blanks that tell nothing: `2 3` is not `23`. In words upper and lower case are the same."""
    text = _ONE_IN_BRACES.sub(r"\1", _LOOSE_BLANK.sub("", text)).replace("–", "-")
    return text.casefold() if len(text) > 1 and text.replace(" ", "").isalpha() else text


def _fraction(number: re.Match[str]) -> str:
    """0.1\\overline{6} is (16 − 1)/90."""
    whole, once, repeated = number.group(1), number.group(2), number.group(3) or number.group(4)
    above = int(whole + once + repeated) - int(whole + once)
    below = (10 ** len(repeated) - 1) * 10 ** len(once)
    return f"\\frac{{{above}}}{{{below}}}"


def _space(mark: re.Match[str]) -> str:
    return mark["kept"] or (" " if mark["blank"] else "")


def _unset(text: str) -> str:
    """Letters without their font, words set off by blanks, names of functions as commands."""

    def letters(font: re.Match[str]) -> str:
        inside = font.group(2) or ""
        if re.fullmatch(FUNCTIONS, inside.strip()):
            return f"\\{inside.strip()} "
        if font.group().startswith("\\operatorname"):
            return font.group()
        tight = not font["text"] or (len(inside) == 1 and inside not in _UNITS_OF_ONE_LETTER)
        behind_a_command = font.string[: font.start()][-1:].isalpha()
        return f" {inside}" if tight and behind_a_command else inside if tight else f" {inside} "

    for _ in range(3):  # one font inside another
        text = _FONT.sub(letters, text)
    return text


def _synonym(command: re.Match[str]) -> str:
    name = command.group(1)
    same = _SAME.get(name)
    return command.group() if same is None else same if not same[0].isalpha() and same not in "{}" else f"\\{same}"


def _environment(array: re.Match[str]) -> str:
    name = _ENVIRONMENT[array.group(1)]
    return f"\\begin{{{name}}}{array.group(3)}\\end{{{name}}}" + ("" if name != "cases" else array.group(4))
