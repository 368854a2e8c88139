"""Whether the disk has room for the next checkpoint, before the run and before each save.

Its size is that of the newest checkpoint, and at least what the engine computes from its tensors.
"""

import logging
from pathlib import Path

from ..atomic_file import free_bytes, require_space, size_text
from ..config.checkpoint import CheckpointConfig
from ..errors import storage_error_class
from .files import bytes_of, checkpoint_folder, list_steps, unfinished_folders

log = logging.getLogger(__name__)


def check_space(run_dir: Path, settings: CheckpointConfig, num_bytes: int, *, final_bytes: int) -> None:
    """Check before the run that the next checkpoint has room; it is of `num_bytes` at least. Rank 0 only.

    Warns when the checkpoints that the run keeps and the final folders, of `final_bytes`, may take more than is free.
    Raises UnavailableError.
    """
    try:
        require_space_for_checkpoint(run_dir, num_bytes)
    except OSError as error:
        raise storage_error_class(error)(
            f"the next checkpoint could not be written: {error}", hint="free some space, or choose another run_dir"
        ) from error
    at_once = settings.save_total_limit + 1 if settings.save_steps else 1  # an old one goes when the new one is there
    to_come = max(at_once - len(list_steps(run_dir)), 1)
    needed, free = to_come * _next_bytes(run_dir, num_bytes) + final_bytes, free_bytes(run_dir)
    if free is not None and free < needed:
        log.warning(
            "run_dir %s: %s are free, and checkpoints and the final model may take %s, logs not counted: free some",
            run_dir,
            size_text(free),
            size_text(needed),
        )


def require_space_for_checkpoint(run_dir: Path, num_bytes: int) -> None:
    """Raise OSError (ENOSPC) unless there is room for the next checkpoint, which is of `num_bytes` at least.

    Unfinished checkpoints do not count: the next one removes them.
    """
    will_be_free = sum(map(bytes_of, unfinished_folders(run_dir)))
    require_space(run_dir / "checkpoints", _next_bytes(run_dir, num_bytes), will_be_free=will_be_free)


def _next_bytes(run_dir: Path, num_bytes: int) -> int:
    steps = list_steps(run_dir)
    return max(bytes_of(checkpoint_folder(run_dir, steps[-1])), num_bytes) if steps else num_bytes
