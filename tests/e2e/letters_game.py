"""A game that a random model can learn: every turn is worth its share of lower-case letters."""

import os
import time

import httpx


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


class AcrossPushes(Letters):
    """Waits, before the second turn, for the next push to the server LETTERS_SERVER: another policy plays that turn.

    An episode that begins under the first policy does not wait: no push comes before its batch has been played.
    """

    _server = httpx.Client(trust_env=False)

    def reset(self, row, seed):
        self.first_version = self.policy_version()
        return super().reset(row, seed)

    def step(self, message):
        said, reward, done = super().step(message)
        deadline = time.monotonic() + 20  # before the call's own limit, which would end the episode
        while not done and self.first_version > 1 and time.monotonic() < deadline:
            if self.policy_version() > self.first_version:
                break
            time.sleep(0.3)
        return said, reward, done

    def policy_version(self):
        answer = self._server.get(f"{os.environ['LETTERS_SERVER']}/v1/weights")
        return answer.raise_for_status().json()["version"]
