"""Whether the next checkpoint fits on the disk of the run folder."""

import shutil
from pathlib import Path

from ..atomic_file import size_text


def lacking_space(run_dir: Path, num_bytes: int) -> str | None:
    """Say how much a checkpoint of `num_bytes` lacks; None when it fits, and for remote disks that do not know."""
    if num_bytes == 0:
        return None
    usage = shutil.disk_usage(run_dir)
    if usage.total == 0 or usage.free >= num_bytes:
        return None
    return f"a checkpoint takes about {size_text(num_bytes)}, and {run_dir} has {size_text(usage.free)} free"
