"""rollbacks.json: how often a run went back to an earlier checkpoint, and where its prompts went on.

The file is written before a rollback changes anything else, so that a killed run goes on as if it had not been killed.
Each checkpoint records how many rollbacks it has seen. A checkpoint that has not seen a rollback is abandoned if it is
of a later step than that to which the run went back; if it is of an earlier one, its position in the prompts is out of
date.
"""

import json
import logging
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..atomic_file import write_text_atomically
from ..errors import UsageError
from .files import STATE, checkpoint_folder, list_steps

log = logging.getLogger(__name__)

ROLLBACKS_FILE = "rollbacks.json"
SEEN = "rollbacks"
"""Key of the number of rollbacks in the state of a checkpoint; absent in a run without any."""


@dataclass(frozen=True)
class Rollback:
    """The steps from `to_step` + 1 to `from_step` are abandoned; prompts before `next_position` are passed over."""

    rule: str
    from_step: int
    to_step: int
    next_position: int


def read_rollbacks(run_dir: Path) -> list[Rollback]:
    """Return the rollbacks of a run, the oldest first. Raises UsageError when the file is not what was written."""
    file = run_dir / ROLLBACKS_FILE
    if not file.exists():
        return []
    try:
        return [Rollback(**record) for record in json.loads(file.read_text())]
    except (ValueError, TypeError) as error:
        raise UsageError(
            f"{file} cannot be read: {error}", hint="restore it from a copy: it says which checkpoints are abandoned"
        ) from error


def record_rollback(run_dir: Path, rollback: Rollback) -> None:
    """Abandon the steps after `rollback.to_step`, and remove their checkpoints. Raises OSError."""
    records = [asdict(one) for one in [*read_rollbacks(run_dir), rollback]]
    write_text_atomically(run_dir / ROLLBACKS_FILE, json.dumps(records, indent=1) + "\n")
    remove_abandoned(run_dir)


def remove_abandoned(run_dir: Path) -> None:
    """Remove the checkpoints of abandoned steps: a kill may have come before that. Rank 0 only."""
    rollbacks = read_rollbacks(run_dir)
    for step in list_steps(run_dir) if rollbacks else ():
        folder = checkpoint_folder(run_dir, step)
        try:
            unseen = _unseen(json.loads((folder / STATE).read_text()), rollbacks)
        except (OSError, ValueError):  # a damaged one: whoever looks for a whole checkpoint skips it
            continue
        if any(step > rollback.to_step for rollback in unseen):
            log.info("removing the checkpoint of step %d, which a rollback has abandoned", step)
            shutil.rmtree(folder, ignore_errors=True)


def seen_rollbacks(run_dir: Path) -> dict[str, int]:
    """Return what a checkpoint records; nothing in a run that never went back."""
    rollbacks = read_rollbacks(run_dir)
    return {SEEN: len(rollbacks)} if rollbacks else {}


def with_prompts_moved_on(state: dict[str, Any], run_dir: Path) -> dict[str, Any]:
    """Return the state of a checkpoint, past all prompts that were drawn before a rollback that it has not seen.

    The difficulty of prompts stays what it was at the checkpoint: it is of the policy that the run has gone back to.
    """
    unseen = _unseen(state, read_rollbacks(run_dir))
    if not unseen:
        return state
    return state | {"cursor": state["cursor"] | {"next_position": unseen[-1].next_position, "unused": []}}


def _unseen(state: dict[str, Any], rollbacks: Sequence[Rollback]) -> Sequence[Rollback]:
    return rollbacks[state.get(SEEN, 0) :]
