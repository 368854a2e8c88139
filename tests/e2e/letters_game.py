"""A game that a random model can learn: every turn is worth its share of lower-case letters."""

import os
import time


def shout(text: str) -> str:
    """Say it louder.

    Args:
        text: what is said
    """
    return text.upper()


class Letters:
    """Asks `row["rounds"]` times for letters, twice by default."""

    def reset(self, row, seed):
        self.rounds, self.played = row.get("rounds", 2), 0
        return [{"role": "user", "content": f"{seed % 10} go"}]

    def step(self, message):
        time.sleep(float(os.environ.get("LETTERS_PAUSE_S", "0")))
        self.played += 1
        said = message["content"] or ""
        reward = sum(character.islower() for character in said) / max(len(said), 1)
        done = self.played == self.rounds
        return [] if done else "more", reward, done
