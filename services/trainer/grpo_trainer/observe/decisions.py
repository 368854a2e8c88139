"""decisions.jsonl: what was decided about a run, and why; each decision is a warning in log and page, too."""

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .jsonl import StepFile, read_records
from .run_files import DECISIONS_FILE

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Decision:
    """What is done because of a rule, and why."""

    rule: str
    """A rule of `guards`, or what else decides."""
    action: str
    text: str


class DecisionLog:
    """On resume the decisions of steps after `resumed_step`, which are done again, are dropped."""

    def __init__(self, run_dir: Path, *, resumed_step: int | None):
        self._file = StepFile(run_dir / DECISIONS_FILE, keep_through_step=resumed_step)

    def write(self, step: int, decisions: Sequence[Decision]) -> None:
        for decision in decisions:
            log.warning("step %d: %s%s", step, _prefix(decision), decision.text)
        if decisions:
            self._file.append({"step": step, **asdict(decision)} for decision in decisions)

    def close(self) -> None:
        self._file.close()


def read_decisions(run_dir: Path) -> list[dict[str, Any]]:
    """The decisions of a run, the oldest first; empty for a run without any."""
    return list(read_records(run_dir / DECISIONS_FILE))


def _prefix(decision: Decision) -> str:
    return "" if decision.action == "warn" else f"{decision.action}, by {decision.rule}: "
