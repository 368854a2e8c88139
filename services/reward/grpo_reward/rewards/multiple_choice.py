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

_VERB = r"(?:(?:\s++(?:is|was|would be|should be|must be)|['’]s)\b|\s*+(?:[:=→]|->))(?!\s(?:not|neither|cannot)\b)"
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
_LEADING = re.compile(rf"{_OPTION_WORD}(?:{_MARKED}|([A-Za-z])(?:[.:,;!](?![a-z])|\s*+$|\s[\u2013\u2014-]++\s))")
_DENIED = r"\s(?:is|are|was|can)(?:n['’]t|\s?not|\s(?:wrong|incorrect|false))\b"
_LEADING_BARE = re.compile(rf"{_OPTION_WORD}([B-HJ-Zb-hj-z])(?!\s*{_DENIED})\s++(?![=+*/<>^])")
_AT_THE_END = (
    r"(?:[:→>]|\b(?i:is|think|believe|choose|chose|pick|select|say|guess|so|thus|hence|therefore|with|answer|option|choice"
    r"|(?:it|that)['’]s|leaves)\s)\s*+\(?([A-Z])[.!)\s]*+$"
)
_LAST = re.compile(_AT_THE_END)
_LAST_LINE = re.compile(rf"(?:^|\n)\s*+([A-Za-z])[.!)\s]*+$|{_AT_THE_END}")
_AND = r"(?:[,/&|+;]|\b(?i:or|and)\b)"
_GAP = r"[\s,;(\[\u2013\u2014-]"
_EITHER = r"\b(?i:or|and|plus|maybe|perhaps|possibly|alternatively|otherwise|else)\b"
_ALSO = r"\b(?i:but|also|even|yet|it['’]s|it|is|be|could|may|might|would|the|option|choice|letter|answer)\b"
_ALONE = r"(?=[^\S\n]*+(?:$|[.,;:!?)}\]\n]))"
# From one letter to the next there are words such as "or maybe", and none that say something.
_IN_WORDS = (
    rf"[)\].:]?(?:(?:{_GAP}*+{_ALSO}){{0,4}}?{_GAP}*+{_EITHER}(?:{_GAP}++(?:{_EITHER}|{_ALSO})){{0,4}}{_GAP}*+"
    rf"(?:([B-HJ-Z])(?![\w'’]|\.\s++[a-z])|([AI])(?=\s++(?:is|are)\b)|(A){_ALONE})"
    rf"|{_GAP}*+\b(?i:but|yet)\b(?:{_GAP}++{_ALSO}){{0,4}}{_GAP}++([A-HJ-Z]){_ALONE})"
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
_CLOSES = (")", "]", ":")
_SENTENCE_END = re.compile(r"[.!?]\s|\n")
_LIST = re.compile(r"[A-Z](?:\s++[A-Z])++")
# A further option behind the text of the first: at the start of a line, or after a word or a mark that joins them.
_ON_A_LINE = r"^[^\S\n]*+[(\[]?([A-Z])(?:[.):\]](?=\s)|[.):\]]?[^\S\n]*+$)"
_MARKED_OPTION = r"(?:[(\[]([A-Z])[)\]]|([A-Z])\))(?!\w)"
_OR_OPTION = rf"\b(?i:or|and)\s++{_MARKED_OPTION}|\b(?i:or)\s++(?:(?i:option|choice|letter)\s++([A-Z])\b|([A-Z])[.:]\s)"
_FURTHER = re.compile(rf"{_ON_A_LINE}|{_OR_OPTION}|[,;/|]\s*+{_MARKED_OPTION}|;\s++([A-Z])[.:]\s")
_FURTHER_IN_WORDS = re.compile(_OR_OPTION)
_IN_TURN = re.compile(r"(?<![\w.])[(\[]?([A-Z])[.):\]](?=\s)")
_ASIDE = re.compile(r"\((?!\s?[A-Z]\s?\))[^()]*+\)|(?<=\w)\([A-Z]\)")
_REASON = re.compile(r"\b(?:because|explanation|reason(?:ing)?)\b", re.IGNORECASE)
_COMPARED = re.compile(r"\b(?:because|since|as|while|whereas|than|unlike|not|n['’]t|reason(?:ing)?)\b", re.IGNORECASE)
_BEFORE = re.compile(
    r"(?<![\w'’])([A-HJ-Z])[)\].]?[\s,;-]{0,3}\b(?i:or)\s(?i:(?:maybe|perhaps|it|that|is|it['’]s|that['’]s|option|choice|letter)\s){1,3}\(?$"
)
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
    also right", "B but maybe C", "B) Paris or C) Rome") and a letter that is denied ("not B") are no choice, and in
    `<answer>` and in a box a copy of the options, line by line, is none. What is said of other letters in a reason
    ("because (A) is wrong") leaves the choice. The case of a letter does not matter.

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
    if box and (letter := _chosen(box, is_answer=True)):
        return letter
    # A box without a choice has been read: what stands around it may still have one.
    text = _plain(text.replace(f"{{{box}}}", "{}") if box else text)
    if _LIST.fullmatch(text):
        return None
    if not is_answer:
        return _last_said(text) or _at_the_end(text, _LAST_LINE) or _only_one(text)
    first = _at_the_start(text, _LEADING)
    return first or _last_said(text) or _at_the_end(text, _LAST) or _at_the_start(text, _LEADING_BARE)


def _letter(match: re.Match[str]) -> str:
    return next(group for group in match.groups() if group).upper()


def _is_one_of_several(text: str, match: re.Match[str], *, is_answer: bool = False) -> bool:
    """Whether another letter follows: at once, as in "A or B", or behind the text of the option, as a further one."""
    start = match.end(match.lastindex or 0)
    another = _ANOTHER.match(text, start)
    if another is not None and _letter(another) != _letter(match):
        return True
    if not is_answer:  # what follows may explain, also in further lines
        return text[start : start + 1] in _CLOSES and _has_further(_sentence(text, start), match, _FURTHER_IN_WORDS)
    rest = _ASIDE.sub("", text[start:])
    in_turn = [_letter(match), *(found[1] for found in _IN_TURN.finditer(rest))][:3]
    copied = len(in_turn) == 3 and ord(in_turn[0]) + 2 == ord(in_turn[1]) + 1 == ord(in_turn[2])
    return copied or _has_further(rest, match, _FURTHER)


def _sentence(text: str, start: int) -> str:
    """From the mark behind the letter to the end of the sentence."""
    end = _SENTENCE_END.search(text, start + 1)
    return text[start : end.start() if end else len(text)]


def _has_further(rest: str, match: re.Match[str], form: re.Pattern[str]) -> bool:
    for line in _REASON.split(rest, maxsplit=1)[0].split("\n"):
        said = _COMPARED.split(line, maxsplit=1)[0]
        for found in form.finditer(said):
            if _letter(found) != _letter(match) and not _REFUSED.match(said, found.end()):
                return True
    return False


def _at_the_start(text: str, form: re.Pattern[str]) -> str | None:
    match = form.match(text)
    return _letter(match) if match and not _is_one_of_several(text, match, is_answer=True) else None


def _last_said(text: str) -> str | None:
    last = deque(_SAID.finditer(text), maxlen=1)
    return _letter(last[0]) if last and not _is_one_of_several(text, last[0]) else None


def _at_the_end(text: str, form: re.Pattern[str]) -> str | None:
    end = text[-100:]
    match = form.search(end)
    if match is None:
        return None
    before = end[: match.start(match.lastindex or 0)]
    if _NEGATED.search(before) or ((other := _BEFORE.search(before)) and _letter(other) != _letter(match)):
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
