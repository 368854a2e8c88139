"""The head of the report: facts about the run, headline numbers, configuration."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from .curves import Curves
from .progress import readable_duration
from .run_files import CONFIG_FILE, SUMMARY_FILE

_SECRET_KEY = re.compile(r"(?i)(^|_|-)(api_?key|token|secret|password|credentials?)$")


@dataclass(frozen=True)
class Headline:
    """One number of the run at its beginning and its end, as texts; `before` is None when it was measured once."""

    label: str
    before: str | None
    after: str
    change: str | None
    rises: bool
    note: str


def read_config(run_dir: Path) -> dict[str, Any]:
    """Read the resolved configuration; empty when there is none."""
    try:
        config = yaml.safe_load((run_dir / CONFIG_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return config if isinstance(config, dict) else {}


def best_checkpoint(run_dir: Path, curves: Curves) -> list[tuple[str, str]]:
    """Return the (name, value) pair of the best checkpoint; none without one, or where the summary is an older one."""
    try:
        summary = json.loads((run_dir / SUMMARY_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    if not summary.get("best_checkpoint") or summary["steps"] != curves.last_step:
        return []
    return [("Best checkpoint", f"{summary['best_checkpoint']}: {summary['best_metric']} {summary['best_value']:.4g}")]


def config_text(config: Mapping[str, Any]) -> str:
    """Dump as YAML, hiding the values of keys named like secrets: reports are shared."""
    return yaml.safe_dump(_without_secrets(config), sort_keys=False, allow_unicode=True) if config else ""


def facts_of(config: Mapping[str, Any], curves: Curves) -> list[tuple[str, str]]:
    """Return the (name, value) pairs that are present."""
    return list(_facts(config, curves))


def _facts(config: Mapping[str, Any], curves: Curves) -> Iterator[tuple[str, str]]:
    def setting(*path: str) -> Any:
        value: Any = config
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        return value

    if curves.last_step is not None:
        planned = setting("max_steps")
        yield "Steps", f"{curves.last_step} of {planned}" if planned else str(curves.last_step)
    if seconds := sum(curves.stage_totals.values()):
        yield "Time", readable_duration(seconds)
    if curves.num_tokens:
        yield "Tokens", f"{curves.num_tokens:,.0f}"
    for name, value in (
        ("Model", setting("model", "name_or_path")),
        ("Data", setting("data", "dataset") or ", ".join(setting("data", "datasets") or ())),
        # Read the names from what was measured: a run file has no list of the rewards of episodes.
        (
            "Rewards",
            ", ".join(curves.matching("rewards/", "/mean") or map(str, setting("reward", "reward_funcs") or ())),
        ),
        ("Completions per prompt", setting("rollout", "num_generations")),
        ("Completions per step", setting("rollout", "generation_batch_size")),
        ("Loss", setting("algorithm", "loss") or setting("algorithm", "loss_type")),
        ("β (KL)", setting("algorithm", "beta")),
        ("Staleness bound", setting("algorithm", "max_staleness")),
        ("Learning rate", setting("optimizer", "learning_rate")),
        ("Seed", setting("seed")),
    ):
        if value is not None and value != "":
            yield name, f"{value:g}" if isinstance(value, float) else str(value)


def headlines_of(curves: Curves) -> list[Headline]:
    """Held-out accuracy before and after, and the reward at both ends."""
    headlines = []
    for metric, label in (
        ("eval_accuracy", "Held-out accuracy, sampled"),
        ("eval_greedy", "Held-out accuracy, greedy"),
    ):
        if series := curves.get(metric):
            first, last = round(series.steps[0]), round(series.steps[-1])
            note = f"step {first} → step {last}" if len(series) > 1 else f"step {last}"
            headlines.append(_headline(label, series.values, note, percent=True))
    if series := curves.get("reward"):
        part = max(1, len(series) // 10)
        ends = [_mean(series.values[:part]), _mean(series.values[-part:])]
        note = "means of the first and last tenth of the steps" if part > 1 else "first and last step"
        headlines.append(_headline("Reward", ends if len(series) > 1 else series.values, note, percent=False))
    return headlines


def _headline(label: str, values: Sequence[float], note: str, *, percent: bool) -> Headline:
    def text(value: float) -> str:
        return f"{value:.1%}" if percent else f"{value:.3f}"

    first, last = values[0], values[-1]
    if len(values) < 2:
        return Headline(label, None, text(last), None, True, note)
    difference = last - first
    change = f"{difference * 100:+.1f} points" if percent else f"{difference:+.3f}"
    return Headline(label, text(first), text(last), change, difference >= 0, note)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _without_secrets(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {
            key: "***" if isinstance(item, str) and _SECRET_KEY.search(str(key)) else _without_secrets(item)
            for key, item in value.items()
        }
    return [_without_secrets(item) for item in value] if isinstance(value, list) else value
