"""Which option a text chooses: the letter, or none.

The letter is looked for in several places, and is no choice there when another one stands beside it as a further
answer. Each place takes one pass over the tokens.
"""

from .option_tokens import Token, Tokens

_OPTION_NAMES = {"option", "choice", "letter"}
_OPTION = _OPTION_NAMES | {"answer"}
_RIGHT = {"right", "correct", "best"}
_CHINESE_CUES = {"答案", "选", "選"}
_CUES = _CHINESE_CUES | _RIGHT | {"answer"}
_FITTING = _RIGHT | {"true", "valid", "possible", "plausible", "acceptable", "likely", "fine", "a", "an"}
_IS = {"is", "are", "seems", "may", "might", "could", "can", "would"}
_NEGATIONS = {"not", "never", "cannot", "neither", "nor"}
_WRONG = {"not", "wrong", "incorrect", "false"}
_COLONS = {":", "=", "→", "->"}
_FILLERS = _COLONS | _OPTION_NAMES | {"indeed", "therefore", "clearly", "definitely", *"-–是为為项項"}
_LEADS = {"is", "think", "believe", "choose", "chose", "pick", "select", "say", "guess", "so", "thus", "hence"}
_LEADS |= {"therefore", "with", "answer", "option", "choice", "leaves", ":", "→", "->", ">"}
_GOES_ON = {"because", "since", "is", "as", "which", "according"}
_EITHER = {"or", "and", "plus", "maybe", "perhaps", "possibly", "alternatively", "otherwise", "else"}
_ALSO = {"but", "also", "even", "yet", "it", "'s", "is", "be", "could", "may", "might", "would", "the"} | _OPTION
_CONTRAST = {"and", "but", "yet", "although", "though", "while", "however"}
_LINKS = _EITHER | _ALSO | _CONTRAST
_AND_MARKS = {",", "/", "|", "&", "+", ";"}
_CLAUSE_ENDS = set(".,;:!?)}]")
_REASONS = {"because", "explanation", "reason", "reasoning"}
_COMPARED = _REASONS | {"since", "as", "while", "whereas", "than", "unlike", "not"}
_MAX_OF_WHAT = 4
"""Words between "the answer to" and "is"."""


def chosen_option(text: str, *, is_answer: bool) -> str | None:
    """The letter that a plain text chooses. With `is_answer` all of the text is meant as the answer."""
    tokens = Tokens.of(text)
    if is_answer:
        return (
            _unless_several(tokens, _labelled_first(tokens), is_answer)
            or _unless_several(tokens, _last_said(tokens), False)
            or _letter(tokens, _at_the_end(tokens, alone=False))
            or _unless_several(tokens, _bare_first(tokens), is_answer)
        )
    return (
        _unless_several(tokens, _last_said(tokens), is_answer)
        or _letter(tokens, _at_the_end(tokens, alone=True))
        or _unless_several(tokens, _only_marked(tokens), is_answer)
    )


def first_option(text: str) -> str | None:
    """The letter that a plain text begins with, as an option does."""
    tokens = Tokens.of(text)
    first = _labelled_first(tokens)
    return _unless_several(tokens, _bare_first(tokens) if first is None else first, True)


def _letter(tokens: Tokens, at: int | None) -> str | None:
    return None if at is None else tokens[at].text


def _unless_several(tokens: Tokens, at: int | None, is_answer: bool) -> str | None:
    return None if at is None or _has_rival(tokens, at, is_answer=is_answer) else tokens[at].text


# The places.


def _labelled_first(tokens: Tokens) -> int | None:
    """`B`, `(B)`, `B.`, `B) Paris`, `B - Paris`, `option B: Paris`."""
    at = _behind_option(tokens, 0)
    letter, mark, behind = tokens[at], tokens[at + 1], tokens[at + 2]
    if letter.kind != "letter":
        return None
    dash = mark.text in {"-", "–", "—"} and mark.spaced and behind.spaced
    ends = mark.kind == "end" or (mark.text in {",", ";", "!", "."} and not mark.spaced)
    return at if letter.label or ends or dash else None


def _bare_first(tokens: Tokens) -> int | None:
    """`B Paris`. A and I are words there."""
    at = _behind_option(tokens, 0)
    letter, behind = tokens[at], tokens[at + 1]
    stands = letter.kind == "letter" and not letter.label and letter.text not in "AI" and behind.spaced
    return at if stands and behind.text not in set("=+*/<>^") and not _is_denied(tokens, at) else None


def _last_said(tokens: Tokens) -> int | None:
    """The last "the answer is B", "correct option: B", "B is the only correct one"."""
    said = None
    for start, token in enumerate(tokens.all):
        if token.kind == "letter":
            if _is_called_right(tokens, start) and (token.label or not token.small):
                said = start
        elif token.text in _CUES:
            at = _behind_cue(tokens, start)
            if at is not None and _may_be_letter(tokens, at):
                said = at
    return said


