"""What is printed at the end, what is written to gpu-check.json, and the exit status."""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .bounds import Bound
from .box import Box
from .runner import Result

RIGHT, WRONG, NOTHING_CHECKED = 0, 1, 3
"""2 is argparse's status for a command line that it does not understand."""


def exit_status(results: Sequence[Result]) -> int:
    """Return 0 only if at least one check ran and all that ran are right."""
    ran = [result for result in results if result.outcome != "left out"]
    if not ran:
        return NOTHING_CHECKED
    return RIGHT if all(result.outcome == "right" for result in ran) else WRONG


def table(results: Sequence[Result], box: Box, *, trial: bool) -> str:
    lines = [heading(box, trial=trial), "", "| check | figure | value | bound | |", "|---|---|---|---|---|"]
    for result in results:
        lines += _rows(result, trial=trial)
    return "\n".join([*lines, "", summary(results)])


def heading(box: Box, *, trial: bool) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in box.versions.items())
    machine = f"{len(box.gpus)} × {box.gpus[0]}, {box.memory_gib:.0f} GiB" if box.gpus else "no GPU"
    start = (
        "Trial on the CPU with tiny shapes: it shows that the checks run, and nothing about a GPU. " if trial else ""
    )
    return f"{start}{machine}; CUDA {box.cuda or 'none'}; {versions}"


def summary(results: Sequence[Result]) -> str:
    counts = {outcome: sum(result.outcome == outcome for result in results) for outcome in _MARKS}
    if exit_status(results) == NOTHING_CHECKED:
        return f"NOTHING WAS CHECKED: all {len(results)} checks were left out. This is no acceptance."
    return ", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count)


_MARKS = {"right": "right", "outside its bound": "OUTSIDE", "failed": "FAILED", "left out": "left out"}


def _rows(result: Result, *, trial: bool) -> list[str]:
    check = result.check
    if result.outcome in ("left out", "failed"):
        return [f"| {check.name} | | | | {_MARKS[result.outcome]}: {result.reason} |"]
    rows = []
    for name, value in result.figures.items():
        bound = check.bounds.get(name)
        loose = bound is None or (trial and not bound.in_trials)
        mark = "" if loose or bound is None else "right" if bound.holds(value) else "OUTSIDE"
        shown = "not measured" if value is None else f"{value:.3g}"
        rows.append(f"| {check.name} | {name} | {shown} | {'' if loose else _words(bound)} | {mark} |")
    return rows


def _words(bound: Bound | None) -> str:
    return "" if bound is None else f"{'≤' if bound.kind == 'at most' else '≥'} {bound.limit:g}"


def as_json(results: Sequence[Result], box: Box, *, trial: bool, status: int) -> dict[str, Any]:
    return {
        "trial": trial,
        "exit_status": status,
        "box": asdict(box),
        "checks": [
            {
                "name": result.check.name,
                "title": result.check.title,
                "needs": asdict(result.check.needs),
                "outcome": result.outcome,
                "reason": result.reason,
                "seconds": round(result.seconds, 1),
                "figures": dict(result.figures),
                "bounds": {name: asdict(bound) for name, bound in result.check.bounds.items()},
            }
            for result in results
        ],
    }


def with_earlier(report: dict[str, Any], file: Path) -> dict[str, Any]:
    """Add the checks that `file` has and this report has not: a machine is checked group by group.

    The status is then that of all of them; it stays that of an interruption. A copy of another machine, of other
    versions or of a trial is not continued.
    """
    before: Any = None
    with suppress(FileNotFoundError, ValueError):
        before = json.loads(file.read_text())
    if not isinstance(before, dict) or any(before.get(part) != report[part] for part in ("trial", "box")):
        return report
    own = {check["name"] for check in report["checks"]}
    checks = [check for check in before["checks"] if check["name"] not in own] + report["checks"]
    outcomes = {check["outcome"] for check in checks} - {"left out"}
    merged = NOTHING_CHECKED if not outcomes else RIGHT if outcomes == {"right"} else WRONG
    status = merged if report["exit_status"] in (RIGHT, WRONG, NOTHING_CHECKED) else report["exit_status"]
    return report | {"exit_status": status, "checks": checks}
