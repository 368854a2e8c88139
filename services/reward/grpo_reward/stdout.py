"""Standard output that cannot be written: a full disk, a reader that has left."""

import os
import sys


def drop_output() -> None:
    """Forget what is still in the buffer, which could not be written at the end either, and all that follows."""
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
