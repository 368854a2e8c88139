"""Two pictures, one after the other: an environment that shows an image in every turn.

    episodes:
      environment: examples/colours/two_pictures.py:TwoPictures
      num_tasks: 256

The policy answers with the first letter of a colour; each right answer is worth 1. An answer that goes on is cut, which
ends the episode before its second picture.
"""

import random
from typing import Any

from PIL import Image

COLOURS = {"r": (200, 40, 40), "g": (40, 200, 40), "b": (40, 40, 200)}
SIDE, NOISE = 32, 40


class TwoPictures:
    """A game for each seed: what it shows depends on nothing else."""

    def reset(self, row: dict[str, Any], seed: int) -> list[dict[str, Any]]:
        self.rng = random.Random(seed)
        self.left = 2
        return [self.question()]

    def step(self, message: dict[str, Any]) -> tuple[list[dict[str, Any]], float, bool]:
        reward = float((message["content"] or "")[:1] == self.colour)
        self.left -= 1
        return ([self.question()], reward, False) if self.left else ([], reward, True)

    def question(self) -> dict[str, Any]:
        self.colour = self.rng.choice(list(COLOURS))
        image = {"type": "image", "image": picture(COLOURS[self.colour], self.rng)}
        return {"role": "user", "content": [image, {"type": "text", "text": "Which colour?"}]}


def picture(colour: tuple[int, int, int], rng: random.Random) -> Image.Image:
    """One colour with noise."""
    values = (min(max(value + rng.randint(-NOISE, NOISE), 0), 255) for _ in range(SIDE * SIDE) for value in colour)
    return Image.frombytes("RGB", (SIDE, SIDE), bytes(values))
