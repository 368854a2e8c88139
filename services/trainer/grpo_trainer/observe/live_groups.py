"""Groups of a step → the few groups that the live page shows, cut to a bounded size."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from grpo_proto import RewardScore

from ..algorithm.sequences import Episode, Group
from .completions import conversation_record, opening_record
from .episode_shown import episode_shown
from .report_samples import prompt_text, shorten

MAX_GROUPS = 3
MAX_COMPLETIONS = 8
"""Completions shown of a group; of a larger group the best four and the worst four."""
MAX_REWARDS = 8
MAX_TEXT = 3000
"""Characters of one text, or of an episode's conversation. Beginning and end stay: the answer is at the end."""
MAX_DETAIL = 200
TURNING = {code: f"\\u{code:04x}" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))}
"""Characters that reverse the direction of the text around them: shown by their numbers, or they deceive a reader."""


def groups_shown(groups: Sequence[Group], *, mask_truncated: bool = False) -> list[dict[str, Any]]:
    """Return the groups whose totals lie farthest apart, where the policy learns most; of equal groups the first."""
    chosen = sorted(groups, key=_spread_of, reverse=True)[:MAX_GROUPS]
    return [_group(group, mask_truncated) for group in chosen]


def _group(group: Group, mask_truncated: bool) -> dict[str, Any]:
    ranked = sorted(group.episodes, key=_rank)
    shown = ranked
    if len(ranked) > MAX_COMPLETIONS:
        half = MAX_COMPLETIONS // 2
        shown = ranked[:half] + ranked[-(MAX_COMPLETIONS - half) :]
    return {
        "position": group.position,
        "row": group.row.index,
        "prompt": clean(prompt_text(_prompt(group))),
        "count": len(ranked),
        "unscored": sum(finite(episode.total) is None for episode in ranked),
        "completions": [_completion(episode, mask_truncated) for episode in shown],
    }


def _prompt(group: Group) -> Any:
    """The row's prompt, or what an environment has opened with."""
    opened = next((one for one in group.episodes if one.opening), None)
    return opened.transcript[: opened.opening] if opened else group.row.prompt


def _completion(episode: Episode, mask_truncated: bool) -> dict[str, Any]:
    return {
        "text": clean(episode.text),
        "total": finite(episode.total),
        "advantage": finite(episode.advantage),
        "rewards": [_reward(name, result) for name, result in list(episode.rewards.items())[:MAX_REWARDS]],
        "finish": episode.finish_reason,
        "tokens": episode.num_sampled,
        "version": episode.oldest_version,
        **({"episode": _conversation(episode, mask_truncated)} if episode.transcript else {}),
    }


def _conversation(episode: Episode, mask_truncated: bool) -> dict[str, Any]:
    record = {"prompt": opening_record(episode), "advantage": episode.advantage, **conversation_record(episode)}
    shown = episode_shown(record, budget=MAX_TEXT, cut=clean, mask_truncated=mask_truncated)
    return asdict(shown) if shown else {}


def _reward(name: str, result: RewardScore) -> dict[str, Any]:
    shown = {"name": clean(name, MAX_DETAIL), "score": finite(result.score), "status": result.status}
    return shown if not result.detail else {**shown, "detail": clean(result.detail, MAX_DETAIL)}


def clean(text: str, limit: int = MAX_TEXT) -> str:
    """Cut `text`, replace half characters, which have no UTF-8 form, by question marks, and disarm `TURNING`."""
    return shorten(text, limit).encode("utf-8", "replace").decode("utf-8").translate(TURNING)


def finite(value: float | None) -> float | None:
    """Round to six digits; None for no number, for NaN and for infinity, which JSON lacks."""
    return float(f"{value:.6g}") if value is not None and math.isfinite(value) else None


def _spread_of(group: Group) -> float:
    totals = [total for episode in group.episodes if (total := finite(episode.total)) is not None]
    return max(totals) - min(totals) if totals else -1.0


def _rank(episode: Episode) -> float:
    """Best first, completions without a score last."""
    total = finite(episode.total)
    return math.inf if total is None else -total
