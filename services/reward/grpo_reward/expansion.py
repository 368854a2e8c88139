"""Whether two expressions of SymPy can be compared without multiplying them out, which may take minutes.

`(x + y)^{29} (z + w)^{29}` is read in a millisecond and has 900 terms: comparing it takes seconds, and with one factor
more it takes for ever. Its value at a point costs next to nothing, and tells that it is not 42.
"""

import math
from collections import Counter
from itertools import cycle
from typing import Any

from sympy import Add, Basic, Expr, Float, Integer, Mul, Pow, Product, Rational, Sum, Symbol, UnevaluatedExpr
from sympy.concrete.expr_with_limits import ExprWithLimits
from sympy.core.function import AppliedUndef, Derivative, Subs
from sympy.matrices.expressions import MatrixExpr
from sympy.series.limits import Limit

MAX_TERMS = 200
"""Most terms of an expression when multiplied out; 465 take a second."""
MAX_DIGITS = 200_000
"""Most digits of a power of a number."""
MAX_RANGE = 100_000
"""Longest range of a sum or product that is written with its sign, from the lower to the upper limit."""
SMALL, SMALL_TOLERANCE = 0.001, 0.001
"""Numbers below that size are compared to three digits: `math_verify` rounds to six decimals, whatever the size."""
_INFINITE = 1e18
_DIGITS, _MORE_DIGITS = 100, 10_000
"""Digits of a value, so that 1 is not lost beside that of a power; and of what is left without the equal terms."""
_ENOUGH = 1e-80
"""Values that are as near to each other, in parts of their size, are taken for equal."""
_NO_VALUE = (ExprWithLimits, Derivative, Subs, Limit, AppliedUndef, UnevaluatedExpr, MatrixExpr)
"""Expressions that have no value at a point, or a costly one, or (a per cent) one that is not what counts."""
_POINTS = (
    [Rational(17, 13), Rational(11, 17), Rational(23, 19), Rational(7, 11), Rational(29, 31), Rational(19, 14)],
    [Rational(5, 7), Rational(31, 23), Rational(13, 11), Rational(37, 41), Rational(43, 37), Rational(8, 13)],
    [Rational(9, 7), Rational(15, 17), Rational(12, 19), Rational(25, 21), Rational(33, 29), Rational(21, 26)],
)
"""Values of the symbols, positive so that no root or logarithm leaves the real numbers."""


def is_costly(expression: Any) -> bool:
    """Whether comparing it takes seconds. An estimate: the rest meets the time limit."""
    return num_terms(expression) > MAX_TERMS


def num_terms(expression: Any) -> float:
    """About how many terms it has when it is multiplied out; very many for numbers of very many digits, too."""
    if not isinstance(expression, Basic) or not expression.args:
        return 1
    if isinstance(expression, Pow):
        return min(_num_terms_of_power(expression), _INFINITE)
    counts = [num_terms(part) for part in expression.args]
    if isinstance(expression, Sum | Product):
        long = any(_range(limits) > MAX_RANGE for limits in expression.limits)
        return _INFINITE if long else counts[0]
    if isinstance(expression, Mul):
        return min(math.prod(counts), _INFINITE)
    return min(sum(counts), _INFINITE) if isinstance(expression, Add) or not _is_scalar(expression) else max(counts)


def _num_terms_of_power(power: Pow) -> float:
    base, exponent = power.args
    inside = max(num_terms(base), num_terms(exponent))
    if not isinstance(exponent, Integer):
        return inside
    times = abs(int(exponent))
    if isinstance(base, Rational):
        # More than a float can be is as much as that.
        digits = min(times, 10**300) * math.log10(max(abs(base.p), base.q))
        return _INFINITE if digits > MAX_DIGITS else 1
    if inside == 1:
        return 1
    if times > 10_000 or inside > 1000:
        return _INFINITE
    return float(min(math.comb(times + int(inside) - 1, times), _INFINITE))


def _range(limits: Any) -> float:
    low, high = limits.args[1:] if len(limits.args) == 3 else (0, 0)
    return abs(int(high - low)) if isinstance(high - low, Integer) else 0


def differ(first: Any, second: Any) -> bool | None:
    """Whether the two have different values at a point; None when they cannot be evaluated there, or are too close.

    Only for what `math_verify` compares by its value: numbers with a decimal point are rounded there (what that does to
    small ones is mended here), single symbols are names, and sets, relations and matrices have rules of their own.
    """
    if not (_is_scalar(first) and _is_scalar(second)):
        return None
    if isinstance(first, Symbol) or isinstance(second, Symbol) or has_no_value(first) or has_no_value(second):
        return None
    symbols = sorted(first.free_symbols | second.free_symbols, key=str)
    if (first.has(Float) or second.has(Float)) and not (is_costly(first) or is_costly(second)):
        return True if not symbols and _are_small_and_differ(first, second) else None
    if any(symbol.is_real is not True for symbol in symbols):
        return None
    for values in _POINTS:
        point = dict(zip(symbols, cycle(values), strict=False))
        # Six values for any number of symbols: each round adds a little, so that no two symbols have the same one.
        point = {symbol: value + Rational(place // 6, 7) for place, (symbol, value) in enumerate(point.items())}
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
            if value is None:
                return None
            if value != 0:
                return True
        if not symbols:
            break
    return False


def difference(first: Any, second: Any) -> Expr:
    """`first - second` without the terms that both have. Nothing is evaluated, as SymPy's own minus would."""
    counts = Counter(Add.make_args(first))
    counts.subtract(Add.make_args(second))
    terms = [
        term if count > 0 else Mul(-1, term, evaluate=False)
        for term, count in counts.items()
        for _ in range(abs(count))
    ]
    return Add(*terms, evaluate=False) if terms else Integer(0)


def _are_small_and_differ(first: Any, second: Any) -> bool:
    """Six decimals make 0 of every small number, so that 0.0 would equal the charge of an electron."""
    pair = _value(first, {}), _value(second, {})
    if None in pair:
        return False
    distance, size = abs(pair[0] - pair[1]), max(map(abs, pair))
    return bool(size < SMALL and distance > SMALL_TOLERANCE * size)


def has_no_value(expression: Any) -> bool:
    """Whether there is a sum, a limit or the like in it, of which no value at a point is asked."""
    return isinstance(expression, Basic) and expression.has(*_NO_VALUE)


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
