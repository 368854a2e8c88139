"""Whether two expressions with powers that nobody writes out are equal: by their remainders on division by primes.

`2^{2^{13}}` is 2^{8192} and `2^{1000000} + 1` is not 2^{1000000}, but SymPy takes seconds to see the one, and with a
hundred digits nobody sees the other. The remainder of a sum, a product or a power follows from those of its parts. Two
expressions that differ have three remainders in common by accident once in 10^50 (Schwartz and Zippel: a symbol has a
random value).
"""

import math
from typing import Any

from sympy import Add, Expr, Integer, Mul, Pow, Rational, Symbol, preorder_traversal

from .vast_numbers import num_digits

PRIMES = (4573438334503386407, 4264657628376921383, 3281618096932247147)
"""Random ones p for which (p - 1) / 2 is prime, too: the powers of no number but 1 and -1 come round soon."""
MAX_PLAIN_DIGITS = 100
"""Numbers of up to so many digits are compared as all others are."""
MAX_EXPONENT_BITS = 1 << 16
"""Most bits of an exponent: each prime takes as many steps."""


class _NoRemainderError(Exception):
    """It is more than sums, products and integer powers of rational numbers and symbols."""


def equal_by_residues(first: Any, second: Any) -> bool | None:
    """Whether they are equal; None when neither has such a power, or one has something without a remainder."""
    if not (isinstance(first, Expr) and isinstance(second, Expr)):
        return None
    if not (has_large_power(first) or has_large_power(second)):
        return None
    symbols = sorted(first.free_symbols | second.free_symbols, key=str)
    try:
        return all(_residue(first, symbols, prime) == _residue(second, symbols, prime) for prime in PRIMES)
    except _NoRemainderError:
        return None


def has_large_power(expression: Expr) -> bool:
    """Whether there is a number of more than MAX_PLAIN_DIGITS digits, before or behind the point, in it."""
    return any(
        isinstance(part, Pow | Rational) and abs(num_digits(part)) > MAX_PLAIN_DIGITS
        for part in preorder_traversal(expression)
    )


def _residue(value: Any, symbols: list[Symbol], prime: int) -> int:
    if isinstance(value, Rational):
        return int(value.p) * _power(int(value.q), -1, prime) % prime
    if isinstance(value, Symbol):
        return pow(PRIMES[0] + 1, symbols.index(value) + 2, prime)
    if isinstance(value, Add | Mul):
        parts = [_residue(part, symbols, prime) for part in value.args]
        return (sum(parts) if isinstance(value, Add) else math.prod(parts)) % prime
    if isinstance(value, Pow):
        return _power(_residue(value.base, symbols, prime), _integer(value.exp), prime)
    raise _NoRemainderError


def _power(base: int, exponent: int, prime: int) -> int:
    try:
        return pow(base, exponent, prime)
    except ValueError:  # a negative power of 0, or of a multiple of the prime
        raise _NoRemainderError from None


def _integer(value: Any) -> int:
    """An exponent. Raises _NoRemainderError for one that is no integer, or has too many bits."""
    if isinstance(value, Integer):
        found = int(value)
    elif isinstance(value, Add | Mul):
        parts = [_integer(part) for part in value.args]
        found = sum(parts) if isinstance(value, Add) else math.prod(parts)
    elif isinstance(value, Pow):
        base, exponent = _integer(value.base), _integer(value.exp)
        if exponent < 0 or base.bit_length() * exponent > MAX_EXPONENT_BITS:
            raise _NoRemainderError
        found = base**exponent
    else:
        raise _NoRemainderError
    if found.bit_length() > MAX_EXPONENT_BITS:
        raise _NoRemainderError
    return found
