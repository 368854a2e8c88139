"""An episode's line of completions.jsonl → its conversation, as the report and the live page show it.

A message that the policy said carries its turn: whether it was trained on, or why not. The line has messages on one
side and turns by segment on the other; they are put together by the text of a turn, from the last message back.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..algorithm.sequences import was_broken

MAX_MESSAGES = 24
"""Messages shown of a conversation, and turns outside of it; of a longer one the first and the last half."""
MIN_TEXT = 200
"""Characters that any text may have, however many there are."""
MAX_CALLS = 8
"""Calls shown of a message."""
MAX_NAME = 100
FORKS = {
    "branch": "another answer, or other messages, at this place",
    "edited": "an answer of the policy was edited",
    "tools": "other tools",
    "template": "the chat template refused to go on",
    "other_prompt": "another conversation",
}
"""Reasons of a session's record, in words."""

Cut = Callable[[str, int], str]
"""Makes a text fit for a page: no longer than so many characters."""
Record = Mapping[str, Any]


@dataclass(frozen=True)
class TurnShown:
    """What the trainer did with the tokens of a turn. `left_out` is None when they were trained on."""

    segment: int
    num_tokens: int
    left_out: str | None
    reward: float | None
    versions: str
    finish: str | None
    """None for an end that is as it should be."""
    fork: str | None
    """Where its segment begins and why; on the first turn of a segment that forks."""


@dataclass(frozen=True)
class CallShown:
    name: str
    arguments: str


@dataclass(frozen=True)
class MessageShown:
    """`turn` is None for what the policy did not say: observations, and answers that were put into its mouth."""

    role: str
    name: str | None
    thoughts: str | None
    text: str
    calls: list[CallShown]
    turn: TurnShown | None


@dataclass(frozen=True)
class EpisodeShown:
    """The messages behind the prompt, and the turns that are in none of them."""

    status: str
    cause: str | None
    attempt: int
    num_turns: int
    num_sampled: int
    num_trained: int
    messages: list[MessageShown]
    left_out_at: int
    """Behind how many of `messages` some are left out."""
    num_left_out: int
    aside: list[MessageShown]
    num_aside: int


def episode_shown(record: Record, *, budget: int, cut: Cut, mask_truncated: bool) -> EpisodeShown | None:
    """None for a line of a single turn.

    Args:
        budget: characters for the conversation and as many for the turns outside of it; `MIN_TEXT` a text at least.
        cut: how a text is shortened and made fit for the page.
        mask_truncated: `algorithm.mask_truncated_completions` of the run.
    """
    if not isinstance(record.get("messages"), list):
        return None
    turns, messages = _dicts(record.get("turns")), _dicts(record["messages"])
    prompt = record.get("prompt")
    opening = len(prompt) if isinstance(prompt, list) and messages[: len(prompt)] == prompt else 0
    otherwise = _left_out(record, mask_truncated=mask_truncated)
    forks = _forks(record, turns)
    said = _turns_of_messages(messages, opening, turns, record)
    behind = [(messages[at], said.get(at)) for at in range(opening, len(messages))]
    used = set(said.values())
    outside = [
        ({"role": "assistant", "content": turns[at].get("text")}, at) for at in range(len(turns)) if at not in used
    ]

    def shown(parts: Sequence[tuple[Record, int | None]]) -> list[MessageShown]:
        limit = fair_limit([size for message, _ in parts for size in _sizes(message)], budget)
        return [
            _message(message, None if at is None else _turn(turns[at], otherwise, forks.get(at), cut), limit, cut)
            for message, at in parts
        ]

    half = MAX_MESSAGES // 2
    kept = behind if len(behind) <= MAX_MESSAGES else [*behind[:half], *behind[-half:]]
    return EpisodeShown(
        status=cut(str(record.get("status")), MAX_NAME),
        cause=cut(str(record["cause"]), MAX_NAME) if record.get("cause") else None,
        attempt=_count(record.get("attempt")),
        num_turns=len(turns),
        num_sampled=sum(map(_num_tokens, turns)),
        num_trained=sum(_num_tokens(turn) for turn in turns if not (turn.get("masked") or otherwise)),
        messages=shown(kept),
        left_out_at=half,
        num_left_out=len(behind) - len(kept),
        aside=shown(outside[:MAX_MESSAGES]),
        num_aside=len(outside),
    )


