"""Values of two expressions of SymPy, compared before anything is multiplied out, which may take minutes.

`(x + y)^{29} (z + w)^{29}` is read in a millisecond and has 900 terms: comparing it takes seconds, and with one factor
more it takes for ever. Its value at a point costs next to nothing, and tells that it is not 42.
"""

import math
from collections import Counter
from itertools import cycle
from typing import Any

import sympy
from sympy import Expr
from sympy.concrete.expr_with_limits import ExprWithLimits
from sympy.core.function import AppliedUndef
from sympy.functions.combinatorial.factorials import CombinatorialFunction
from sympy.functions.elementary.hyperbolic import HyperbolicFunction
from sympy.matrices.expressions import MatrixExpr

MAX_TERMS = 200
"""Most terms of an expression when multiplied out; 465 take a second."""
MAX_DIGITS, MAX_EXPONENT_DIGITS = 200_000, 10_000
"""Most digits of a number, and of an exponent or a function's argument: SymPy finds `e^x` with as many as x has."""
MAX_RANGE = 100_000
"""Longest range of a sum or product that is written with its sign, from the lower to the upper limit."""
SMALL, SMALL_TOLERANCE = 0.001, 0.001
"""Numbers below that size are compared to three digits: `math_verify` rounds to six decimals, whatever the size."""
_INFINITE = 1e18
_DIGITS, _MORE_DIGITS = 100, 10_000
"""Digits of a value, so that 1 is not lost beside that of a power; and of what is left without the equal terms."""
_ENOUGH = 1e-80
"""Values that are as near to each other, in parts of their size, are taken for equal."""
_NO_VALUE = (ExprWithLimits, sympy.Derivative, sympy.Subs, sympy.Limit, AppliedUndef, sympy.UnevaluatedExpr, MatrixExpr)
"""Expressions that have no value at a point, or a costly one, or (a per cent) one that is not what counts."""
_POINTS = [
    [sympy.Rational(*fraction) for fraction in fractions]
    for fractions in (
        ((17, 13), (11, 17), (23, 19), (7, 11), (29, 31), (19, 14)),
        ((5, 7), (31, 23), (13, 11), (37, 41), (43, 37), (8, 13)),
        ((9, 7), (15, 17), (12, 19), (25, 21), (33, 29), (21, 26)),
    )
]
"""Values of the symbols, positive so that no root or logarithm leaves the real numbers."""


def is_costly(expression: Any) -> bool:
    """Whether comparing it takes seconds. An estimate: the rest meets the time limit."""
    return num_terms(expression) > MAX_TERMS


def num_terms(expression: Any) -> float:
    """About how many terms it has when it is multiplied out; very many for numbers of very many digits, too."""
    if not isinstance(expression, sympy.Basic) or not expression.args:
        return 1
    counts = [num_terms(part) for part in expression.args]
    if isinstance(expression, sympy.Sum | sympy.Product):
        return _INFINITE if any(_range(limits) > MAX_RANGE for limits in expression.limits) else counts[0]
    if isinstance(expression, sympy.Mul):
        return min(math.prod(counts), _INFINITE)
    if isinstance(expression, sympy.Add) or not _is_scalar(expression):
        return min(sum(counts), _INFINITE)
    if not expression.free_symbols and num_digits(expression) > MAX_DIGITS:
        return _INFINITE
    if not isinstance(expression, sympy.Pow) or not isinstance(expression.exp, sympy.Integer) or max(counts) == 1:
        return max(counts)
    times = abs(int(expression.exp))
    return _INFINITE if times > 10_000 else min(math.comb(times + int(counts[0]) - 1, times), _INFINITE)


def _range(limits: Any) -> float:
    low, high = limits.args[1:] if len(limits.args) == 3 else (0, 0)
    return abs(int(high - low)) if isinstance(high - low, sympy.Integer) else 0


def is_vast(value: Any) -> bool:
    """Whether there is an exponent, or a function's argument, of very many digits in it, as in `e^{e^{e^{20}}}`.

    Found from the form of the expression: nothing is evaluated.
    """
    return isinstance(value, sympy.Basic) and any(
        num_digits(argument) > MAX_EXPONENT_DIGITS
        for part in sympy.preorder_traversal(value)
        if isinstance(part, sympy.Pow | sympy.Function)
        for argument in ([part.as_base_exp()[1]] if isinstance(part, sympy.Pow | sympy.exp) else part.args)
    )


