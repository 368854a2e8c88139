"""The rewards that open-r1's script knows by name, `src/open_r1/rewards.py`."""

from collections.abc import Callable
from typing import Any

from ..config.open_r1_options import OPEN_R1
from .options import Options
from .rewards import Found, OurReward
from .run_file import RunFile

DEFAULT = ("accuracy", "format", "tag_count")
"""Rewards without --reward_funcs."""
_TESTS = "{}: the tests are read from the column tests, in the form of docs/rewards.md, not from verification_info"


def open_r1_reward(name: str, options: Options) -> OurReward | None:
    """Return which reward of ours is meant; None when it is none of open-r1's, or there is none like it."""
    make = _REWARDS.get(name)
    return make(options) if make else None


def report_parameters(options: Options, found: Found, run: RunFile) -> None:
    """Say which of the given options are parameters of the rewards, once all of these are found."""
    for name, (setting, _) in OPEN_R1.computed.items():
        if setting == "reward.params" and options.has(name):
            shown = options.shown(name)
            if name in options.unread:
                options.text(name)
                run.not_needed.append(f"{shown}: no reward of the run reads it")
            else:
                found.params_shown.append(shown)


def _number(options: Options, name: str) -> Any:
    given = options.number(name)
    return OPEN_R1.default(name) if given is None else given


def _cosine(options: Options) -> OurReward:
    """Right: from the greatest value down to the least. Wrong: what is called the least is that of the shortest."""
    params = {
        "max_len": _number(options, "cosine_max_len"),
        "unit": "characters",
        "min_len_value_correct": _number(options, "cosine_max_value_correct"),
        "max_len_value_correct": _number(options, "cosine_min_value_correct"),
        "min_len_value_wrong": _number(options, "cosine_min_value_wrong"),
        "max_len_value_wrong": _number(options, "cosine_max_value_wrong"),
    }
    return OurReward("cosine", params, "cosine stays at its last value beyond cosine_max_len, where open-r1's turns")


def _repetition(options: Options) -> OurReward:
    return OurReward(
        "repetition",
        {
            "n_grams": _number(options, "repetition_n_grams"),
            "max_penalty": _number(options, "repetition_max_penalty"),
        },
    )


def _overlong(options: Options) -> OurReward:
    return OurReward(
        "soft_overlong",
        {"max_len": _number(options, "max_completion_len"), "cache_len": _number(options, "soft_punish_cache")},
    )


_REWARDS: dict[str, Callable[[Options], OurReward]] = {
    "accuracy": lambda _: OurReward("accuracy"),
    "format": lambda _: OurReward("format", remark="format takes blocks without the line breaks that open-r1 wants"),
    "tag_count": lambda _: OurReward("tag_count", remark="tag_count takes tags without the line breaks around them"),
    "reasoning_steps": lambda _: OurReward(
        "reasoning_steps", remark="reasoning_steps counts `1.` at the start of each line, open-r1 of the text alone"
    ),
    "length": lambda _: OurReward(
        "length",
        {"unit": "characters"},
        "length compares the completions of a prompt, open-r1's those of a whole batch",
    ),
    "cosine": _cosine,
    "repetition_penalty": _repetition,
    "soft_overlong_punishment": _overlong,
    "code": lambda _: OurReward("code", remark=_TESTS.format("code")),
    "binary_code": lambda _: OurReward("code", {"partial": False}, _TESTS.format("binary_code")),
}
