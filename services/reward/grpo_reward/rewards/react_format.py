"""Thought, then an action, as ReAct agents write it."""

from ..answers.place import THINK_CLOSING, THINK_OPENING
from ..author import reward
from ..visible import says_something


@reward
def react_format(completion: str, *, prefix: str = "") -> float:
    """1 when the completion is `<think>…</think>`, then `Action: …`, then `Action Input: …`, else 0.

    Decisions: one think block, at the start; exactly one action with one input; none of the three is empty, or has only
    characters that nobody sees. White space around each is ignored. Text between the block and `Action:` is not
    allowed.

    `prefix` is text the prompt has written already, such as `<think>`; it is put before the completion.

    Source: ms-swift's `react_format`, which also takes several blocks and empty parts.
    """
    text = (prefix + completion).strip()
    if text.count(THINK_OPENING) != 1 or text.count(THINK_CLOSING) != 1 or not text.startswith(THINK_OPENING):
        return 0.0
    thought, _, rest = text.removeprefix(THINK_OPENING).partition(THINK_CLOSING)
    rest = rest.strip()
    if not rest.startswith("Action:") or rest.count("Action:") != 1 or rest.count("Action Input:") != 1:
        return 0.0
    action, _, action_input = rest.removeprefix("Action:").partition("Action Input:")
    return float(all(map(says_something, (thought, action, action_input))))
