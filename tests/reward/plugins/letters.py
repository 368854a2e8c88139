"""A reward of which a random model gets different scores, with something for the log."""

from grpo_reward import Score, reward


@reward
def letters(completion: str, *, target: int, step: int | None = None, completion_token_ids: list[int]) -> Score:
    """The share of letters in the completion; none for a target of 0."""
    if target == 0:
        return Score(None, detail="the target is 0")
    found = sum(character.isalpha() for character in completion)
    log = {"found": found, "step": step, "num_tokens": len(completion_token_ids)}
    return Score(found / max(len(completion), 1), log=log, metrics={"found": found})