def num_digits(value: Any) -> float:
    """About how many digits it has before its point, negative for zeros behind it: log10 |value|, 2 for a symbol."""
    if isinstance(value, sympy.Float | sympy.Rational):
        number = sympy.Rational(value)
        return math.log10(max(abs(number.p), 1)) - math.log10(number.q)
    if not value.args:
        return math.log10(value) if isinstance(value, sympy.NumberSymbol) else math.log10(2)
    if isinstance(value, sympy.Pow | sympy.exp):
        base, exponent = value.as_base_exp()
        sign = -1 if exponent.could_extract_minus_sign() else 1
        return sign * num_digits(base) * 10 ** min(num_digits(exponent), 300)
    parts = [num_digits(part) for part in value.args]
    if isinstance(value, sympy.Mul):
        return sum(parts)
    if isinstance(value, CombinatorialFunction | HyperbolicFunction):
        return max(parts) * 10 ** min(max(parts), 300)
    return max(parts) + (math.log10(len(parts)) if isinstance(value, sympy.Add) else 0)


def differ(first: Any, second: Any) -> bool | None:
    """Whether the two have different values at a point; None when they cannot be evaluated there, or are too close.

    Only for what `math_verify` compares by its value: numbers with a decimal point are rounded there (what that does to
    small ones is mended here), single symbols are names, and sets, relations and matrices have rules of their own.
    """
    if (
        not (_is_scalar(first) and _is_scalar(second))
        or isinstance(first, sympy.Symbol)
        or isinstance(second, sympy.Symbol)
    ):
        return None
    if has_no_value(first) or has_no_value(second):
        return None
    symbols = sorted(first.free_symbols | second.free_symbols, key=str)
    if (first.has(sympy.Float) or second.has(sympy.Float)) and not (is_costly(first) or is_costly(second)):
        return True if not symbols and _are_small_and_differ(first, second) else None
    if any(symbol.is_real is not True for symbol in symbols):
        return None
    for values in _POINTS if symbols else _POINTS[:1]:
        # Six values for any number of symbols: each round adds a little, so that no two symbols have the same one.
        point = {
            symbol: value + sympy.Rational(place // 6, 7)
            for place, (symbol, value) in enumerate(zip(symbols, cycle(values), strict=False))
        }
        pair = _value(first, point), _value(second, point)
        if None in pair:
            return None
        distance, size = abs(pair[0] - pair[1]), max(abs(pair[0]), abs(pair[1]))
        if distance > 1e-5 and distance > 1e-9 * size:
            return True
        if distance > _ENOUGH * size or size > 1 / _ENOUGH:
            # Too close to tell: perhaps one is a little off, as 10^{-30} is beside 10^{-31}.
            most = _MORE_DIGITS if size > 1 / _ENOUGH else 2 * _DIGITS
            value = _value(difference(first, second), point, n=15, maxn=most, strict=True)
            if value != 0:
                return None if value is None else True
    return False


def difference(first: Any, second: Any) -> Expr:
    """`first - second` without the terms that both have. Nothing is evaluated, as SymPy's own minus would."""
    counts = Counter(sympy.Add.make_args(first))
    counts.subtract(sympy.Add.make_args(second))
    terms = [
        term if count > 0 else sympy.Mul(-1, term, evaluate=False)
        for term, count in counts.items()
        for _ in range(abs(count))
    ]
    return sympy.Add(*terms, evaluate=False) if terms else sympy.Integer(0)


def _are_small_and_differ(first: Any, second: Any) -> bool:
    """Six decimals make 0 of every small number, so that 0.0 would equal the charge of an electron."""
    pair = _value(first, {}), _value(second, {})
    if None in pair:
        return False
    distance, size = abs(pair[0] - pair[1]), max(map(abs, pair))
    return bool(size < SMALL and distance > SMALL_TOLERANCE * size)


def has_no_value(expression: Any) -> bool:
    """Whether there is a sum, a limit or the like in it, of which no value at a point is asked."""
    return isinstance(expression, sympy.Basic) and expression.has(*_NO_VALUE)


def _is_scalar(value: Any) -> bool:
    return isinstance(value, Expr) and not isinstance(value, MatrixExpr)


def _value(expression: Any, point: dict[Any, Any], **precision: Any) -> Any:
    """A number of SymPy; None when there is none, or (`strict`) not one of so many digits."""
    try:
        value = expression.evalf(subs=point, **({"n": _DIGITS} | precision))
        parts = value.as_real_imag()
    except (MemoryError, RecursionError):
        raise
    except Exception:  # OverflowError for towers of powers, and what not
        return None
    return value if all(part.is_Number and part.is_finite for part in parts) else None
