"""The format DeepSeek-R1 asks for."""

from ..answer import CLOSING, OPENING
from ..author import reward

THINK_OPENING, THINK_CLOSING = "<think>", "</think>"


@reward(name="format")
def format_reward(completion: str, *, require_think: bool = True, prefix: str = "") -> float:
    """1 when the completion is exactly `<think>…</think><answer>…</answer>`, else 0.

    Decisions: each of the four tags stands there exactly once; both blocks say something (white space alone does not
    count); between the blocks and around the whole only white space, which is ignored, so that a final line break does
    not decide. With `require_think` false the think block may be missing, but one that is there must be right.

    `prefix` is text the prompt has written already, such as `<think>`; it is put before the completion.

    Source: DeepSeek-R1 (arXiv 2501.12948), section 2.2.2. The expression its followers use,
    `^<think>.*?</think>\\s*<answer>.*?</answer>`, takes repeated and empty blocks, some of them any text after them.
    """
    text = (prefix + completion).strip()
    if text.count(OPENING) != 1 or text.count(CLOSING) != 1 or not text.endswith(CLOSING):
        return 0.0
    before, _, answer = text.removesuffix(CLOSING).partition(OPENING)
    if not answer.strip():
        return 0.0
    if text.count(THINK_OPENING) != text.count(THINK_CLOSING):
        return 0.0
    think = before.strip()
    if not think:
        return float(not require_think and text.count(THINK_OPENING) == 0)
    if not (think.startswith(THINK_OPENING) and think.endswith(THINK_CLOSING)) or text.count(THINK_OPENING) != 1:
        return 0.0
    thought = think.removeprefix(THINK_OPENING).removesuffix(THINK_CLOSING)
    return float(bool(thought.strip()))