def _at_the_end(tokens: Tokens, *, alone: bool) -> int | None:
    """`So it's B.`, `I think B`; with `alone` also a letter that has the last line for itself."""
    at = len(tokens.all) - 1
    while tokens[at].text in {".", "!", ")"}:
        at -= 1
    letter, before = tokens[at], tokens[at - 1]
    if letter.kind != "letter":
        return None
    lead = before.text in _LEADS or (before.text == "'s" and tokens[at - 2].text in {"it", "that"})
    has_line = alone and before.kind in ("line", "end")
    if not (has_line or (lead and not letter.small)) or _is_negated(tokens, at):
        return None
    return None if _is_alternative(tokens, at) else at


def _only_marked(tokens: Tokens) -> int | None:
    """The only letter that is marked, stands after "option", or begins a line with a label."""
    letters = [at for at, token in enumerate(tokens.all) if token.kind == "letter"]
    found = [at for at in letters if _is_marked_option(tokens, at)]
    return found[0] if len({tokens[at].text for at in found}) == 1 else None


# What stands around a letter.


def _behind_option(tokens: Tokens, at: int) -> int:
    """Behind "the option"."""
    start = at + (tokens[at].text == "the")
    return start + 1 if tokens[start].text in _OPTION else at


def _behind_cue(tokens: Tokens, at: int) -> int | None:
    """Where a letter would stand when "the answer is" begins at `at`."""
    if tokens[at].text in _CHINESE_CUES:
        return _behind_fillers(tokens, at + 1)
    if tokens[at].text == "answer":
        at += 1
        if (behind := _behind_verdict(tokens, at)) is None and tokens[at].text in {"to", "for", "of"}:
            words = range(at + 2, at + 2 + _MAX_OF_WHAT)
            behind = next((end for word in words if (end := _behind_verdict(tokens, word)) is not None), None)
    elif tokens[at].text in _RIGHT and tokens[at + 1].text in _OPTION_NAMES | {"one"}:
        behind = _behind_verdict(tokens, at + 2)
    else:
        return None
    return None if behind is None or tokens[behind].text in _NEGATIONS else _behind_fillers(tokens, behind)


def _behind_verdict(tokens: Tokens, at: int) -> int | None:
    """Behind "is", "would be", or a colon."""
    word = tokens[at].text
    if word in _COLONS | {"is", "was", "'s"}:
        return at + 1
    return at + 2 if word in {"would", "should", "must"} and tokens[at + 1].text == "be" else None


def _behind_fillers(tokens: Tokens, at: int) -> int:
    for _ in range(4):
        at += tokens[at].text in _FILLERS
    return at


def _may_be_letter(tokens: Tokens, at: int) -> bool:
    """Whether the letter at `at` is no word: A and I may be, and c in a formula."""
    letter, behind = tokens[at], tokens[at + 1]
    if letter.kind != "letter" or letter.label == ")":
        return letter.kind == "letter"
    if _ends_clause(behind):
        return True
    return not letter.small and (letter.text not in "AI" or behind.text in _GOES_ON)


def _ends_clause(token: Token) -> bool:
    return token.kind in ("end", "line") or token.text in _CLAUSE_ENDS


def _is_called_right(tokens: Tokens, at: int) -> bool:
    """`B is the only correct one`."""
    at += 1
    if tokens[at].text == "is":
        at += 1
    elif (tokens[at].text, tokens[at + 1].text) == ("must", "be"):
        at += 2
    else:
        return False
    at += tokens[at].text == "the"
    at += tokens[at].text == "only"
    return tokens[at].text in _RIGHT | {"answer"}


def _is_denied(tokens: Tokens, at: int) -> bool:
    """`B is wrong`, `B isn't`, `B cannot be`."""
    verb, behind = tokens[at + 1].text, tokens[at + 2].text
    return verb in {"isn't", "aren't", "wasn't", "can't", "cannot"} or (
        verb in {"is", "are", "was", "can"} and behind in _WRONG
    )


def _is_negated(tokens: Tokens, at: int) -> bool:
    """`not B`, `not the option B`; not `not A but B`."""
    for before in range(at - 1, at - 5, -1):
        word = tokens[before]
        if word.text == "but" or word.kind not in ("word", "letter") or word.label:
            return False
        if word.text in _NEGATIONS or word.text.endswith("n't"):
            return True
    return False


def _is_alternative(tokens: Tokens, at: int) -> bool:
    """`A or it is B`, of the B."""
    before = at - 1
    while before > at - 5 and tokens[before].text in _ALSO | {"maybe", "perhaps", "that"}:
        before -= 1
    if tokens[before].text != "or":
        return False
    while tokens[before - 1].kind == "mark":
        before -= 1
    return tokens[before - 1].kind == "letter" and tokens[before - 1].text != tokens[at].text


