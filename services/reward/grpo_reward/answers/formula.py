"""LaTeX, or a formula as people type it, as an expression of SymPy: all of it, or nothing."""

import re
from decimal import Decimal
from functools import lru_cache
from typing import Any

from latex2sympy2_extended import NormalizationConfig, latex2sympy, normalize_latex
from latex2sympy2_extended.latex2sympy2 import ConversionConfig
from math_verify.grader import should_treat_as_complex
from sympy import Eq, Symbol

from .plain import FUNCTIONS, GREEK

_CLEANING = NormalizationConfig(
    basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none", equations=False
)
_CONVERSION = ConversionConfig(interpret_as_mixed_fractions=False)
"""It adds whatever two numbers stand side by side, 24 for `20 4`."""
_NAMES = re.compile(rf"(?<![\\A-Za-z])({FUNCTIONS}|{GREEK})(?![A-Za-z])")
_CALL = re.compile(r"(?:\\?(sqrt|cbrt|abs|exp)|\^)\s*\(((?:[^()]|\((?:[^()]|\([^()]*\))*\))*)\)")
_ROOT_OF_DIGITS = re.compile(r"\\?sqrt\s*(\d+)")
_MIXED = re.compile(
    r"(?<![\d.,\w}^])(\d{1,20})\s+(\d{1,20})\s*/\s*(\d{1,20})(?![\d.])|(?<![\d.,\w}^])(\d{1,20})\s*\\frac\s*(\{\d+\}\{\d+\}|\d\d)"
)
_TOWER = re.compile(r"(?<=\^)\w+(?:\^\w+)+")
_DIGIT_ARGUMENTS = re.compile(r"\\(frac|binom)\s*(\d)\s*(\d)")
_SCRIPT = re.compile(r"([_^])\s*(-?\d+(?:\.\d+)?|-?[a-z](?![a-z]))(?![\w}.])")
_TIMES = re.compile(r"(?<=\d)\s*[xX]\s*(?=10\s*\^)|(?<=\d)\s+[xX]\s+(?=\d)")
_POWER_OF_TEN = re.compile(r"[-+]?\d{1,30}(?:\.\d{1,30})?[eE][-+]?\d{1,2}")
_BLANK_GROUPS = re.compile(r"(?<![\d.,\w])\d{1,3}(?: \d{3})+(?![\d ]*\d)")
_PLAIN_SIGNS = {
    "<=": "\\le ", ">=": "\\ge ", "!=": "\\ne ", "=<": "\\le ", "-oo": "-\\infty", "**": "^", "...": "\\ldots",
}  # fmt: skip
_NOT_READ = re.compile(
    r"['\"–:`#@]|\.\s*\.|\\ldots|\d\s+\.?\d|\d_|(?:^|[^\w}\])\\^])\{\s*\d+\s*\}\s*[\d{]|\d\.\d+\."
    r"|\\(?:[gl]c[dm]|operatorname)(?![A-Za-z])(?!\s*\([\d\s,]+\))|\\begin\{(?:cases|array|aligned)|binom\s*\{\s*\d{6,}"
)
"""What the parser would take in part, or drop: primes, ratios, dots, numbers side by side, bases."""
_EQUALS = re.compile(r"(?<![\\<>!=])=(?!=)")
MAX_FORMULA_CHARS = 300


def formula(text: str) -> Any:
    """The expression, a set for a list; None when any part of `text` is not understood. `text` is `plain`.

    An equation whose left side is not understood is one about a name: `\\operatorname{Var}(X)=5`.
    """
    text = text.strip()
    if _POWER_OF_TEN.fullmatch(text):
        exponent = int(re.split("[eE]", text)[1])
        text = (
            format(Decimal(text), "f") if abs(exponent) < 16 else re.sub("[eE].*", f"\\\\times 10^{{{exponent}}}", text)
        )
    latex = as_latex(text)
    if (found := _parsed(latex)) is not None:
        return found
    sides = _EQUALS.split(latex)
    if len(sides) > 2 and "," not in latex:
        return _parsed(sides[-1])
    if len(sides) == 2 and "," not in sides[0] and (right := _parsed(sides[1])) is not None:
        return Eq(Symbol("".join(sides[0].split())), right, evaluate=False)
    return None


def as_latex(text: str) -> str:
    """A formula that is typed as in a program or a message, in LaTeX."""
    for sign, latex in _PLAIN_SIGNS.items():
        text = text.replace(sign, latex)
    text = _TOWER.sub(
        lambda powers: "{" + powers.group().replace("^", "^{") + "}" * (powers.group().count("^") + 1), text
    )
    text = _TIMES.sub(r"\\times ", _BLANK_GROUPS.sub(lambda number: number.group().replace(" ", ""), text))
    text = _DIGIT_ARGUMENTS.sub(r"\\\1{\2}{\3}", _MIXED.sub(_sum, text))
    text = _SCRIPT.sub(r"\1{\2} ", text)
    text, before = _ROOT_OF_DIGITS.sub(r"\\sqrt{\1}", text), ""
    while text != before:
        before, text = text, _CALL.sub(_call, text)
    return _NAMES.sub(r"\\\1 ", text).replace("%", "\\%")


def _sum(mixed: re.Match[str]) -> str:
    if mixed[4]:
        return f"({mixed[4]}+\\frac{mixed[5]})"
    return f"({mixed[1]}+\\frac{{{mixed[2]}}}{{{mixed[3]}}})"


def _call(call: re.Match[str]) -> str:
    """`sqrt(7)`, `exp(2)`, `abs(x)` or `x^(n+1)` with braces."""
    before, after = {"sqrt": ("\\sqrt{", "}"), "cbrt": ("\\sqrt[3]{", "}"), "exp": ("e^{", "}"), "abs": ("|", "|")}.get(
        call[1], ("^{", "}")
    )
    return before + call[2] + after


@lru_cache(maxsize=256)
def _parsed(latex: str) -> Any:
    if not latex.strip() or _NOT_READ.search(latex):
        return None
    try:
        cleaned = normalize_latex(latex, _CLEANING)
        return latex2sympy(
            cleaned, is_real=not should_treat_as_complex(cleaned), convert_degrees=False,
            normalization_config=None, conversion_config=_CONVERSION,
        )  # fmt: skip
    except (MemoryError, RecursionError, OSError, ImportError):
        raise
    except Exception:
        return None
