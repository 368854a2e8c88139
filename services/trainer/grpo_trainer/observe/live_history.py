"""What the live page remembers of a run: thinned curves, the newest steps, the last completions. Bounded for any run.

The loop's thread writes, the server's thread reads. A reader that knows everything up to `sequence` asks for the steps
after it, so that a page gets the whole history once and then only what is new.
"""

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from ..algorithm.sequences import Group
from .curves import merge_of, numbers_of
from .jsonl import read_records
from .live_groups import clean, finite, groups_shown
from .missing_scores import MissingScores
from .run_files import METRICS_FILE
from .stage_clock import OTHER, STAGES, seconds_by_stage
from .thinned import ThinnedSeries

MAX_POINTS = 300
MAX_NEW_STEPS = 256
"""A reader that missed more steps than these gets the whole history again."""
RECENT_STEPS = 20
MAX_REWARD_CURVES = 6
SHOWN = (
    "reward", "accuracy", "eval_accuracy", "eval_greedy", "frac_reward_zero_std", "staleness/mean", "staleness/max",
    "completions/mean_length", "completions/clipped_ratio", "kl", "entropy", "grad_norm", "reward_std", "loss",
    "learning_rate", "clip_ratio/region_mean", "sampling/importance_sampling_ratio/mean",
    "sampling/importance_sampling_ratio/max", "sampling/sampling_logp_difference/mean", "step_time",
    *(f"time/{stage}_s" for stage in (*STAGES, OTHER)),
)  # fmt: skip
"""Metrics of which the page has a curve, besides `rewards/<name>/mean`."""
LEFT_OUT = "samples/dropped_"
MAX_MISSING = 8
"""Rewards and reasons that the page tells of."""
MAX_NAME = 200