def fair_limit(sizes: Sequence[int], budget: int) -> int:
    """The longest that a text may be for all of them to fit into `budget`: short ones leave their room to long ones."""
    left = budget
    for count, size in zip(range(len(sizes), 0, -1), sorted(sizes), strict=True):
        if size * count > left:
            return max(MIN_TEXT, left // count)
        left -= size
    return budget


def _left_out(record: Record, *, mask_truncated: bool) -> str | None:
    """Why no turn of the episode was trained on, as `episode_metrics` counts it; None when it may be."""
    if record.get("advantage") is None:
        others = was_broken(record.get("status"), record.get("cause"))
        return "failed" if others else "unscored"
    return "truncated" if mask_truncated and record.get("status") == "truncated" else None


def _forks(record: Record, turns: Sequence[Record]) -> dict[int, str]:
    """Number of a turn → how its segment forks, for the first turn of each."""
    first: dict[Any, int] = {}
    for at, turn in enumerate(turns):
        first.setdefault(turn.get("segment"), at)
    words = {}
    for fork in _dicts(record.get("forks")):
        reason = str(fork.get("reason"))
        begins = (
            "begins anew"
            if fork.get("parent") is None
            else f"forks from segment {fork['parent']} at token {fork.get('at')}"
        )
        if fork.get("segment") in first:
            words[first[fork["segment"]]] = f"segment {fork['segment']} {begins}: {FORKS.get(reason, reason)}"
    return words


# --- which message is which turn -----------------------------------------------------------------------------------


def _turns_of_messages(
    messages: Sequence[Record], opening: int, turns: Sequence[Record], record: Record
) -> dict[int, int]:
    """Number of a message → number of its turn.

    The conversation is that of one segment with what it continues: the one that accounts for the last answer, and then
    for most answers.
    """
    answers = [at for at in range(opening, len(messages)) if messages[at].get("role") == "assistant"]
    parents = {fork.get("segment"): (fork.get("parent"), fork.get("at")) for fork in _dicts(record.get("forks"))}
    by_segment: defaultdict[Any, list[int]] = defaultdict(list)
    for at, turn in enumerate(turns):
        by_segment[turn.get("segment")].append(at)
    best: dict[int, int] = {}
    best_line: list[int] = []
    for segment in by_segment:
        line = _line_of(segment, by_segment, parents, turns)
        found = _matched(messages, answers, turns, line)
        if _rank(answers, found) >= _rank(answers, best):
            best, best_line = found, line
    # As many turns as answers are the same ones, also where a parser has rewritten the text.
    return dict(zip(answers, best_line, strict=True)) if len(answers) == len(best_line) else best


def _rank(answers: Sequence[int], found: Mapping[int, int]) -> tuple[bool, int]:
    return bool(answers) and answers[-1] in found, len(found)


def _line_of(
    segment: Any, by_segment: Mapping[Any, list[int]], parents: Mapping[Any, Any], turns: Sequence[Record]
) -> list[int]:
    """The turns of a segment behind those of the segments that it continues, each up to its fork."""
    line, end, seen = list(by_segment[segment]), None, set[Any]()
    while segment in parents and segment not in seen:
        seen.add(segment)
        segment, end = parents[segment]
        own = by_segment.get(segment, [])
        line[:0] = [at for at in own if end is None or _count(turns[at].get("end")) <= _count(end)]
    return line


def _matched(
    messages: Sequence[Record], answers: Sequence[int], turns: Sequence[Record], line: Sequence[int]
) -> dict[int, int]:
    """Both in their order, from the end: each answer is of the latest turn that may have said it."""
    found: dict[int, int] = {}
    left = list(line)
    for answer in reversed(answers):
        place = next(
            (i for i in range(len(left) - 1, -1, -1) if _may_have_said(turns[left[i]], messages[answer])), None
        )
        if place is not None:
            found[answer] = left[place]
            del left[place:]
    return found


def _may_have_said(turn: Record, message: Record) -> bool:
    """Whether the text that was sampled has what the message says. Parsers move white space, and take calls apart."""
    sampled = "".join(str(turn.get("text") or "").split())
    said = "".join(_text(message).split())
    if said:
        return said in sampled
    names = [call.name for call in _calls(message)]
    return all(name in sampled for name in names) if names else True


# --- one message, one turn -----------------------------------------------------------------------------------------


def _message(message: Record, turn: TurnShown | None, limit: int, cut: Cut) -> MessageShown:
    thoughts, name = message.get("reasoning_content"), message.get("name")
    return MessageShown(
        role=cut(str(message.get("role")), MAX_NAME),
        name=cut(str(name), MAX_NAME) if name else None,
        thoughts=cut(str(thoughts), limit) if thoughts else None,
        text=cut(_text(message), limit),
        calls=[CallShown(cut(call.name, MAX_NAME), cut(call.arguments, limit)) for call in _calls(message)[:MAX_CALLS]],
        turn=turn,
    )


def _turn(turn: Record, otherwise: str | None, fork: str | None, cut: Cut) -> TurnShown:
    left_out, finish, reward = turn.get("masked") or otherwise, turn.get("finish_reason"), turn.get("reward")
    return TurnShown(
        segment=_count(turn.get("segment")),
        num_tokens=_num_tokens(turn),
        left_out=cut(str(left_out), MAX_NAME) if left_out else None,
        reward=float(f"{reward:.6g}") if isinstance(reward, int | float) and math.isfinite(reward) else None,
        versions=_versions(turn.get("versions")),
        finish=cut(str(finish), MAX_NAME) if finish not in ("stop", "tool_calls", None) else None,
        fork=cut(fork, MIN_TEXT) if fork else None,
    )


def _versions(versions: Any) -> str:
    """The policy version of all tokens, or the first and the last where a push came between."""
    numbers = [run[0] for run in versions or [] if isinstance(run, list | tuple) and run]
    if not numbers:
        return ""
    return f"v{numbers[0]}" if numbers[0] == numbers[-1] else f"v{numbers[0]} to v{numbers[-1]}"


def _text(message: Record) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(map(_part_text, _dicts(content)))


def _part_text(part: Record) -> str:
    """The text of a part; `<image>` for an image, as elsewhere on the page."""
    return str(part.get("text") or "") if part.get("type", "text") == "text" else f"<{part['type']}>"


def _calls(message: Record) -> list[CallShown]:
    functions = [call.get("function", call) for call in _dicts(message.get("tool_calls"))]
    return [CallShown(str(one.get("name")), str(one.get("arguments") or "")) for one in _dicts(functions)]


def _sizes(message: Record) -> list[int]:
    """Characters of all the texts of a message."""
    thoughts = str(message.get("reasoning_content") or "")
    return [len(_text(message)), len(thoughts), *(len(call.arguments) for call in _calls(message)[:MAX_CALLS])]


def _num_tokens(turn: Record) -> int:
    return _count(turn.get("end")) - _count(turn.get("start"))


def _count(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _dicts(value: Any) -> list[Record]:
    """What is an object of a list; the file may be a foreign one."""
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []
