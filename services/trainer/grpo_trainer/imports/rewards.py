"""The rewards of TRL and ms-swift: which of ours they are, and which stand in files of the user's."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path
from typing import Any

from .run_file import RunFile

BUILT_IN = {
    "accuracy", "code", "cosine", "countdown", "exact_match", "format", "gsm8k", "json_schema", "judge", "length",
    "math_boxed", "min_length", "multiple_choice", "react_format", "reasoning_steps", "regex", "repetition",
    "reward_model", "soft_overlong", "tag_count", "think_language", "tool_call",
}  # fmt: skip
"""The rewards of the reward service: no model of `--reward-model` may have the name of one."""


@dataclass(frozen=True)
class OurReward:
    """A reward of the reward service, with its parameters where they are not the default."""

    name: str
    params: Mapping[str, Any] = field(default_factory=dict)
    remark: str | None = None


@dataclass
class Found:
    """The rewards of a run, and what the reward server needs for them."""

    funcs: list[str] = field(default_factory=list)
    params: dict[str, dict[str, Any]] = field(default_factory=dict)
    params_shown: list[str] = field(default_factory=list)
    """The options that set some of them."""
    arguments: list[str] = field(default_factory=list)
    """Of `grpo-reward serve`."""
    left_out: list[int] = field(default_factory=list)
    """Positions of rewards that there are none of here."""

    def add(self, reward: OurReward) -> None:
        self.funcs.append(reward.name)
        if reward.params:
            self.params[reward.name] = dict(reward.params)


def add_plugin(found: Found, file: str) -> None:
    if file not in found.arguments:
        found.arguments += ["--plugin", file]


def add_models(found: Found, models: Sequence[str]) -> None:
    """Add the reward models of `--reward-model`: one as `reward_model`, several by the last parts of their names, as
    TRL and ms-swift call them."""
    if len(models) == 1:
        found.funcs.append("reward_model")
        found.arguments += ["--reward-model", *models]
    if len(models) < 2:
        return
    found.arguments.append("--reward-model")
    for model in models:
        last = re.sub(r"[^\w.-]", "-", model.rstrip("/").rpartition("/")[2]).strip("-.") or "model"
        last = f"{last}-model" if last in BUILT_IN else last
        taken = {"total", "environment"} | {name.rpartition(":")[2] for name in found.funcs}
        name = next(name for name in chain([last], (f"{last}-{i}" for i in count(2))) if name not in taken)
        found.funcs.append(name)
        found.arguments.append(f"{name}={model}")


def registered_in(name: str, plugins: Sequence[str]) -> str | None:
    """The plugin that registers `name` in ms-swift's `orms`, by its text; the file is not imported."""
    pattern = re.compile(rf"orms\s*\[\s*['\"]{re.escape(name)}['\"]\s*\]\s*=|['\"]{re.escape(name)}['\"]\s*:")
    for plugin in plugins:
        try:
            if pattern.search(Path(plugin).read_text(encoding="utf-8")):
                return plugin
        except (OSError, UnicodeDecodeError):
            continue
    return None


def registers(plugin: str) -> bool:
    """Whether a file that is there registers any reward in ms-swift's `orms`."""
    return re.search(r"\borms\s*[\[.=]", Path(plugin).read_text(encoding="utf-8")) is not None


def missing(plugins: Sequence[str]) -> list[str]:
    return [plugin for plugin in plugins if not Path(plugin).is_file()]


def set_rewards(run: RunFile, found: Found, shown: str, weights_shown: str) -> None:
    """Write the rewards and their parameters, and take out the weights of those that there are none of."""
    run.set("reward.reward_funcs", found.funcs, shown)
    if found.params:
        run.set(
            "reward.params", found.params, "; ".join(found.params_shown) or "as the other trainer has them by default"
        )
    weights = run.value("reward.reward_weights")
    if weights is not None and found.left_out:
        kept = [weight for i, weight in enumerate(weights) if i not in found.left_out]
        run.set("reward.reward_weights", kept, f"{weights_shown}, less those of rewards that are left out")