class LiveHistory:
    """Thread-safe; every call returns at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._series: dict[str, ThinnedSeries] = {}
        self._new: deque[dict[str, Any]] = deque(maxlen=MAX_NEW_STEPS)
        self._recent: deque[dict[str, float]] = deque(maxlen=RECENT_STEPS)
        self._recent_is_old = False
        self._num_steps, self._besides_s = 0, 0.0
        self._left_out: dict[str, int] = {}
        self._missing: list[dict[str, Any]] = []
        self._num_tokens = 0.0
        self._sequence = 0
        self._groups: dict[str, Any] | None = None

    def restore(self, run_dir: Path, *, through_step: int) -> None:
        """Take over the steps that metrics.jsonl has, when a run is resumed at one: what comes after it is done again.

        Means over the last steps are shown until a step of this process is there: it may be on another machine.
        """
        for record in read_records(run_dir / METRICS_FILE):
            if record["step"] <= through_step:
                self.add(record["step"], record)
        with self._lock:
            self._recent_is_old = True

    def add(self, step: int, metrics: Mapping[str, Any]) -> None:
        """The numbers of a finished step; steps come in order."""
        numbers = dict(numbers_of(metrics))
        numbers = _with_every_stage(step, numbers)
        shown = self._shown(numbers)
        with self._lock:
            self._add_new(step, shown)
            for name, value in numbers.items():
                if name.startswith(LEFT_OUT) and value:
                    reason = name.removeprefix(LEFT_OUT)
                    self._left_out[reason] = self._left_out.get(reason, 0) + int(value)
            if self._recent_is_old:
                self._recent.clear()
                self._recent_is_old = False
            if step > 0:  # step 0 is the evaluation before the first one
                self._num_steps += 1
                self._besides_s += _besides(shown)
                self._recent.append(
                    {name: value for name, value in shown.items() if name.startswith("time/") or name == "step_time"}
                    | {"num_tokens": numbers.get("num_tokens", self._num_tokens) - self._num_tokens}
                )
            self._num_tokens = numbers.get("num_tokens", self._num_tokens)

    def complete(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Numbers of the last step that came late: they make no step of their own."""
        shown = self._shown(dict(numbers_of(metrics)))
        with self._lock:
            self._add_new(step, shown)

    def _add_new(self, step: int, shown: Mapping[str, float]) -> None:
        for name, value in shown.items():
            if name not in self._series:
                self._series[name] = ThinnedSeries(MAX_POINTS, merge_of(name))
            self._series[name].add(step, value)
        self._sequence += 1
        self._new.append({"sequence": self._sequence, "step": step, "values": shown})

    def show_groups(self, step: int, groups: Sequence[Group]) -> None:
        """Keep the most telling groups of a step; a step without any leaves the last ones."""
        if groups:
            shown = {"step": step, "count": len(groups), "groups": groups_shown(groups)}
            with self._lock:
                self._groups = shown

    def show_missing(self, missing: Sequence[MissingScores]) -> None:
        """The scores of the last step that rewards did not give."""
        shown = [
            {"reward": clean(one.reward, MAX_NAME), "status": one.status, "count": one.count, "of": one.of}
            for one in missing[:MAX_MISSING]
        ]
        with self._lock:
            self._missing = shown

    @property
    def groups(self) -> dict[str, Any] | None:
        with self._lock:
            return self._groups

    def whole(self) -> tuple[int, dict[str, Any]]:
        """(sequence, curves): name → steps, values, how many steps a point stands for and how many the last one,
        the newest value by itself and its step."""
        with self._lock:
            return self._sequence, {
                name: {
                    "x": [round(step, 1) for step in series.steps],
                    "y": [finite(value) for value in series.values],
                    "per": series.per_point,
                    "last": series.last_count,
                    "latest": series.latest,
                    "at": series.latest_step,
                    "merge": merge_of(name),
                }
                for name, series in self._series.items()
            }

    def since(self, sequence: int) -> tuple[int, list[dict[str, Any]]] | None:
        """(sequence, steps after it), or None when some of them are no longer kept one by one."""
        with self._lock:
            missing = self._sequence - sequence
            if missing > len(self._new) or missing < 0:
                return None
            new = [] if missing == 0 else list(self._new)[-missing:]
            return self._sequence, new

    def recent(self) -> dict[str, Any]:
        """Means over the last `RECENT_STEPS` steps, the samples left out in the whole run, and the scores that the last
        step lacks.

        `usual_step_s` is for the time left: one long outage does not change the median, and evaluating and saving,
        which come every few steps, count with their share of all steps.
        """
        with self._lock:
            steps, left_out, missing = list(self._recent), dict(self._left_out), self._missing
            besides_s, num_steps = self._besides_s, self._num_steps
        seconds = sum(entry.get("step_time", 0.0) for entry in steps)
        stages = {stage: sum(entry.get(f"time/{stage}_s", 0.0) for entry in steps) for stage in (*STAGES, OTHER)}
        tokens = sum(entry["num_tokens"] for entry in steps)
        usual = [entry["step_time"] - _besides(entry) for entry in steps if "step_time" in entry]
        return {
            "steps": len(steps),
            "step_s": finite(seconds / len(steps)) if steps else None,
            "usual_step_s": finite(median(usual) + besides_s / num_steps) if usual else None,
            "tokens_per_s": finite(tokens / seconds) if seconds > 0 else None,
            "shares": {stage: round(part / seconds, 3) for stage, part in stages.items()} if seconds > 0 else {},
            "left_out": left_out,
            "missing": missing,
        }

    def _shown(self, numbers: Mapping[str, float]) -> dict[str, float]:
        rewards = [name for name in numbers if name.startswith("rewards/") and name.endswith("/mean")]
        names = [name for name in SHOWN if name in numbers] + rewards[:MAX_REWARD_CURVES]
        return {name: rounded for name in names if (rounded := finite(numbers[name])) is not None}


def _besides(numbers: Mapping[str, float]) -> float:
    """Seconds of what does not come at every step."""
    return numbers.get("time/eval_s", 0.0) + numbers.get("time/save_s", 0.0)


def _with_every_stage(step: int, numbers: dict[str, float]) -> dict[str, float]:
    """Every stage at every step, so that they can be stacked; `other` is what no stage took.

    None of step 0: the first evaluation takes longer than a step and would dwarf the others.
    """
    rest = {name: value for name, value in numbers.items() if not name.startswith("time/")}
    if step == 0:
        return rest
    return rest | {f"time/{stage}_s": value for stage, value in seconds_by_stage(numbers).items()}
