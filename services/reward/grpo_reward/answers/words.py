"""Words that are part of a number, in signs: `5 million`, `minus 5`, `half of 7`, `3万`, `负3`, `5或6`."""

import re
from decimal import Decimal

from .plain import FUNCTIONS, GREEK

_SCALES = {
    "hundred": 2, "thousand": 3, "lakh": 5, "million": 6, "mn": 6, "crore": 7, "billion": 9, "bn": 9, "trillion": 12,
    "十": 1, "百": 2, "千": 3, "万": 4, "萬": 4, "만": 4, "亿": 8, "億": 8, "억": 8, "兆": 12,
}  # fmt: skip
_PARTS = {
    "half": 2, "halve": 2, "third": 3, "quarter": 4, "fourth": 4, "fifth": 5, "sixth": 6, "seventh": 7, "eighth": 8,
    "ninth": 9, "tenth": 10, "hundredth": 100, "thousandth": 1000,
}  # fmt: skip
_SCRIPT = "\u0590-\u1fff\u3005\u3040-\u9fff\uac00-\ud7af"
_BORDER = re.compile(rf"(?<=[A-Za-z0-9%)}}])(?=[{_SCRIPT}])|(?<=[{_SCRIPT}])(?=[A-Za-z0-9\\(.+$-])")
"""Between a number and a word of a script that sets no blanks there."""
_NUMBER = r"(?<![\d.,])(?:\d{1,3}(?:,\d{3}){1,6}(?:\.\d{1,9})?|\d{1,20}(?:\.\d{1,20})?)"
_SCALED = re.compile(
    rf"({_NUMBER})\s?(?:((?:\s?(?:hundred|thousand|lakh|million|mn|crore|billion|bn|trillion)s?(?![^\W\d_])){{1,3}})"
    r"|(dozens?|打)(?![^\W\d_])|((?:\s?[十百千万萬만亿億억兆]){1,3})(?!\s?[米克瓦]))",
    re.I | re.A,
)
_OPERAND = r"(?=\s*(?:[-+.(\\\d]|[a-z](?![a-z])))"
_SIGNS = tuple(
    (re.compile(pattern, re.I), signs)
    for pattern, signs in (
        (rf"(?<![a-z])(?:minus|negative){_OPERAND}\s*", "-"),
        (r"[负負]\s*(?=\d)", "-"),
        (r"百分之\s?(?=\d)([\d.]{1,30})", r"\1%"),
        (r"(?<!\d)(\d{1,30})\s?分之\s?(\d{1,30})", r"\2/\1"),
        (r"\s?(?<![a-z])(?:percentage|percent|per cent|pct)(?![a-z])", "%"),
        (r"(?<![\d.])([\d.]{1,30})\s?%\s?of\s([\d.]{1,30})", r"\1/100*\2"),
        (rf"(?<=[\d)}}])\s*plus{_OPERAND}", "+"),
        (rf"(?<=[\d)}}])\s*(?:times|multiplied by){_OPERAND}", "*"),
        (rf"(?<=[\d)}}])\s*(?:over|divided by){_OPERAND}", "/"),
        (r"(?<=[\d)}])\s*squared(?![a-z])", "^2"),
        (r"(?<=[\d)}])\s*cubed(?![a-z])", "^3"),
        (r"(?<=\d)\s*factorial(?![a-z])", "!"),
        (r"(?<=\d)\s*(?:to the power of|raised to|to the)\s+(\d+)(?:st|nd|rd|th)?(?:\s+power)?(?![a-z])", r"^\1"),
        (r"(?:the\s+)?cube\s+root\s+of\s+(\d+(?:\.\d+)?|[a-z](?![a-z]))", r"\\sqrt[3]{\1}"),
        (r"(?:the\s+)?(?:square\s+)?root\s+of\s+(\d+(?:\.\d+)?|[a-z](?![a-z]))", r"\\sqrt{\1}"),
        (r"(?<![a-z])half\s+of\s+(\d+(?:\.\d+)?)", r"\1/2"),
        (r"(?<=\d)(?:\^\{?)?\s?(?:st|nd|rd|th)(?![a-z])(?:\s?\})?", ""),
        (rf"(?<=\d)\s*(?:等于|equals){_OPERAND}|(?<=[a-z])\s+(?:等于|equals){_OPERAND}", "="),
    )
)
_BESIDE = re.compile(
    r"(?<=[\w)}\]%])\s?,?\s?(?:或者?|和|与|及|또는|または|или|(?<![^\W\d_])(?:and|or)(?![^\W\d_]))\s?(?=[-+.(\[{\\\d]|[A-Za-z](?![A-Za-z]))"
)
_PART_OF = re.compile(
    rf"(?<![\d.])(?:(\d{{1,30}})\s+({'|'.join(_PARTS)})s|(1)\s+({'|'.join(_PARTS)}))(?![\s-]*[a-z])", re.I | re.A
)
_WORDS = re.compile(r"[^\W\d_]{2}|[^\x00-\x7f]")
_LATEX_NAMES = re.compile(r"\\(?:begin|end|operatorname\*?|mathbb|mathcal)\s*\{[^{}]*\}|\\[A-Za-z]+")
_LETTERS = re.compile(r"[^\W\d_]+")
_SHORT = re.compile("is|or|to|of|in|at|by|it|we|so|no|an|as|be|do|he|if|my|on|up|us|sq", re.I)
_IN_FORMULAS = re.compile(f"{FUNCTIONS}|{GREEK}|sqrt|cbrt|abs|infinity|inf|sec|.|[A-Z]{{2,4}}")
CHANGES = re.compile(
    r"(?<![^\W\d_\\])(?:not|n't|never|no|half|halves|double|twice|triple|squared|cubed|power|factorial|root|mod|modulo"
    r"|percent|plus|minus|negative|over|divided|multiplied|point|(?:third|quarter|fourth|fifth|sixth|seventh|eighth|ninth"
    r"|tenth|hundredth|thousandth)(?:s| of)|tens|(?:dozen|hundred|thousand|million|billion|trillion|lakh|crore)s?|than"
    r"|least|most|up to|under|above|below|multiple|divisible|factor|except|but|without|between|or|reciprocal|inverse"
    r"|opposite|myriad|gross|wrong|incorrect|false|(?:square|cube) of|(?<=\d )score|two|three|four|five|six|seven|eight"
    r"|nine|ten|eleven|twelve|[a-z]{3,5}teen|(?:twen|thir|for|fif|six|seven|eigh|nine)ty)(?![^\W\d_])"
    r"|[不非无負负十百千万亿兆打倍半]",
    re.IGNORECASE,
)
"""A word that makes another number of the one beside it."""


