"""The history behind the live page: thinned curves, the newest steps, the last completions. Bounded for any run.

The loop's thread writes, the server's thread reads. A reader that has everything up to `sequence` requests the steps
after it, so that a page gets the whole history once and then only new steps.
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
"""A reader that missed more steps gets the whole history again."""
RECENT_STEPS = 20
MAX_REWARD_CURVES = 6
SHOWN = (
    "reward", "accuracy", "eval_accuracy", "eval_greedy", "frac_reward_zero_std", "staleness/mean", "staleness/max",
    "completions/mean_length", "completions/clipped_ratio", "kl", "teacher/kl", "entropy", "grad_norm", "reward_std",
    "loss", "learning_rate", "entropy_coef", "chord/logprob", "clip_ratio/region_mean",
    "sampling/importance_sampling_ratio/mean", "sampling/importance_sampling_ratio/max",
    "sampling/sampling_logp_difference/mean", "step_time",
    *(f"time/{stage}_s" for stage in (*STAGES, OTHER)),
)  # fmt: skip
"""Metrics with a curve on the page, besides `rewards/<name>/mean`."""
LEFT_OUT = "samples/dropped_"
MAX_MISSING = 8
"""Pairs of reward and reason that the page shows."""
MAX_NAME = 200


class LiveHistory:
    """Thread-safe; every call returns at once."""

    def __init__(self, *, mask_truncated: bool = False) -> None:
        """`mask_truncated`: `algorithm.mask_truncated_completions` of the run."""
        self._mask_truncated = mask_truncated
        self._lock = threading.Lock()
        self._sequence = 0
        self._clear()

    def _clear(self) -> None:
        self._series: dict[str, ThinnedSeries] = {}
        self._new: deque[dict[str, Any]] = deque(maxlen=MAX_NEW_STEPS)
        self._recent: deque[dict[str, float]] = deque(maxlen=RECENT_STEPS)
        self._recent_is_old = False
        self._num_steps, self._besides_s = 0, 0.0
        self._left_out: dict[str, int] = {}
        self._missing: list[dict[str, Any]] = []
        self._num_tokens = 0.0
        self._groups: dict[str, Any] | None = None

    def restore(self, run_dir: Path, *, through_step: int) -> None:
        """Begin anew with the steps up to `through_step` of metrics.jsonl: a run is resumed, or has gone back.

        Means over these steps are shown until this process finishes a step: it may run on another machine.
        """
        with self._lock:
            self._clear()
            self._sequence += self._sequence > 0  # a reader of what was before misses more than `_new` will hold
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
            if step > 0:  # step 0 is the evaluation before the first step
                self._num_steps += 1
                self._besides_s += _besides(shown)
                self._recent.append(
                    {name: value for name, value in shown.items() if name.startswith("time/") or name == "step_time"}
                    | {"num_tokens": numbers.get("num_tokens", self._num_tokens) - self._num_tokens}
                )
            self._num_tokens = numbers.get("num_tokens", self._num_tokens)

    def complete(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Add late numbers to the last step; they make no new step."""
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
        """Keep the groups of a step with the largest spread; a step without groups keeps the earlier ones."""
        if groups:
            shown = {
                "step": step,
                "count": len(groups),
                "groups": groups_shown(groups, mask_truncated=self._mask_truncated),
            }
            with self._lock:
                self._groups = shown

    def show_missing(self, missing: Sequence[MissingScores]) -> None:
        """Keep the missing scores of the last step."""
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
        """Return (sequence, curves). A curve has steps, values, how many steps a point stands for and how many the last
        point, the newest value by itself and its step."""
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
        """Return (sequence, steps after it), or None when some of these steps are no longer kept one by one."""
        with self._lock:
            missing = self._sequence - sequence
            if missing > len(self._new) or missing < 0:
                return None
            new = [] if missing == 0 else list(self._new)[-missing:]
            return self._sequence, new

    def recent(self) -> dict[str, Any]:
        """Return means over the last `RECENT_STEPS` steps, the samples left out in the whole run, and the missing
        scores of the last step.

        `usual_step_s` estimates the time left: one long outage does not change the median, and evaluating and saving,
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
    """Seconds of the stages that do not come at every step."""
    return numbers.get("time/eval_s", 0.0) + numbers.get("time/save_s", 0.0)


def _with_every_stage(step: int, numbers: dict[str, float]) -> dict[str, float]:
    """Add every stage at every step, so that they can be stacked; `other` is the time outside all stages.

    Step 0 gets none: its evaluation takes longer than a step and would dwarf the others.
    """
    rest = {name: value for name, value in numbers.items() if not name.startswith("time/")}
    if step == 0:
        return rest
    return rest | {f"time/{stage}_s": value for stage, value in seconds_by_stage(numbers).items()}
