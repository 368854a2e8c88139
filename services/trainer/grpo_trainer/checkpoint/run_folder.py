"""The run folder: its contents, its trainer id, and whether a run may use it.

run.yaml            the resolved configuration        checkpoints/   see files.py
trainer_id          the name of this run for servers  model/         the final policy, for transformers and vLLM;
                                                      with an adapter: the adapter, and model-merged/ their sum
metrics.jsonl, completions.jsonl and eval_completions.jsonl and their older parts, decisions.jsonl, tensorboard/,
report.html, summary.json
rollbacks.json      written when a rule of `guards` has the run go back; see rollbacks.py
data/               the prompt rows with their token ids; see data/rows.py
.lock               held by the trainer that uses the folder; see run_lock.py
earlier-N/          what a run had written that ended before its first checkpoint, when it was resumed
"""

import logging
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from grpo_proto.log_parts import older_parts

from ..errors import UsageError, storage_error_class
from ..kept_identity import kept_identity
from .files import find_latest, list_steps
from .rollbacks import ROLLBACKS_FILE

log = logging.getLogger(__name__)

MOVED_WITH_THEM = ("tensorboard", "report.html", "summary.json", "model", "model-merged", ROLLBACKS_FILE)


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

    Resuming without a checkpoint begins a new run, and moves the files of the earlier one aside. Raises UsageError when
    a new run would write into the folder of an older run.
    """
    if resume:
        found = find_latest(run_dir, reading=reading)
        if found is None:
            log.warning("nothing to resume in %s: this is a new run", run_dir)
            _put_earlier_run_aside(run_dir)
        return found
    if list_steps(run_dir) or _files_of_run(run_dir):
        raise UsageError(
            f"run_dir {run_dir} already holds a run",
            hint="continue it with --resume, or choose another run_dir",
        )
    return None


def _put_earlier_run_aside(run_dir: Path) -> None:
    """Move what an earlier run has written to a folder beside it: a new run would mix its own lines with it."""
    if not any(path.stat().st_size for path in _files_of_run(run_dir)):  # empty files: it ended before its first step
        return
    number = 1 + sum(1 for _ in run_dir.glob("earlier-*"))
    aside = run_dir / f"earlier-{number}"
    try:
        aside.mkdir()
        for path in [*_files_of_run(run_dir), *(run_dir / name for name in MOVED_WITH_THEM)]:
            if path.exists():
                path.rename(aside / path.name)
    except OSError as error:
        raise storage_error_class(error)(
            f"the files of the earlier run in {run_dir} cannot be moved to {aside}: {error.strerror}",
            hint="move them yourself, or choose another run_dir",
        ) from error
    log.warning("moved the files of the run that ended there before its first checkpoint to %s", aside)


def _files_of_run(run_dir: Path) -> list[Path]:
    """The logs that are there, which only a run writes."""
    in_parts = [run_dir / name for name in ("completions.jsonl", "eval_completions.jsonl")]
    logs = [run_dir / "metrics.jsonl", run_dir / "decisions.jsonl", *in_parts]
    logs += [part for path in in_parts for part in older_parts(path)]
    return [path for path in logs if path.exists()]


def trainer_id(run_dir: Path) -> str:
    """Return this run's id, the same at every start: a restarted trainer replaces its older session on the servers.

    A copy of the folder is another run, which must not take the servers away from the first.
    """
    found, copied_from = kept_identity(run_dir / "trainer_id", lambda: f"{run_dir.name}-{uuid.uuid4().hex[:12]}")
    if copied_from is not None:
        log.warning("run_dir %s was copied from a run %s: the servers see another trainer", run_dir, copied_from)
    return found
