"""What a reward may be called: its name stands in `countdown,format:0.1`, in metrics, and in lines of the log."""

import re

_NAME = re.compile(r"\w([\w.-]*\w)?")
_RESERVED = {"total": "the sum of all rewards", "environment": "what an episode's environment gives"}


def refused_name(name: str) -> str | None:
    """Return why `name` cannot be that of a reward; None where it can."""
    if not _NAME.fullmatch(name):
        return f"{name!r} is no name: it has letters, digits and _ only, and - and dots inside"
    if name in _RESERVED:
        return f"{name} is {_RESERVED[name]}, so no reward has that name: take another"
    return None
