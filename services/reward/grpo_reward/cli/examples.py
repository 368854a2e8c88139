"""Rows whose scores are known, for the built-in rewards: `test` and `bench` need no file for them.

A row is what a line of a file is (`rows.py`): it must score full, or what `expect` says.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Example:
    rows: list[dict[str, Any]]
    params: Mapping[str, Any] = field(default_factory=dict)
    full: float = 1.0
    low: float = 0.0
    """The lowest score there is; the highest is `full`."""
    allow: frozenset[str] = frozenset()
    """Cheap ideas that score full on purpose."""


SAYS_NOTHING = frozenset({
    "empty completion", "white space", "empty answer", "blank answer", "empty tags", "blank tags", "nested empty tags",
    "tags without end", "tags the wrong way round", "empty box", "empty box in an answer", "hash marks alone",
    "empty code block", "empty tool call",
})  # fmt: skip
"""A penalty does not touch what says nothing: other rewards are for that."""

THOUGHT = "<think>Let me see. It has to come out.</think>"


def _math(solution: str, completion: str, **more: Any) -> dict[str, Any]:
    return {"prompt": "Compute it.", "solution": solution, "completion": completion, **more}


def _countdown(nums: list[int], target: int, answer: str, **more: Any) -> dict[str, Any]:
    prompt = f"Using the numbers {nums}, create an equation that equals {target}."
    completion = f"{THOUGHT}\n<answer>{answer}</answer>"
    return {"prompt": prompt, "nums": nums, "target": target, "completion": completion, **more}


def _choice(solution: str, completion: str, **more: Any) -> dict[str, Any]:
    prompt = "Which city is the capital of France?\nA) Rome\nB) Paris\nC) Bern\nD) Oslo"
    return {"prompt": prompt, "solution": solution, "completion": completion, **more}


EXAMPLES: dict[str, Example] = {
    "accuracy": Example(
        [
            _math("$\\frac{1}{2}$", f"{THOUGHT}<answer>$0.5$</answer>"),
            _math("It is $x = 12$.", f"{THOUGHT}<answer>12</answer>"),
            _math("\\boxed{2\\sqrt{3}}", "So it is \\boxed{\\sqrt{12}}"),
            _math("$(1, 2)$", "<answer>$(1, 2)$</answer>"),
            _math("$12$", "<answer>$13$</answer>", expect=0.0),
            _math("$12$", "<answer>$9^{9^{9^9}}$</answer>", expect=0.0),
        ]
    ),
    "math_boxed": Example(
        [
            _math("$\\frac{1}{2}$", "So it is \\boxed{\\frac{1}{2}}."),
            _math("$12$", "First \\boxed{11}, no: \\boxed{12}"),
            _math("$12$", "The answer is 12.", expect=0.0),
        ]
    ),
    "cosine": Example(
        [
            _math("$12$", f"<answer>$12$</answer>{' ' * 79}", expect=0.75),
            _math("$12$", f"<answer>$12$</answer>{' ' * 179}", expect=0.5),
            _math("$12$", f"<answer>$13$</answer>{' ' * 79}", expect=-0.25),
        ],
        params={"max_len": 200, "unit": "characters"},
        low=-0.5,
    ),
    "length": Example(
        [
            _math("$12$", "<answer>$12$</answer>"),
            _math("$12$", f"{THOUGHT}{THOUGHT}<answer>$12$</answer>", expect=-0.5),
            _math("$12$", f"{THOUGHT}{THOUGHT}<answer>$13$</answer>", expect=-0.5),
        ],
        params={"unit": "characters"},
        full=0.5,
        low=-0.5,
    ),
    "countdown": Example(
        [
            _countdown([44, 19, 35], 98, "44 + 19 + 35"),
            _countdown([3, 7, 2], 8, "3 + 7 - 2 = 8"),
            _countdown([6, 4, 3], 8, "(6 / 3) * 4"),
            _countdown([44, 19, 35], 98, "98", expect=0.0),
            _countdown([44, 19, 35], 98, "44 + 19 + 35 + 0", expect=0.0),
            _countdown([44, 19, 35], 98, "44**19**35", expect=0.0),
            _countdown([7, 2], 3, "7 // 2", expect=0.0),
        ]
    ),
    "gsm8k": Example(
        [
            {"prompt": "How many?", "answer": "6 + 12 = 18\n#### 18", "completion": "Six and twelve.\n#### 18.00"},
            {"prompt": "How many?", "answer": "#### 1,234", "completion": "#### $1234"},
            {"prompt": "How many?", "answer": "#### 18", "completion": "It is 18.", "expect": 0.0},
        ]
    ),
    "multiple_choice": Example(
        [
            _choice("B", f"{THOUGHT}<answer>B</answer>"),
            _choice("B) Paris", "<answer>(B) Paris</answer>"),
            _choice("C", "<answer>C.</answer>"),
            _choice("B", "<answer>C</answer>", expect=0.0),
        ]
    ),
    "exact_match": Example(
        [
            {"prompt": "Capital?", "solution": "Paris", "completion": f"{THOUGHT}<answer> Paris </answer>"},
            {"prompt": "Capital?", "solution": "Café Müller", "completion": "Cafe\u0301  Mu\u0308ller"},
            {"prompt": "Capital?", "solution": "Paris", "completion": "<answer>paris</answer>", "expect": 0.0},
        ]
    ),
    "tool_call": Example(
        [
            {
                "prompt": "What is the weather in Paris?",
                "tool_calls": [{"name": "weather", "arguments": {"city": "Paris", "days": 1}}],
                "completion": '<tool_call>{"name": "weather", "arguments": {"days": 1.0, "city": "Paris"}}</tool_call>',
            },
            {
                "prompt": "What is the weather in Paris?",
                "tool_calls": [{"name": "weather", "arguments": {"city": "Paris"}}],
                "completion": '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>',
                "expect": 0.0,
            },
        ]
    ),
    "code": Example(
        [
            {
                "prompt": "Double the number that you read.",
                "tests": [{"input": "21\n", "output": "42\n"}, {"input": "-1\n", "output": "-2\n"}],
                "completion": f"{THOUGHT}\n```python\nprint(2 * int(input()))\n```",
            },
            {
                "prompt": "Write double(x).",
                "tests": ["assert double(21) == 42", "assert double(-1) == -2"],
                "completion": f"{THOUGHT}<answer>\n```python\ndef double(x):\n    return 2 * x\n```\n</answer>",
            },
            {
                "prompt": "Double the number that you read.",
                "tests": [{"input": "21\n", "output": "42\n"}, {"input": "-1\n", "output": "-2\n"}],
                "completion": "```python\nprint(42)\n```",
                "expect": 0.5,
            },
        ],
        params={"test_timeout_s": 0.3, "total_timeout_s": 0.6},
    ),
    "json_schema": Example(
        [
            {
                "prompt": "Describe Paris.",
                "json_schema": {"type": "object", "required": ["city"], "properties": {"city": {"type": "string"}}},
                "completion": f'{THOUGHT}<answer>{{"city": "Paris"}}</answer>',
            },
            {
                "prompt": "Name two primes.",
                "json_schema": '{"type": "array", "minItems": 2, "items": {"type": "integer"}}',
                "completion": "```json\n[2, 3]\n```",
            },
            {
                "prompt": "Describe Paris.",
                "json_schema": {"type": "object", "required": ["city"]},
                "completion": '<answer>{"town": "Paris"}</answer>',
                "expect": 0.0,
            },
        ]
    ),
    "format": Example(
        [
            {"completion": "<think>two and two</think>\n<answer>4</answer>"},
            {"completion": "<think>two and two</think><answer>4</answer><answer>5</answer>", "expect": 0.0},
            {"completion": "<answer>4</answer>", "expect": 0.0},
        ]
    ),
    "react_format": Example(
        [
            {"completion": "<think>I need it.</think>\nAction: search\nAction Input: Paris"},
            {"completion": "<think>I need it.</think>\nAction: search", "expect": 0.0},
        ]
    ),
    "tag_count": Example(
        [
            {"completion": "<think>two and two</think><answer>4</answer>"},
            {"completion": "<answer>4</answer>", "expect": 0.5},
        ],
        # It looks at the tags alone.
        allow=frozenset({"empty tags", "blank tags", "tags the wrong way round"}),
    ),
    "reasoning_steps": Example(
        [
            {"completion": "First, add. Next, divide. Finally, look."},
            {"completion": "Step 1: add.", "expect": 1 / 3},
        ]
    ),
    "think_language": Example(
        [
            {"completion": "<think>two and two</think><answer>4</answer>"},
            {"completion": "<think>two 二 and 四</think><answer>4</answer>", "expect": 0.5},
            {"completion": "<think>2 + 2</think>", "expect": None},
        ]
    ),
    "regex": Example(
        [{"completion": "It is 4."}, {"completion": "It is four.", "expect": 0.0}], params={"pattern": "[0-9]"}
    ),
    "repetition": Example(
        [
            {"completion": "every word of this sentence is another one"},
            {"completion": "so so so so so", "expect": -2 / 3},
        ],
        full=0.0,
        low=-1.0,
        # With fewer than three words there is nothing to repeat; without blanks, one word.
        allow=SAYS_NOTHING | {"repeated empty tags"},
    ),
    "soft_overlong": Example(
        [
            {"completion": "short", "completion_token_ids": [1, 2]},
            {"completion": "rather long", "completion_token_ids": list(range(75)), "expect": -0.5},
            {"completion": "too long", "completion_token_ids": list(range(500)), "expect": -1.0},
        ],
        params={"max_len": 100, "cache_len": 50},
        full=0.0,
        low=-1.0,
        allow=SAYS_NOTHING,
    ),
    "min_length": Example(
        [{"completion": "twelve chars"}, {"completion": "short", "expect": 0.0}],
        params={"min_chars": 10},
        # Its name says what it looks at.
        allow=SAYS_NOTHING | {"repeated empty tags"},
    ),
}
