"""Credit for each tag, for models that do not know the format yet."""

from ..author import reward

TAGS = ("<think>", "</think>", "<answer>", "</answer>")


@reward
def tag_count(completion: str, *, prefix: str = "") -> float:
    """0.25 for each of `<think>`, `</think>`, `<answer>`, `</answer>` that stands there exactly once.

    `prefix` is text the prompt has written already, such as `<think>`; it is put before the completion. Whether the
    tags are in order is not looked at: that is what `format` is for.

    Source: open-r1, `tag_count_reward`, whose tags need a line break beside them; these do not.
    """
    text = prefix + completion
    return sum(text.count(tag) == 1 for tag in TAGS) / len(TAGS)
