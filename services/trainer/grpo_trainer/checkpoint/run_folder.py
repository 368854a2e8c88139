"""The run folder: its contents, its trainer id, and whether a run may use it.

run.yaml            the resolved configuration        checkpoints/   see files.py
trainer_id          the name of this run for servers  model/         the final policy, for transformers and vLLM;
                                                      with an adapter: the adapter, and model-merged/ their sum
metrics.jsonl, completions.jsonl, tensorboard/, report.html, summary.json
rollbacks.json      written when a rule of `guards` has the run go back; see rollbacks.py
data/               the prompt rows with their token ids; see data/rows.py
.lock               held by the trainer that uses the folder; see run_lock.py
"""

import logging
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from ..atomic_file import write_text_atomically
from ..errors import UsageError, storage_error_class
from .files import find_latest, list_steps

log = logging.getLogger(__name__)


def make_run_folder(run_dir: Path) -> None:
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        (run_dir / "checkpoints").mkdir(exist_ok=True)
    except OSError as error:
        raise storage_error_class(error)(
            f"run_dir {run_dir} cannot be made: {error.strerror}", hint="choose another run_dir"
        ) from error


def find_start(
    run_dir: Path, *, resume: bool, reading: Callable[[], AbstractContextManager[None]] = nullcontext
) -> tuple[Path, dict[str, Any]] | None:
    """Return the newest whole checkpoint and its state when resuming, else None. For `reading` see `find_latest`.

    Raises UsageError when a new run would write into the folder of an older run.
    """
    if resume:
        return find_latest(run_dir, reading=reading)
    if list_steps(run_dir) or (run_dir / "metrics.jsonl").exists():
        raise UsageError(
            f"run_dir {run_dir} already holds a run",
            hint="continue it with --resume, or choose another run_dir",
        )
    return None


def trainer_id(run_dir: Path) -> str:
    """Return this run's id, the same at every start: a restarted trainer replaces its older session on the servers.

    A copy of the folder is another run, which must not take the servers away from the first: beside the id the file
    holds its own inode number, which a copy does not have. A file of an older release holds the id alone.
    """
    file = run_dir / "trainer_id"
    if file.exists():
        found, *inode = file.read_text().splitlines()
        if not inode or int(inode[0]) == file.stat().st_ino:
            return found
        log.warning("run_dir %s was copied from a run %s: the servers see another trainer", run_dir, found)
    made = f"{run_dir.name}-{uuid.uuid4().hex[:12]}"
    write_text_atomically(file, lambda inode: f"{made}\n{inode}\n")
    return made
