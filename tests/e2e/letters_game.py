"""A game that a random model can learn: every turn is worth its share of lower-case letters."""

import os
import threading
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
    """A later policy plays the second turn than the first: it waits for the next push to the server LETTERS_SERVER.

    What the first policy plays is not waited for: no step ends before its batch has been played.
    """

    _asking, _server = threading.Lock(), httpx.Client(trust_env=False)
    _version, _asked_s = 0, 0.0

    def step(self, message):
        first = self.policy_version()
        said, reward, done = super().step(message)
        deadline = time.monotonic() + 60
        while not done and first > 1 and self.policy_version() == first and time.monotonic() < deadline:
            time.sleep(0.05)
        return said, reward, done

    @classmethod
    def policy_version(cls):
        """Return that of the last 0.1 s: the episodes that wait ask as one."""
        with cls._asking:
            if time.monotonic() > cls._asked_s + 0.1:
                answer = cls._server.get(f"{os.environ['LETTERS_SERVER']}/v1/weights").raise_for_status()
                cls._version, cls._asked_s = answer.json()["version"], time.monotonic()
            return cls._version
