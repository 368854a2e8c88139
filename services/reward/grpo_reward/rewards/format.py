"""The format DeepSeek-R1 asks for."""

from ..answers.place import CLOSING, OPENING, THINK_CLOSING, THINK_OPENING
from ..author import reward
from ..visible import says_something


@reward(name="format")
def format_reward(completion: str, *, strict: bool = True, require_think: bool = True, prefix: str = "") -> float:
    """1 when the completion is `<think>…</think><answer>…</answer>`, else 0.

    Decisions, strict or not: each of the four tags stands there exactly once, in this order, so that a second block, a
    nested one or a tag inside a block is wrong; both blocks say something (white space and characters that nobody sees,
    such as U+200B or NUL, do not count); tags are lower case. White space around the blocks is ignored, so that a final
    line break does not decide.

    With `strict` nothing else may stand before, between or after the blocks. Without it any text may, for models that
    introduce their answer or add a sentence to it.

    With `require_think` false the think block may be missing, but one that is there must be right.

    `prefix` is text the prompt has written already, such as `<think>`; it is put before the completion.

    Source: DeepSeek-R1 (arXiv 2501.12948), section 2.2.2. The expression its followers use,
    `^<think>.*?</think>\\s*<answer>.*?</answer>`, takes repeated and empty blocks. With `$` and `re.MULTILINE` it takes
    any further lines as well (the R1-Zero walk-through); with `(?![\\s\\S])` a final line break fails (ms-swift).
    """
    text = prefix + completion
    tags = [THINK_OPENING, THINK_CLOSING, OPENING, CLOSING]
    if not require_think and THINK_OPENING not in text and THINK_CLOSING not in text:
        tags = tags[2:]
    if any(text.count(tag) != 1 for tag in tags):
        return 0.0
    parts = []
    for tag in tags:
        part, found, text = text.partition(tag)
        if not found:  # it stands before one that should come first
            return 0.0
        parts.append(part)
    outside, inside = [*parts[0::2], text], parts[1::2]
    says_no_more = not any(part.strip() for part in outside)
    return float(all(map(says_something, inside)) and (says_no_more or not strict))
