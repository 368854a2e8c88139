"""The calculator game as it is written for TRL: a class for `environment_factory`, and a reward function.

GRPOTrainer(model, reward_funcs=right, environment_factory=Calculator, train_dataset=…)      # with TRL
grpo-reward serve --plugin examples/agent/trl_game.py                                        # with these services
grpo-train examples/calculator/run.yaml examples/agent/trl.yaml
"""

from typing import Any


class Calculator:
    """Public methods are tools; what `reset` returns stands behind the row's prompt."""

    def reset(self, a: int, b: int, **row: Any) -> str:
        return f"What is {a}*{b}?"

    def calc(self, expr: str) -> str:
        """Calculate.

        Args:
            expr: two numbers with `*` between them, such as 37*52
        """
        left, _, right = expr.partition("*")
        return str(int(left) * int(right))


def right(completions: list[list[dict[str, Any]]], a: list[int], b: list[int], **columns: Any) -> list[float]:
    """1 when the last message is the answer and is the product."""
    last = [messages[-1] for messages in completions]
    return [
        float(message["role"] == "assistant" and message["content"].strip() == str(x * y))
        for message, x, y in zip(last, a, b, strict=True)
    ]
