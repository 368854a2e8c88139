"""One letter out of several."""

import re

from ..answers.place import answer_block, answered, boxed, is_unfinished, unboxed
from ..author import Score, reward
from ..normal_form import normal_form

MAX_CHARS = 20_000
"""Longest answer in characters; of a longer text without an answer the end is read."""

_MARKUP = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mathsf|bf|rm)\s*\{([^{}]*)\}|[$`\"“”]|\\[()\[\]]")
_EMPHASIS = re.compile(r"(?<![*_\w])([*_]{1,3}|')\s?\(?([A-Za-z])[).:]?\s?\1(?![*_\w])")
_STARS = re.compile(r"[*_]{1,3}")
_CORRECTION = r"(?:no,? wait|wait|actually|sorry|rather|i mean|correction|but)\b"
_ENDS = re.compile(rf"\n|\.{{2,}}|…|(?<=[\w)\]])[.!?;。](?=\s|$)|(?:,|\s[–—-])\s*(?={_CORRECTION})", re.I)
"""Of a statement. The dot of `B. Paris` is none: see `_statements`."""
_LABEL = re.compile(
    r"\s*(?:option\s+|choice\s+)?(?:[(\[]\s?([a-z])\s?[)\]]|([a-z])(?=[).:]|\s*$)|([a-z])(?=\s[-–—]\s))", re.I
)
_LETTER = re.compile(
    r"(?P<marked>(?<![^\W\u3040-\u9fff\uac00-\ud7af])[(\[]\s?[A-Za-z]\s?[)\]]|(?<![\w(\[])[A-Za-z]\)(?!\w))"
    r"|(?<![^\W\u3040-\u9fff\uac00-\ud7af])(?<!['’&/+*^=<>\\.(-])(?<!\d )(?P<bare>[A-Z])"
    r"(?!(?![选項项正是为對对，\u3040-\u30ff\uac00-\ud7af])\w|['’&/+*^<>(-]|\s*=|\.\w)"
)
_WORD_BEHIND = re.compile(r"\s+(?!(?:because|since|is|as|which|or|and|but)\b)[a-z]")
_DENIED_BEFORE = re.compile(
    r"(?:\bnot|n['’]t|\bcannot be|\bnor|\bneither)\s+(?:think\s+|believe\s+)?(?:the\s+)?(?:option\s+)?$", re.I
)
_FALSE = r"(?:not|wrong|incorrect|false)\b"
_DENIED_BEHIND = re.compile(
    rf"[)\]]?\s+(?:(?:is|are(?:\s+both|\s+all)?)\s+{_FALSE}|(?:isn['’]t|cannot|can['’]t)\b"
    r"|(?:might|may|could)\s+(?:look|seem|appear|sound)\b)"
    rf"|[)\]]?(?:(?:,|,?\s+(?:and|or))\s+[(\[]?[a-z](?![a-z])[)\]]?){{1,8}}\s+are(?:\s+both|\s+all)?\s+{_FALSE}",
    re.I,
)
_ANSWER = (
    r"(?<!\ban )(?<!\bother )(?<!\bwrong )(?<!\bincorrect )(?<!\btempting )\banswer\b"
    r"|\b(?:correct|right|best)\s+(?:option|choice|one|letter)\b|答案|故选|정답"
)
_CUE = re.compile(rf"{_ANSWER}|^(?:no\b|{_CORRECTION})", re.I)
_ANNOUNCED = re.compile(
    rf"(?i:{_ANSWER})(?:(?!\b[A-Z]\b)[^()\n]){{0,60}}?(?:\b(?:is|was|be)\b|[:是为])[\s:]*"
    r"(?:(?:therefore|thus|hence|clearly|definitely|indeed|most|likely|probably|then|the|letter)\b\s*){0,4}"
    r"(?:(?i:option|choice)[\s:]+[(\[]?\s?([A-Za-z])\b(?![/&'’])|[(\[]\s?([A-Za-z])\s?[)\]]|([A-Za-z])(?=\))"
    r"|([A-Z])(?=[,:]|\.(?!\w)|\s[-–—]\s|\s\([^)]{2}|\s*$))"
)
"""A label behind what announces it. Capitals behind it are the option's text: `(D) I and II`, `B, Vitamin C`."""
_JOINT = re.compile(
    r"[)\].:]?[\s,;/&(]*(?:(?:and|or|no|but|rather|actually)\b[\s,]*){0,3}(?:(?:option|choice)\s+)?", re.I
)
"""Between a label and another letter that is chosen beside it."""
_OR = re.compile(r"\bor\s+(?:(?:it\s+)?is\s+)?(?:(?:option|choice)\s+)?$", re.I)
_ALONE = re.compile(r"[(\[]?\s?[A-Z]\s?[)\].:]{0,2}")
_HEADING = re.compile(
    r"[\W_]*(?:(?:so|thus|therefore|hence|then|the|my|final|correct|right|best)\b[\W_]*)*"
    r"(?:answer|(?:correct|right|best)\s+(?:option|choice|one|letter)|答案|정답)(?:\s+is)?[\W_]*",
    re.I,
)
"""A line that announces what stands below it."""
_OPTION = re.compile(r"[\W_]*[A-Za-z][*_\s]*[).:\]][\W_]*\w")
_CHOICE = re.compile(
    r"\s*(?:(?:option|choice|answer)[:\s]+)?(?:[(\[]\s?[a-z]\s?[)\]]|[a-z](?=[).:,]|\s*$|\s[-–—]\s))", re.I
)
_FORMULA = re.compile(r"[\\\d=^_+*/<>]")


@reward
def multiple_choice(completion: str, *, solution: str, prefix: str = "", truncated: bool | None = None) -> Score:
    """1 when the chosen letter is that of `solution`, else 0; unscorable when `solution` does not begin with one.

    Where it is looked for: in `<answer>…</answer>`, without one in the last `\\boxed{…}`, without that in what follows
    `</think>`; a thought that never ends states nothing (nor does `format` pay it). A box inside of `<answer>` is the
    answer. A capital in a formula in the box, or a unit (`12 V`), is no choice: then the text decides.

    What decides there: the last statement (line, sentence, or what begins with "wait", "but" or the like) that names a
    letter. Without tag and box it is the last one that speaks of the answer ("the answer is B", "correct option: B",
    `答案`; not "a wrong answer" or "an answer"), and if none does, a first line that is only a letter, else the last
    line. A heading (`### Final Answer`, "The
    answer is") and the line below it are one statement, but for a list of options. Two letters in that statement are no
    choice.

    What is a letter: `(B)`, `[B]`, `B)`, `**B**`, and a capital that stands alone, but not in a formula. A and I before
    a word in lower case are words. A statement that begins with a letter and a mark (`B. Vitamin C`, `B) x`, `B: x`, `B
    - x`) names that one, as does one that announces it ("the answer is (D) I and II", "is B, Vitamin C", "is option
    B"). Other letters in it are the option's text, unless they stand right beside it (`(A), (B)`, "(A) or B") or are
    marked behind an "or" (`B) Paris or C) Rome`). `b` counts where it is marked or all there is.
    "not B", "B is wrong", "B and C are wrong" and "B might look right" name nothing. Of a text without `<answer>` the
    last 20,000 characters are read; an `<answer>` that is longer is no choice.

    `prefix` is text the prompt has written already, such as `<think>`; it is put before the completion.

    Source: the usual form of MMLU and GPQA answers.
    """
    gold = _gold(solution)
    if gold is None:
        return Score(None, detail="the column solution does not begin with a letter")
    chosen = _chosen(prefix + completion, truncated)
    return Score(float(chosen == gold), log={"choice": chosen})


def _gold(solution: str) -> str | None:
    block = answer_block(solution)
    text = solution if block is None else block
    text = boxed(text) or text
    named = [_named(statement) for statement in _statements(_plain(text))]
    letters = {letter for some in named for letter in some}
    return letters.pop() if len(letters) == 1 and named[0] and _begins_with_letter(text) else None


def _begins_with_letter(text: str) -> bool:
    return re.match(r"\(?\[?[A-Za-z](?![A-Za-z0-9])", _plain(text)) is not None


def _chosen(completion: str, truncated: bool | None) -> str | None:
    block = answer_block(completion, truncated=truncated)
    unfinished = block is None and is_unfinished(completion)
    text = block if block is not None else completion if unfinished else answered(completion)
    if block is not None and len(text) > MAX_CHARS:
        return None
    text = text[-MAX_CHARS:]
    box = _plain(boxed(text) or "")
    # A capital in a formula, or of a unit, is no choice: `12 V`.
    if (_CHOICE.match(box) or not _FORMULA.search(box)) and (letter := _last_named(_statements(box))):
        return letter
    if unfinished:
        return None
    statements = _statements(_plain(unboxed(text)))
    if block is None:
        begins = len(text) <= MAX_CHARS and bool(statements) and _ALONE.fullmatch(statements[0]) is not None
        first = statements[:1] if begins else []
        cued = [statement for statement in statements if _CUE.search(statement)]
        is_list = bool(statements) and _ALONE.fullmatch(statements[-1]) is not None
        statements = [*first, *cued] if cued or (first and not is_list) else statements[-1:]
    return _last_named(statements)


def _plain(text: str) -> str:
    """`text` without markup; an emphasized letter stands in parentheses."""
    text = _MARKUP.sub(r"\1", normal_form(text, "NFKC").replace("。", ". ").replace("、", ","))
    text = _with_headings(re.sub(r":\s*\n\s*", ": ", text))
    return _STARS.sub("", _EMPHASIS.sub(r"(\2)", text)).strip().strip("{}").strip()


def _with_headings(text: str) -> str:
    """`### Final Answer` and the line below it as one statement, unless a list of options begins there."""
    lines = [line for line in text.split("\n") if line.strip()]
    for place in range(len(lines) - 2, -1, -1):
        if _HEADING.fullmatch(lines[place]):
            below = lines[place + 1 : place + 3]
            if len(below) < 2 or not all(map(_OPTION.match, below)):
                lines[place : place + 2] = [f"{lines[place].strip('#*_ ')}: {lines[place + 1]}"]
    return "\n".join(lines)


def _statements(text: str) -> list[str]:
    """Lines and sentences. A letter with a dot begins a statement, and ends none that is only that letter."""
    found, start = [], 0
    for end in _ENDS.finditer(text):
        if end.group() == "." and end.start() - start <= 3 and len(text[start : end.start()].strip()) == 1:
            continue
        found.append(text[start : end.start()])
        start = end.end()
    return [statement.strip() for statement in [*found, text[start:]] if statement.strip()]


def _last_named(statements: list[str]) -> str | None:
    for statement in reversed(statements):
        letters = _named(statement)
        if letters:
            return letters.pop() if len(letters) == 1 else None
    return None


def _named(statement: str) -> set[str]:
    """The letters that a statement names."""
    labels = list(_ANNOUNCED.finditer(statement)) or [found for found in [_LABEL.match(statement)] if found]
    kept = [label for label in labels if not _DENIED_BEHIND.match(statement, label.end())]
    named = {next(filter(None, label.groups())).upper() for label in kept}
    end = labels[-1].end() if labels else 0
    for found in _LETTER.finditer(statement, end):
        bare = found["bare"]
        if bare and bare in "AI" and _WORD_BEHIND.match(statement, found.end()):
            continue
        before = statement[max(0, found.start() - 20) : found.start()]
        is_text = bool(bare) or (bool(kept) and not _OR.search(before))
        if labels and is_text and not _is_beside(statement[end : found.start()], bool(bare)):
            continue
        if not _DENIED_BEFORE.search(before) and not _DENIED_BEHIND.match(statement, found.end()):
            named.add(found.group().strip("()[] ").upper())
    return named


def _is_beside(between: str, bare: bool) -> bool:
    """Whether a letter behind `between` is chosen beside the label; a bare one only with a comma or a word between."""
    if len(between) > 20 or not _JOINT.fullmatch(between):
        return False
    return not bare or re.search(r"[,;/&\w]", between) is not None
