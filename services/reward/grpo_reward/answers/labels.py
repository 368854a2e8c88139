"""The letter before a value, as data sets of multiple choice have it: `\\textbf{(C)}\\ 12`, `C. 12`, `(C) Paris`."""

import re

_LETTER = r"[A-J]"
_OPERATOR = (
    r"[-+]\s|[-+]?[*/=<>^!]|\\(?:cup|cap|times|cdot|div|pm|le|ge|lt|gt|to|in|subset|equiv|approx|wedge|vee|setminus)\b"
)
_LABELLED = re.compile(
    rf"(?:[(\[]{_LETTER}[)\]]\s+(?!{_OPERATOR})|[A-J][.:)]\s+(?=[-+]?[\d.\\$(]))(?P<value>.*)", re.DOTALL
)
_ANOTHER = re.compile(r"(?<![^\W_])[A-J](?:[:)\]]|\.\s)")


def without_label(plain: str) -> tuple[str | None, str]:
    """The letter and what follows it; None and all of the text where no letter, or several, label a part of it.

    A name (`J. Smith`), a product (`(A)(B)`) and a sum (`(A) + 3`) have none.
    """
    labelled = _LABELLED.fullmatch(plain)
    if labelled is None or not labelled["value"] or _ANOTHER.search(labelled["value"]):
        return None, plain
    return plain.lstrip("([")[0], labelled["value"]


def spellings(letter: str | None) -> frozenset[str]:
    """How an answer says the letter and nothing else."""
    return frozenset(form.format(letter) for form in ("{}", "({})", "[{}]", "{})")) if letter else frozenset()
