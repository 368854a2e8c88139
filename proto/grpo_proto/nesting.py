"""How deep a JSON value is nested."""

from typing import Any

MAX_LEVELS = 100
"""Deepest nesting of JSON that travels on inside another body than it came in: no parser takes much more than 200."""


def nesting(value: Any) -> int:
    """Levels of lists and objects in `value`: 0 for a number, 1 for `[]`. Without recursion, which has a limit."""
    depth, level = 0, [value]
    while level := [item for item in level if isinstance(item, dict | list | tuple)]:
        depth += 1
        level = [part for item in level for part in (item.values() if isinstance(item, dict) else item)]
    return depth
