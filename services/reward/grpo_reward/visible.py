"""Whether there is anything to see in a text."""

import unicodedata

_BLANK = frozenset("\u115f\u1160\u2800\u3164\uffa0\U0001d159")
"""Letters and symbols drawn as nothing: the fillers of Hangul, Braille without a dot, a note without a head."""


def says_something(text: str) -> bool:
    """Whether it has a letter, a digit, a symbol or a punctuation mark.

    White space, control characters (NUL), format characters (U+200B, U+FEFF) and accents without a letter are none: a
    policy that is paid for a block with something in it finds out that they cost nothing.
    """
    return any(unicodedata.category(character)[0] in "LNPS" and character not in _BLANK for character in text)
