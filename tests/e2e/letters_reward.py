"""A reward that a random model can learn from: the share of lower-case letters."""

from grpo_reward import reward


@reward(columns=["target"])
def letters(completion: str, *, target: int) -> float:
    """Share of lower-case letters, plus a little that depends on the row."""
    return sum(character.islower() for character in completion) / max(len(completion), 1) + target / 1000
