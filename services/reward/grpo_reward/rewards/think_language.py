"""Against a chain of thought that mixes languages."""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Literal

from ..answers.place import THINK_CLOSING, THINK_OPENING
from ..author import Score, reward
from ..normal_form import normal_form

Script = Literal[
    "latin", "cjk", "hiragana", "katakana", "hangul", "cyrillic", "greek", "arabic", "hebrew", "devanagari"
]
_MARKUP = re.compile(r"</?[a-z_]{1,32}>|\\[A-Za-z]{1,32}|^[ \t]{0,8}```.*$", re.MULTILINE)
_LETTER_IS_A_WORD = {"cjk", "hiragana", "katakana"}
_BELONGS_TO_THE_LETTER_BEFORE = "belongs"


@reward(columns=[])
def think_language(completion: str, *, scripts: Sequence[Script] = ("latin",), whole: bool = False) -> Score:
    """The share of words in the wanted `scripts` among all words of the `<think>` block, 0 to 1.

    A word is a run of letters of one script; of Chinese characters and kana each is one. Digits, symbols, formulas
    without letters, and markup (`<answer>`, `\\boxed`, the line that begins a block of code) do not count, and neither
    does a single Greek letter, which is a symbol of mathematics (unless Greek is wanted). Full-width, mathematical and
    circled letters are the letters they stand for (NFKC).

    The block goes from the first `<think>`, or the start where the prompt has written it, to the last `</think>`, or
    the end. Without both tags, and with `whole`, the completion is looked at. Unscorable without a word. English
    against German is the same script, and the same score.

    Source: DeepSeek-R1 (arXiv 2501.12948), section 2.3.2, the share of words in the target language.
    """
    text = _MARKUP.sub(" ", completion if whole else _thought(completion))
    wanted = total = 0
    for script, num_letters in _words(normal_form(text, "NFKC")):
        if script == "greek" and num_letters == 1 and "greek" not in scripts:
            continue
        total += 1
        wanted += script in scripts
    if total == 0:
        return Score(None, detail="there is no word to look at")
    return Score(wanted / total)


def _thought(completion: str) -> str:
    before, opening, after = completion.partition(THINK_OPENING)
    thought, closing, rest = (after if opening else before).rpartition(THINK_CLOSING)
    return thought if closing else rest


def _words(text: str) -> Iterator[tuple[str, int]]:
    """The script and the number of letters of each word."""
    before, num_letters = "", 0
    for character in text:
        script = _script(character)
        if script == _BELONGS_TO_THE_LETTER_BEFORE:
            continue
        if script != before or script in _LETTER_IS_A_WORD:
            if before:
                yield before, num_letters
            before, num_letters = script, 0
        num_letters += 1
    if before:
        yield before, num_letters


@lru_cache(maxsize=65536)
def _script(character: str) -> str:
    """The first word of a letter's Unicode name, such as `latin`; empty for what is no letter."""
    category = unicodedata.category(character)
    # Accents, vowel signs; of letters those that change the one before, such as the long vowel of kana.
    if category.startswith("M") or category == "Lm":
        return _BELONGS_TO_THE_LETTER_BEFORE
    return unicodedata.name(character, "").partition(" ")[0].lower() if character.isalpha() else ""