def in_signs(text: str) -> str:
    """`text` with such words as signs: `5000000`, `-5`, `7/2`, `-3`, `5, 6`. Other words stay, set off from digits."""
    if not _WORDS.search(text):
        return text
    text = _SCALED.sub(_scaled, text)
    if not text.isascii():
        text = _BORDER.sub(" ", text)
    text = _PART_OF.sub(lambda part: f"{part[1] or part[3]}/{_PARTS[(part[2] or part[4]).lower()]}", text)
    for pattern, signs in _SIGNS:
        text = pattern.sub(signs, text)
    return text


def as_list(text: str) -> str:
    """`5 and 6`, `x=1 or x=2` and `5或6` with commas."""
    return _BESIDE.sub(", ", text)


def _scaled(scaled: re.Match[str]) -> str:
    number, words, dozen, marks = scaled.groups(default="")
    exponent = sum(_SCALES[word.rstrip("s")] for word in [*words.lower().split(), *"".join(marks.split())])
    return format((Decimal(number.replace(",", "")) * (12 if dozen else 1)).scaleb(exponent), "f")


def words_of(text: str) -> list[re.Match[str]]:
    """The words in an answer: what is no product of letters (`AB`, `xy`), no function, no command of LaTeX."""
    text = _LATEX_NAMES.sub(lambda name: " " * len(name.group()), text)
    return [run for run in _LETTERS.finditer(text) if _is_word(run.group(), text[run.start() - 1 : run.start()])]


def _is_word(letters: str, before: str) -> bool:
    if not letters.isascii() or len(letters) == 2:
        return not re.fullmatch(r"[\u0370-\u03ff]", letters) and (
            not letters.isascii() or bool(_SHORT.fullmatch(letters))
        )
    if _IN_FORMULAS.fullmatch(letters):
        return False
    return re.search(r"[aeiou]", letters, re.I) is not None and (len(letters) > 3 or not re.match(r"[\d^_)}]", before))