def _is_marked_option(tokens: Tokens, at: int) -> bool:
    letter, before = tokens[at], tokens[at - 1]
    if _is_negated(tokens, at) or _is_denied(tokens, at):
        return False
    if letter.label == ")":
        return True
    if before.text in _OPTION_NAMES:
        return _may_be_letter(tokens, at)
    return bool(letter.label) and before.kind in ("line", "end")


# Further letters.


def _has_rival(tokens: Tokens, at: int, *, is_answer: bool) -> bool:
    """Whether another letter follows as a further answer: at once (`B or maybe C`), or behind the text of the option.

    What is said of other letters in a reason or a comparison does not count. Outside of an answer that ends with the
    sentence.
    """
    chosen = tokens[at]
    linked, compared = True, False  # nothing but linking words so far; in a comparison
    labels = [chosen.text]
    for here in range(at + 1, len(tokens.all)):
        token = tokens[here]
        if token.kind == "letter" and token.text != chosen.text and (token.label == ")" or not token.small):
            if linked and (_is_linked(tokens, at, here) or _fits_as_well(tokens, at, here)):
                return True
            if not compared and not _is_denied(tokens, here) and _is_further(tokens, at, here, is_answer=is_answer):
                return True
            if token.label:
                labels.append(token.text)
                if is_answer and _are_in_turn(labels):
                    return True
            linked = False
        elif token.kind == "word":
            linked &= token.text in _LINKS
            compared |= token.text in _COMPARED or token.text.endswith("n't")
            if token.text in _REASONS:
                return False
        elif token.kind == "line":
            compared = False
        if not is_answer and not linked and _ends_sentence(tokens, here):
            return False
    return False


def _ends_sentence(tokens: Tokens, at: int) -> bool:
    token = tokens[at]
    return token.kind == "line" or (token.text in {".", "!", "?"} and tokens[at + 1].spaced)


def _is_linked(tokens: Tokens, at: int, other: int) -> bool:
    """`B or maybe C`, `B, C`, `(B)(C)`, `B C`; not `B. C. elegans`."""
    chosen, rival, behind = tokens[at], tokens[other], tokens[other + 1]
    between = [tokens[here] for here in range(at + 1, other)]
    words = [token.text for token in between if token.kind == "word"]
    if set(words) & _EITHER:
        if rival.text in "AI":
            return _may_be_letter(tokens, other) or behind.text == "are"
        return rival.label != "." or not _goes_on_as_a_word(tokens, other)
    if words:
        return words[0] in {"but", "yet"} and rival.text != "I" and _ends_clause(behind)
    if _goes_on_as_a_word(tokens, other):
        return False
    if any(token.text in _AND_MARKS for token in between):
        return True
    both_labelled = chosen.label and rival.label
    return bool(both_labelled) or rival.label == ")" or (not chosen.label and all(t.kind == "line" for t in between))


def _goes_on_as_a_word(tokens: Tokens, at: int) -> bool:
    """`C. elegans`, `A good one`."""
    behind = tokens[at + 1 + (tokens[at].label == ".")]
    return tokens[at].label != ")" and behind.kind == "word" and behind.small


def _fits_as_well(tokens: Tokens, at: int, other: int) -> bool:
    """`B, but C is also right`, `B - A is just as likely`."""
    words = {tokens[here].text for here in range(at + 1, other) if tokens[here].kind == "word"}
    if not words <= _CONTRAST | _OPTION | {"the"} or tokens[other + 1].text not in _IS:
        return False
    said = [tokens[here].text for here in range(other + 2, other + 9)]
    said = said[said[0] == "be" :]
    for as_well in (["also"], ["equally"], ["just", "as"], ["as"]):
        if said[: len(as_well)] == as_well:
            return said[len(as_well)] in _FITTING
    return said[0] in _FITTING and bool(set(said[1:4]) & {"too", "also", "well"})


def _is_further(tokens: Tokens, at: int, other: int, *, is_answer: bool) -> bool:
    """`B) Paris or C) Rome`, and in an answer a labelled letter on a line of its own or after a comma or semicolon."""
    rival, before = tokens[other], tokens[other - 1]
    joined = before.text in {"or", "and"} and rival.label == ")"
    joined |= before.text == "or" and rival.label != ""
    joined |= before.text in _OPTION and tokens[other - 2].text == "or"
    if not is_answer:
        return joined and tokens[at].label != ""
    on_a_line = before.kind == "line" and (rival.label != "" or tokens[other + 1].kind in ("line", "end"))
    listed = before.text in {",", ";", "/", "|"} and rival.label == ")"
    listed |= before.text == ";" and rival.label != ""
    return joined or on_a_line or listed


def _are_in_turn(labels: list[str]) -> bool:
    """A copy of the options: `A. x B. y C. z`."""
    first, second, third, *_ = *map(ord, labels[:3]), 0, 0, 0
    return first + 2 == second + 1 == third
