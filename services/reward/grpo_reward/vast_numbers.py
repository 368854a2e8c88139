"""Whether a number in an expression of SymPy has so many digits that nobody waits for its value."""

import math
from typing import Any

from sympy import Add, Basic, Float, Function, Mul, NumberSymbol, Pow, Rational, exp, preorder_traversal
from sympy.functions.combinatorial.factorials import CombinatorialFunction
from sympy.functions.elementary.hyperbolic import HyperbolicFunction

MAX_EXPONENT_DIGITS = 10_000
"""SymPy finds `e^x` and `sin(x)` with as many digits as x has: 70,000 take four seconds."""


def is_vast(value: Any) -> bool:
    """Whether there is an exponent, or a function's argument, of very many digits in it, as in `e^{e^{e^{20}}}`.

    Found from the form of the expression: nothing is evaluated.
    """
    return isinstance(value, Basic) and any(
        num_digits(argument) > MAX_EXPONENT_DIGITS
        for part in preorder_traversal(value)
        if isinstance(part, Pow | Function)
        for argument in ([part.as_base_exp()[1]] if isinstance(part, Pow | exp) else part.args)
    )


def num_digits(value: Any) -> float:
    """About how many digits it has before its point, negative for zeros behind it: log10 |value|, 2 for a symbol."""
    if isinstance(value, Float | Rational):
        number = Rational(value)
        return math.log10(max(abs(number.p), 1)) - math.log10(number.q)
    if not value.args:
        return math.log10(value) if isinstance(value, NumberSymbol) else math.log10(2)
    if isinstance(value, Pow | exp):
        base, exponent = value.as_base_exp()
        sign = -1 if exponent.could_extract_minus_sign() else 1
        return sign * num_digits(base) * 10 ** min(num_digits(exponent), 300)
    parts = [num_digits(part) for part in value.args]
    if isinstance(value, Mul):
        return sum(parts)
    if isinstance(value, CombinatorialFunction | HyperbolicFunction):
        return max(parts) * 10 ** min(max(parts), 300)
    return max(parts) + (math.log10(len(parts)) if isinstance(value, Add) else 0)
