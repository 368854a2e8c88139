"""completions.jsonl → a few prompts with their best and worst completions, at steps spread over the run."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .episode_shown import EpisodeShown, episode_shown
from .jsonl import read_lines_of_parts
from .run_files import COMPLETIONS_FILE

MAX_STEPS = 7
PROMPTS_PER_STEP = 2
MAX_CHARACTERS = 4000
"""Longest text on the page, in characters. A longer text keeps its end as well: the answer is there."""


@dataclass(frozen=True)
class RewardShown:
    """`text` is the score, or the status when there is none."""

    name: str
    text: str
    status: str
    detail: str | None


@dataclass(frozen=True)
class CompletionShown:
    """`episode` is None for a single turn, whose text says all."""

    text: str
    total: float | None
    advantage: float | None
    rewards: list[RewardShown]
    finish_reason: str
    num_tokens: int | None
    episode: EpisodeShown | None


@dataclass(frozen=True)
class PromptShown:
    """One group. `worst` is None when no completion was worse than the best."""

    prompt: str
    best: CompletionShown
    worst: CompletionShown | None
    num_completions: int
    num_unscored: int


@dataclass
class StepShown:
    step: int
    prompts: list[PromptShown] = field(default_factory=list)


def read_samples(run_dir: Path, *, mask_truncated: bool = False) -> list[StepShown]:
    """Read all parts of the file once, line by line, keeping a few groups per step and the current step's lines.

    `mask_truncated`: `algorithm.mask_truncated_completions` of the run.
    """
    found: dict[int, list[list[dict[str, Any]]]] = {}
    current: int | None = None
    first_step: int | None = None
    lines: list[bytes] = []
    for step, line in read_lines_of_parts(run_dir / COMPLETIONS_FILE):
        if step != current:
            if current is not None and (current == first_step or is_landmark(current)):
                found[current] = _most_telling(_groups(lines))
            first_step = step if first_step is None else first_step
            current, lines = step, []
        lines.append(line)
    if current is not None:
        found[current] = _most_telling(_groups(lines))
    return [
        StepShown(step, [_show(group, mask_truncated) for group in found[step]])
        for step in spread(sorted(found), MAX_STEPS)
    ]


def is_landmark(step: int) -> bool:
    """1, 2, 5, 10, 20, 50, 100 …"""
    while step >= 10 and step % 10 == 0:
        step //= 10
    return step in (1, 2, 5)


def spread(steps: Sequence[int], count: int) -> list[int]:
    """Return at most `count` of the sorted steps, including the first and the last."""
    if len(steps) <= count:
        return list(steps)
    places = [round(index * (len(steps) - 1) / (count - 1)) for index in range(count)]
    return [steps[place] for place in places]


def _groups(lines: Sequence[bytes]) -> Iterator[list[dict[str, Any]]]:
    """The samples of each prompt, in the order of the file."""
    groups: dict[Any, list[dict[str, Any]]] = {}
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        groups.setdefault(record.get("group"), []).append(record)
    yield from groups.values()


def _most_telling(groups: Iterator[list[dict[str, Any]]]) -> list[list[dict[str, Any]]]:
    """Return the groups whose totals lie farthest apart; of equal groups the first."""
    return sorted(groups, key=_spread_of, reverse=True)[:PROMPTS_PER_STEP]


def _spread_of(group: Sequence[dict[str, Any]]) -> float:
    totals = [sample["total"] for sample in group if _is_number(sample.get("total"))]
    return max(totals) - min(totals) if totals else -1.0


def _show(group: Sequence[dict[str, Any]], mask_truncated: bool) -> PromptShown:
    scored = [sample for sample in group if _is_number(sample.get("total"))]
    best = max(scored, key=lambda sample: sample["total"]) if scored else group[0]
    worst = min(scored, key=lambda sample: sample["total"]) if scored else best
    differs = bool(scored) and worst["total"] < best["total"]
    return PromptShown(
        prompt=shorten(prompt_text(group[0].get("prompt"))),
        best=_completion(best, mask_truncated),
        worst=_completion(worst, mask_truncated) if differs else None,
        num_completions=len(group),
        num_unscored=len(group) - len(scored),
    )


def _completion(sample: dict[str, Any], mask_truncated: bool) -> CompletionShown:
    rewards = sample.get("rewards")
    return CompletionShown(
        text=shorten(str(sample.get("completion", ""))),
        total=sample["total"] if _is_number(sample.get("total")) else None,
        advantage=sample["advantage"] if _is_number(sample.get("advantage")) else None,
        rewards=[_reward(name, result) for name, result in rewards.items()] if isinstance(rewards, dict) else [],
        finish_reason=str(sample.get("finish_reason", "")),
        num_tokens=sample.get("num_tokens"),
        episode=episode_shown(sample, budget=MAX_CHARACTERS, cut=shorten, mask_truncated=mask_truncated),
    )


def _reward(name: str, result: dict[str, Any]) -> RewardShown:
    score, status = result.get("score"), str(result.get("status", "error"))
    detail = result.get("detail")
    text = f"{score:.2f}" if _is_number(score) else status
    return RewardShown(name, text, status, shorten(str(detail), 300) if detail else None)


def prompt_text(prompt: Any) -> str:
    """Render messages as text, each with its role first."""
    if isinstance(prompt, list):
        return "\n\n".join(f"[{message.get('role')}]\n{_message_text(message)}" for message in prompt)
    return str(prompt or "")


def shorten(text: str, limit: int = MAX_CHARACTERS) -> str:
    if len(text) <= limit:
        return text
    head = limit * 2 // 3
    tail = limit - head
    return f"{text[:head]}\n… {len(text) - limit:,} characters left out …\n{text[-tail:]}"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _part_text(part: Mapping[str, Any]) -> str:
    return str(part["text"]) if "text" in part else f"<{part.get('type')}>"


def _message_text(message: Mapping[str, Any]) -> str:
    """The content, `<image>` for an image, and the tool calls as JSON below it."""
    content = message.get("content") or ""
    text = content if isinstance(content, str) else "".join(map(_part_text, content))
    calls = [json.dumps(call.get("function", call), ensure_ascii=False) for call in message.get("tool_calls") or []]
    return "\n".join(filter(None, [text, *calls]))
