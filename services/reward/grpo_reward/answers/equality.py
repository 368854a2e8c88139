"""Whether what a solution says and what an answer says are the same."""

from collections.abc import Callable
from itertools import product
from typing import Any

from math_verify import verify
from sympy import (
    Add,
    And,
    Basic,
    Eq,
    Expr,
    GreaterThan,
    I,
    Integer,
    Interval,
    LessThan,
    Mul,
    Or,
    Pow,
    Rational,
    Set,
    StrictGreaterThan,
    StrictLessThan,
    Symbol,
    Unequality,
    Union,
    perfect_power,
    solve,
)
from sympy.core.relational import Relational

from .exact import differ, difference, has_no_value, is_costly, is_vast
from .labels import spellings
from .reading import Reading
from .units import agree

MAX_PLAIN_EXPONENT = 300
_INEQUALITY = (GreaterThan, StrictGreaterThan, LessThan, StrictLessThan, Unequality, And, Or)


def same(gold: Reading, answer: Reading) -> bool:
    """Equal text is equal; otherwise units, where both have one, and one of the values agree. `45%` is 45 and 0.45.

    Beside a letter and a value either is right, and both only together: of `(C) 12` neither `(C) 13` nor `(D) 12`.
    """
    if gold.label and answer.label and gold.label != answer.label:
        return False
    if gold.domain and answer.domain and gold.domain != answer.domain:
        return False
    if gold.texts & spellings(answer.label) or answer.texts & spellings(gold.label):
        return True
    if gold.texts & answer.texts:
        return True
    if gold.unit and answer.unit and not agree(gold.unit, answer.unit):
        return False
    pairs = list(product(gold.values, answer.values))
    if gold.is_percent != answer.is_percent:
        parts = (Rational(1, 100), 1) if gold.is_percent else (1, Rational(1, 100))
        pairs += [
            (one * parts[0], other * parts[1])
            for one, other in pairs
            if isinstance(one, Expr) and isinstance(other, Expr)
        ]
    return any(equal(*map(_with_plain_powers, pair)) for pair in pairs)


def equal(gold: Any, answer: Any) -> bool:
    """`verify` for one pair. What it cannot compare is not equal; running out of memory or of files is no verdict."""
    if is_vast(answer) or is_vast(gold):
        return bool(
            gold == answer or (isinstance(gold, Expr) and isinstance(answer, Expr) and difference(gold, answer) == 0)
        )
    gold, answer = _with_the_same_symbols(gold, answer)
    different = differ(gold, answer)
    if different:
        return False
    if is_costly(gold) or is_costly(answer):
        if different is False:
            return True
        if not is_costly(gold) or (has_no_value(answer) and not has_no_value(gold)):
            return False
    if isinstance(gold, Eq) and isinstance(answer, Eq):
        if gold.lhs == answer.lhs and isinstance(gold.lhs, Symbol) and isinstance(answer.rhs, Expr):
            return equal(gold.rhs, answer.rhs)
        if not _has_solutions(gold):
            gold, answer = gold.lhs - gold.rhs, answer.lhs - answer.rhs
    of_one_name = not isinstance(gold, _INEQUALITY) or gold.free_symbols == answer.free_symbols
    if isinstance(answer, _INEQUALITY) and of_one_name:
        region = _region(gold)
        if region is not None and region == _region(answer):
            return True
    return _attempt(lambda: verify(gold, answer, timeout_seconds=None, raise_on_error=True), default=False)


def _region(value: Any) -> Set | None:
    """The numbers that an interval, or inequalities about one unknown, leave; None for anything else.

    `verify` takes `a > 1` for `(1, \\infty)` where that is the answer, and not where it is the solution.
    """
    if isinstance(value, Eq) and isinstance(value.lhs, Symbol) and isinstance(value.rhs, Interval | Union):
        value = value.rhs  # `a \\in (1, \\infty)`
    if isinstance(value, Interval | Union):
        return value
    if not isinstance(value, _INEQUALITY) or len(value.free_symbols) != 1:
        return None
    try:
        return value.as_set()
    except (MemoryError, RecursionError, OSError, ImportError):
        raise
    except Exception:  # sympy raises anything for inequalities that it cannot solve
        return None


def _with_the_same_symbols(gold: Any, answer: Any) -> tuple[Any, Any]:
    """One symbol for each name, and the imaginary unit for `i` where it is the only one on both sides.

    The parser makes a real symbol of the `i` in `2\\sqrt{3}i` and one that is not real of the `i` in `2i`.
    """
    if not (isinstance(gold, Basic) and isinstance(answer, Basic)) or is_costly(gold) or is_costly(answer):
        return gold, answer
    free = {symbol for side in (gold, answer) for symbol in side.free_symbols if isinstance(symbol, Symbol)}
    names = {symbol.name for symbol in free}
    if names == {"i"} and not (isinstance(gold, Relational) or isinstance(answer, Relational)):
        same = dict.fromkeys(free, I)
    elif len(names) < len(free):
        same = {symbol: Symbol(symbol.name, real=True) for symbol in free}
    else:
        return gold, answer
    return gold.xreplace(same), answer.xreplace(same)


def _has_solutions(relation: Eq) -> bool:
    """verify takes those without, `3 = 5` and `3 = 6`, for the same equation, and those that say what `dy/dx` is."""
    if has_no_value(relation.lhs) or has_no_value(relation.rhs) or not relation.free_symbols:
        return False
    return _attempt(lambda: solve(relation, relation.free_symbols), default=True)


def _attempt(work: Callable[[], Any], *, default: bool) -> bool:
    try:
        return bool(work())
    except (MemoryError, RecursionError, OSError, ImportError):
        raise
    except Exception:
        return default


def _with_plain_powers(value: Any) -> Any:
    """`2^{2^{13}}` and `(2^{4096})^2` are `2^{8192}`, and `4^{4096}`, too, which SymPy takes seconds to see."""
    if not isinstance(value, Add | Mul | Pow) or not value.has(Pow) or is_vast(value):
        return value
    parts = [_with_plain_powers(part) for part in value.args if part != 1 or not isinstance(value, Mul)]
    if isinstance(value, Pow):
        base, exponent = parts
        if exponent.args and exponent.is_number:
            exponent = exponent.doit()
        if isinstance(base, Pow) and isinstance(base.exp, Integer) and isinstance(exponent, Integer):
            base, exponent = base.base, base.exp * exponent
        if isinstance(base, Integer) and isinstance(exponent, Integer) and exponent > MAX_PLAIN_EXPONENT:
            root, power = perfect_power(base) or (base, 1)
            base, exponent = Integer(root), exponent * power
        parts = [base, exponent]
    if len(parts) == 1:
        return parts[0]
    return value if tuple(parts) == value.args else value.func(*parts, evaluate=False)
