"""summary.json: the result of a run in one small file. Null where nothing was measured."""

import json
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..atomic_file import write_text_atomically
from ..config.run_config import RunConfig
from .run_files import SUMMARY_FILE

log = logging.getLogger(__name__)


@dataclass
class RunTotals:
    """Totals of a run; a resumed run continues them."""

    num_tokens: int = 0
    seconds_per_stage: dict[str, float] = field(default_factory=dict)
    wall_s: float = 0.0
    evaluation_before: dict[str, float] = field(default_factory=dict)
    evaluation_after: dict[str, float] = field(default_factory=dict)
    evaluated_step: int | None = None
    """The step after which `evaluation_after` was made."""


def write_report_and_summary(
    config: RunConfig, totals: RunTotals, *, steps: int, facts: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Write summary.json, with further `facts`, then report.html, at the very end of a run. Returns the summary.

    An error of the report is only logged: the run is done. Raises OSError when the summary cannot be
    written.
    """
    summary = write_summary(
        config.run_dir,
        steps=steps,
        wall_s=totals.wall_s,
        seconds_per_stage=totals.seconds_per_stage,
        evaluation_before=totals.evaluation_before,
        # Not that of an earlier step: a stop may come before the evaluation of the last step.
        evaluation_after=totals.evaluation_after if totals.evaluated_step == steps else {},
        facts={
            "seed": config.seed,
            "model": config.model.name_or_path,
            "num_tokens": totals.num_tokens,
            **(facts or {}),
        },
    )
    from .report import write_report  # plotly takes a second to import

    try:
        log.info("report: %s", write_report(config.run_dir))
    except Exception:
        log.exception("the report failed; python -m grpo_trainer.observe.report %s tries again", config.run_dir)
    return summary


def write_summary(
    run_dir: Path,
    *,
    steps: int,
    wall_s: float,
    seconds_per_stage: Mapping[str, float],
    evaluation_before: Mapping[str, float],
    evaluation_after: Mapping[str, float],
    facts: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Write the summary, whole or not at all, and return it.

    The evaluations hold `eval_accuracy` and `eval_greedy`, as the metrics have them; an evaluation that did not take
    place is empty. `facts` are further entries, such as seed, model and counts.
    """
    summary = {
        "eval_accuracy_before": _number(evaluation_before.get("eval_accuracy")),
        "eval_accuracy_after": _number(evaluation_after.get("eval_accuracy")),
        "eval_greedy_before": _number(evaluation_before.get("eval_greedy")),
        "eval_greedy_after": _number(evaluation_after.get("eval_greedy")),
        "steps": steps,
        "wall_s": round(wall_s, 3),
        "seconds_per_stage": {stage: round(seconds, 3) for stage, seconds in seconds_per_stage.items()},
        **(facts or {}),
    }
    write_text_atomically(run_dir / SUMMARY_FILE, json.dumps(summary, indent=2, ensure_ascii=False) + "\n")
    return summary


def _number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
