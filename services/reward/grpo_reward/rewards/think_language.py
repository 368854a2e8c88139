"""Against a chain of thought that mixes languages."""

import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

from ..author import Score, reward
from .format import THINK_CLOSING, THINK_OPENING

Script = Literal[
    "latin", "cjk", "hiragana", "katakana", "hangul", "cyrillic", "greek", "arabic", "hebrew", "devanagari"
]
_TAG = re.compile(r"</?[a-z_]{1,32}>")
_LETTER_IS_A_WORD = {"cjk", "hiragana", "katakana"}


@reward(columns=[])
def think_language(completion: str, *, scripts: Sequence[Script] = ("latin",), whole: bool = False) -> Score:
    """The share of words in the wanted `scripts` among all words of the `<think>` block, 0 to 1.

    A word is a run of letters of one script; of Chinese characters and kana each is one. Digits, symbols, formulas
    without letters, and tags such as `<answer>`, do not count. Without a closing tag the block goes to the end; without
    a block, and with `whole`, the completion is looked at. Unscorable without a word. English against German is the
    same script, and the same score.

    Source: DeepSeek-R1 (arXiv 2501.12948), section 2.3.2, the share of words in the target language.
    """
    text = completion
    if not whole and THINK_OPENING in completion:
        text = completion.partition(THINK_OPENING)[2].partition(THINK_CLOSING)[0]
    text = _TAG.sub(" ", text)
    wanted = total = 0
    before = ""
    for character in text:
        script = _script(character)
        if script and (script != before or script in _LETTER_IS_A_WORD):
            total += 1
            wanted += script in scripts
        # An accent or a vowel sign belongs to the letter before it.
        if not unicodedata.category(character).startswith("M"):
            before = script
    if total == 0:
        return Score(None, detail="there is no word to look at")
    return Score(wanted / total)


@lru_cache(maxsize=65536)
def _script(character: str) -> str:
    """The first word of a letter's Unicode name, such as `latin`; empty for what is no letter."""
    return unicodedata.name(character, "").partition(" ")[0].lower() if character.isalpha() else ""
