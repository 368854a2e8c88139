"""One letter out of several."""

import re
from collections import deque

from ..answer import answer_block
from ..author import Score, reward
from ..normal_form import normal_form
from .format import THINK_CLOSING
from .math_boxed import last_box

_MARKUP = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mathsf|bf|rm)\s*\{([^{}]*)\}|[$`\"“”]|\\[()\[\]]")
_EMPHASIS = re.compile(r"(?<![*_\w])([*_]{1,3}|')\s?\(?([A-Za-z])[).:]?\s?\1(?![*_\w])")
_STARS = re.compile(r"[*_]{1,3}")

# A letter that is marked as one may be any; A and I are words as well, and count only where no word could stand.
_MARKED = r"\(\s?([A-Za-z])\s?\)|\[([A-Za-z])\]|(?<![\w(\[])([A-Za-z])\)"
_NO_MORE = r"(?=[^\S\n]*+(?:$|[.,;:!?)}\]\n]))"
_GOES_ON = r"(?=\s++(?:because|since|is|as|which|according)\b)"
_LETTER = rf"(?:{_MARKED}|([B-HJ-Z])(?![\w'’-])|([AI]){_GOES_ON}|([A-Za-z]){_NO_MORE})"

_VERB = r"(?:\s++(?:is|was|would be|should be|must be)\b|\s*+(?:[:=→]|->))(?!\s(?:not|neither|cannot)\b)"
_OF_WHAT = r"(?:\s(?:to|for|of)(?:\s\w+){1,4}?)?"
_CUE = rf"(?:\banswer{_OF_WHAT}|\b(?:correct|right|best)\s(?:option|choice|letter|one)){_VERB}"
_SURELY = "indeed|therefore|clearly|definitely"
_FILLER = rf"(?:\s*+(?:[:=→]|->|[-\u2013]\s|[是为為项項]|\b(?:option|choice|letter|{_SURELY})\b)){{0,4}}"
_SAID = re.compile(
    rf"(?:(?i:{_CUE})|答案|[选選])(?i:{_FILLER})\s*+{_LETTER}"
    rf"|(?<![\w'’-])(?:{_MARKED}|([A-Z]))\s(?:is|must be)\s(?:the\s)?(?:only\s)?(?:correct|right|best|answer)\b"
)
_OPTION = re.compile(rf"\b(?i:option|choice|letter)\s++{_LETTER}|{_MARKED}|^[^\S\n]*+([A-Za-z])[.):]\s", re.MULTILINE)
_OPTION_WORD = r"(?:(?i:the\s)?(?i:option|choice|letter|answer)\s++)?"
_LEADING = re.compile(rf"{_OPTION_WORD}(?:{_MARKED}|([A-Za-z])(?:[.:,;!](?![a-z])|\s*+$))")
_DENIED = r"\s(?:is|are|was|can)(?:n['’]t|\s?not|\s(?:wrong|incorrect|false))\b"
_LEADING_BARE = re.compile(rf"{_OPTION_WORD}([B-HJ-Zb-hj-z])(?!\s*{_DENIED})\s++(?![=+*/<>^])")
_AT_THE_END = (
    r"(?:[:→>]|\b(?i:is|think|believe|choose|chose|pick|select|say|guess|so|thus|hence|therefore|with|answer|option|choice)"
    r"\s)\s*+\(?([A-Z])[.!)\s]*+$"
)
_LAST = re.compile(_AT_THE_END)
_LAST_LINE = re.compile(rf"(?:^|\n)\s*+([A-Za-z])[.!)\s]*+$|{_AT_THE_END}")
_AND = r"(?:[,/&|+;]|\b(?i:or|and)\b)"
_IN_WORDS = (
    r"[)\].:]?\s*+[,;]?\s*+\(?\b(?:(?i:or|and|plus)\b(?:\s++(?i:maybe|perhaps|possibly|also|even))?"
    r"|(?i:maybe|perhaps|possibly)\b)\s*+[(\[]?"
    r"(?:([B-HJ-Z])(?![\w'’]|\.\s++[a-z])|([AI])(?=\s++(?:is|are)\b))"
)
_FITS = (
    r"(?:right|correct|true|valid|possible|plausible|acceptable|likely|fine|an?\s(?:\w+\s)?(?:answer|choice|option))\b"
)
_IS = r"\s(?:is|are|may be|might be|could be|can be|would be|seems)\s"
_AS_WELL = (
    r"[)\].:]?[\s,;\u2013-]*+[(\[]?(?:(?i:but|and|although|though|while|however|yet)\b,?\s)?"
    r"(?:(?i:the\s)?(?i:option|choice|letter|answer)\s)?[(\[]?([A-Z])[)\]]?"
    rf"(?i:{_IS}(?:(?:also|equally|just as|as)\s{_FITS}|{_FITS}\s(?:too|as well|also)\b))"
)
_ANOTHER = re.compile(
    rf"{_AS_WELL}|{_IN_WORDS}|(?:[)\].:]?\s*+{_AND}\s*+[(\[]?|[)\].:]?\s*+[(\[](?=[A-Z][)\]])|\s++|[.)]\s*+(?=[A-Z][.)]))"
    r"([A-Z])(?![\w'’]|[.)]?\s++[a-z])"
)
_LIST = re.compile(r"[A-Z](?:\s++[A-Z])++")
_REFUSED = re.compile(_DENIED)
_NEGATED = re.compile(r"(?:\b(?:not|never|cannot|neither|nor)|n['’]t)(?:\s\w+){0,3}\s*+$")


@reward
def multiple_choice(completion: str, *, solution: str) -> Score:
    """1 when the chosen letter is that of `solution`, else 0; unscorable when `solution` does not begin with one.

    The choice is looked for in `<answer>…</answer>`, without one in what follows `</think>`, without that in all of the
    completion, and there in this order:

    1. the last `\\boxed{…}`;
    2. in `<answer>` and in a box, the letter it begins with: `B`, `(B)`, `B.`, `B) Paris`, `B Paris`;
    3. the letter after the last "answer is", "answer:", "correct option is" or `答案`;
    4. a letter at the end, after a colon or a word such as "think";
    5. outside of `<answer>` a letter alone on the last line, or the only one that is marked: `(B)`, `**B**`,
       "option B", `B.` at the start of a line.

    `**B**`, `\\text{B}` and the full-width form are B. "A" and "I" are words as well, and count only where they are
    marked, alone, or followed by no word ("A good one: B" is B). Several letters ("A or B", `(A) (B)`, "A, but B is
    also right") and a letter that is denied ("not B") are no choice. The case of a letter does not matter.

    Source: the usual form of MMLU and GPQA answers, and where public harnesses look for them.
    """
    gold = _gold(solution)
    if gold is None:
        return Score(None, detail="the column solution does not begin with a letter")
    block = answer_block(completion)
    text = completion.rpartition(THINK_CLOSING)[2] if block is None else block
    chosen = _chosen(text, is_answer=block is not None)
    return Score(float(chosen == gold), log={"choice": chosen})


def _gold(solution: str) -> str | None:
    block = answer_block(solution)
    text = solution if block is None else block
    text = _plain(last_box(text) or text)
    return _at_the_start(text, _LEADING) or _at_the_start(text, _LEADING_BARE)


def _plain(text: str) -> str:
    """Without markup; an emphasized letter stands in parentheses."""
    text = _MARKUP.sub(r"\1", normal_form(text, "NFKC").replace("。", ".").replace("、", ","))
    return _STARS.sub("", _EMPHASIS.sub(r"(\2)", text)).strip().strip("{}").strip()


def _chosen(text: str, *, is_answer: bool) -> str | None:
    box = last_box(text)
    if box is not None and (letter := _chosen(box, is_answer=True)):
        return letter
    text = _plain(text)
    if _LIST.fullmatch(text):
        return None
    if not is_answer:
        return _last_said(text) or _at_the_end(text, _LAST_LINE) or _only_one(text)
    first = _at_the_start(text, _LEADING)
    return first or _last_said(text) or _at_the_end(text, _LAST) or _at_the_start(text, _LEADING_BARE)


def _letter(match: re.Match[str]) -> str:
    return next(group for group in match.groups() if group).upper()


def _is_one_of_several(text: str, match: re.Match[str]) -> bool:
    """Whether another letter follows at once, as in "A or B"."""
    another = _ANOTHER.match(text, match.end(match.lastindex or 0))
    return another is not None and _letter(another) != _letter(match)


def _at_the_start(text: str, form: re.Pattern[str]) -> str | None:
    match = form.match(text)
    return _letter(match) if match and not _is_one_of_several(text, match) else None


def _last_said(text: str) -> str | None:
    last = deque(_SAID.finditer(text), maxlen=1)
    return _letter(last[0]) if last and not _is_one_of_several(text, last[0]) else None


def _at_the_end(text: str, form: re.Pattern[str]) -> str | None:
    end = text[-100:]
    match = form.search(end)
    if match is None or _NEGATED.search(end[: match.start(match.lastindex or 0)]):
        return None
    return _letter(match)


def _only_one(text: str) -> str | None:
    marked = [
        match
        for match in _OPTION.finditer(text)
        if not (_NEGATED.search(text[max(0, match.start() - 60) : match.start()]) or _REFUSED.match(text, match.end()))
    ]
    letters = {_letter(match) for match in marked}
    return letters.pop() if len(letters) == 1 and not _is_one_of_several(text, marked[0]) else None
