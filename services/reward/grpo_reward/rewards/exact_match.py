"""The answer as text."""

from ..answers.gold_text import GoldText
from ..answers.place import answer_block, answered
from ..author import Score, reward
from ..normal_form import normal_form


@reward(columns=["solution"])
def exact_match(
    completion: str,
    *,
    solution: GoldText,
    ignore_case: bool = False,
    whole: bool = False,
    prefix: str = "",
    truncated: bool | None = None,
) -> Score | float:
    """1 when the answer is `solution`, character for character, else 0; unscorable when `solution` is empty.

    The answer is what stands in `<answer>…</answer>`, without such a block what follows `</think>`, without that the
    completion; a thought that never ends is none. With `whole` it is always the completion. Unicode is brought to its
    composed form (NFC), white space is trimmed and runs of it count as one blank; with `ignore_case` upper and lower
    case are the same.

    `prefix` is text the prompt has written already, such as `<think>`; it is put before the completion.

    Source: the exact match of question answering (SQuAD, arXiv 1606.05250), without its removal of articles and
    punctuation.
    """
    text = prefix + completion
    block = answer_block(text, truncated=truncated)
    answer = completion if whole else answered(text) if block is None else block
    found, wanted = _plain(answer), _plain(solution)
    if not wanted:
        # With it an empty completion would be right.
        return Score(None, detail="the column solution is empty")
    return float(found.casefold() == wanted.casefold() if ignore_case else found == wanted)


def _plain(text: str) -> str:
    return " ".join(normal_form(text, "NFC").split())
