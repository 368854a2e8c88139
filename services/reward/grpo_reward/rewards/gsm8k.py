"""Grade-school mathematics: one number after `####`."""

import re
from decimal import Decimal

from ..author import Score, reward

_NUMBER = re.compile(r"-?\d[\d,]{0,400}(?:\.\d{1,400})?|-?\.\d{1,400}")


@reward
def gsm8k(completion: str, *, answer: str | int | float, strict: bool = True) -> Score:
    """1 when the completion's number equals the one of `answer`, else 0; unscorable when `answer` has none.

    Both are what follows the last `####`; an `answer` without `####` is the number itself. Commas between digits, `$`
    and a closing full stop do not count, and 18 equals 18.00. With `strict` false a completion without `####` is taken
    at its last number.

    Source: the GSM8K data set (arXiv 2110.14168); verl's `gsm8k` compares text, so that 18.00 is
    not 18 there.
    """
    text = answer.rpartition("####")[2] if isinstance(answer, str) else format(Decimal(str(answer)), "f")
    gold = _first_number(text)
    if gold is None:
        return Score(None, detail="the column answer has no number")
    _, mark, after = completion.rpartition("####")
    found = _first_number(after) if mark else None if strict else _last_number(completion)
    return Score(float(found == gold), log={"number": None if found is None else str(found)})


def _first_number(text: str) -> Decimal | None:
    text = _plain(text).lstrip()
    if text.startswith("-"):
        text = f"-{text[1:].lstrip()}"
    match = _NUMBER.search(text)
    return _value(match.group()) if match else None


def _last_number(text: str) -> Decimal | None:
    numbers = _NUMBER.findall(_plain(text))
    return _value(numbers[-1]) if numbers else None


def _plain(text: str) -> str:
    """Without what may stand between a sign and its digits."""
    return text.replace("\u2212", "-").replace("$", "")


def _value(digits: str) -> Decimal:
    return Decimal(digits.replace(",", ""))
