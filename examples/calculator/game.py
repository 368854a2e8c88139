"""The calculator game: `What is 37*52?` with a calculator to ask, as an environment and its tool.

    episodes:
      environment: examples/calculator/game.py:Game
      tools: [examples/calculator/game.py:calc]

A message that calls the tool gets its result. Any other message is the answer, and ends the game: 1 when it is the
product, else 0. The model of the example is far too small to multiply in its head.
"""

import re
from typing import Any

SUM = re.compile(r"(\d{1,5})([*+-])(\d{1,5})")


class Game:
    """A game for each row: its columns `a` and `b` are the numbers."""

    def reset(self, row: dict[str, Any], seed: int) -> str:
        self.product = row["a"] * row["b"]
        return f"What is {row['a']}*{row['b']}?"

    def step(self, message: dict[str, Any]) -> tuple[str, float, bool]:
        right = (message["content"] or "").strip() == str(self.product)
        return "", float(right), True


def calc(expr: str) -> str:
    """Calculate.

    Args:
        expr: two numbers with `*`, `+` or `-` between them, such as 37*52
    """
    found = SUM.fullmatch(expr)
    if not found:
        return "error"
    left, right = int(found[1]), int(found[3])
    return str({"*": left * right, "+": left + right, "-": left - right}[found[2]])
