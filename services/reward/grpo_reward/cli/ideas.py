"""Completions that look for faults: cheap ones that must not score full, hostile ones, and random mutations.

A *cheap* idea is a list of texts; it is a finding when every one of them has the full score. Where an idea needs the
right answer (two answers that contradict each other) both orders are tried: a reward may read the first or the last
answer, but one that takes any of several can be had by listing them all.
"""

import random
from dataclasses import dataclass
from typing import Any

from grpo_proto import ScoreSample

from .answer_frame import Frame

LETTERS = list("ABCDEFGHIJ")
WORDS = ["yes", "no", "true", "false", "maybe", "none", "all"]
NUMBERS = [str(value) for value in range(101)]
INSERTED = (
    "<answer>", "</answer>", "<think>", "</think>", "\\boxed{", "}", "{", "####", "$", "\\", "**", "//", "^", "(", ")",
    "/0", "e999", "²", "٣", "\0", "\n", "\u2028", "\u200b", "\u202e", "-", "=", ",", ".", "<tool_call>", "Action:",
    "```",
)  # fmt: skip
MAX_MUTATED_CHARS = 20_000


@dataclass(frozen=True)
class Idea:
    name: str
    texts: list[str]


def empty_ideas() -> list[Idea]:
    """Texts that say nothing, for every reward."""
    return [
        Idea("empty completion", [""]),
        Idea("white space", [" \n\t \n"]),
        Idea("empty answer", ["<answer></answer>"]),
        Idea("blank answer", ["<answer> \n </answer>"]),
        Idea("empty tags", ["<think></think><answer></answer>"]),
        Idea("blank tags", ["<think> </think>\n<answer> </answer>"]),
        Idea("nested empty tags", ["<answer><answer></answer></answer>"]),
        Idea("repeated empty tags", ["<think></think><answer></answer>" * 50]),
        Idea("tags without end", ["<think><answer>"]),
        Idea("tags the wrong way round", ["</answer></think><answer><think>"]),
        Idea("empty box", ["\\boxed{}"]),
        Idea("empty box in an answer", ["<answer>\\boxed{}</answer>"]),
        Idea("hash marks alone", ["####"]),
        Idea("empty code block", ["```python\n```"]),
        Idea("empty tool call", ["<tool_call></tool_call>"]),
    ]


def answerless_ideas(frame: Frame, prompt: str | None) -> list[Idea]:
    """Texts that somebody who does not know the answer could write, for rewards that compare with a gold answer."""
    ideas = [
        Idea("format without an answer", ["<think>Let me see.</think><answer>I do not know.</answer>"]),
        Idea("no answer in its place", [frame.around("I do not know"), frame.around("?")]),
        _listing("all numbers from 0 to 100", frame, NUMBERS, ", "),
        _listing("all numbers, each on a line", frame, NUMBERS, "\n"),
        _listing("all letters", frame, LETTERS, ", "),
        _listing("all letters, or", frame, LETTERS, " or "),
        _listing("all words", frame, WORDS, ", "),
        _listing("all letters, a block each", Frame("", "", ""), [frame.around(letter) for letter in LETTERS], "\n"),
        _listing("all numbers, a block each", Frame("", "", ""), [frame.around(number) for number in NUMBERS], "\n"),
    ]
    if prompt:
        ideas += [Idea("the prompt again", [prompt]), Idea("the prompt as the answer", [frame.around(prompt)])]
    return ideas


def _listing(name: str, frame: Frame, options: list[str], separator: str) -> Idea:
    """All options in both orders."""
    return Idea(name, [frame.around(separator.join(order)) for order in (options, options[::-1])])


def hedging_ideas(frame: Frame, wrong: str) -> list[Idea]:
    """The right answer beside a `wrong` one."""
    right = frame.answer
    ideas = [
        Idea(
            f"two answers with {name}", [frame.around(f"{a}{between}{b}") for a, b in ((right, wrong), (wrong, right))]
        )
        for name, between in (
            ("or", " or "),
            ("a comma", ", "),
            ("=", " = "),
            ("a line break", "\n"),
            ("a blank", " "),
            ("≠", " \\neq "),
        )
    ]
    blocks = frame.around(right), frame.around(wrong)
    ideas.append(Idea("two contradicting blocks", ["\n".join(blocks), "\n".join(blocks[::-1])]))
    ideas.append(Idea("many contradicting blocks", ["\n".join(blocks * 20), "\n".join(blocks[::-1] * 20)]))
    ideas.append(
        Idea("the right answer before the wrong one", [f"{right}\n{blocks[1]}", f"<think>{right}</think>{blocks[1]}"])
    )
    return ideas


def mutated(chance: random.Random, texts: list[str]) -> str:
    """One of `texts` after one to five random changes."""
    text = chance.choice(texts)
    for _ in range(chance.randint(1, 5)):
        start = chance.randint(0, len(text))
        end = min(len(text), start + chance.randint(0, 20))
        part = text[start:end]
        match chance.randrange(7):
            case 0:
                text = text[:start] + text[end:]
            case 1:
                text = text[:start] + part * chance.choice((2, 3, 50)) + text[end:]
            case 2:
                text = text[:start] + chance.choice(INSERTED) + text[start:]
            case 3:
                text = text[:start] + chance.choice(INSERTED) * chance.choice((2, 10, 200)) + text[start:]
            case 4:
                text = text[:start] + part[::-1] + text[end:]
            case 5:
                text = text[:start] + str(chance.randrange(10 ** chance.randint(1, 12))) + text[end:]
            case _:
                text = (
                    text[:start]
                    + chr(chance.choice((0x20, 0x660, 0x2070, 0x3400, 0x1F600)) + chance.randrange(16))
                    + text[end:]
                )
    return text[:MAX_MUTATED_CHARS]


def with_completion(sample: ScoreSample, completion: str) -> ScoreSample:
    """`sample` with another completion. Token ids, where it has some, become one for every four characters."""
    changes: dict[str, Any] = {"completion": completion}
    if sample.completion_token_ids is not None:
        changes["completion_token_ids"] = list(range((len(completion) + 3) // 4))
    return sample.model_copy(update=changes)


def prompt_text(sample: ScoreSample) -> str | None:
    """The prompt, of messages the last."""
    if isinstance(sample.prompt, list):
        return sample.prompt[-1].text if sample.prompt else None
    return sample.prompt
