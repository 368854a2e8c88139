"""Nulls with which Arrow fills up an object: a column of objects has every key of every row."""

from typing import Any


def without_nulls(value: Any) -> Any:
    """`value` without the keys that are null, at any depth. Those in lists stay; `{"const": null}` says something."""
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    if not isinstance(value, dict):
        return value
    says_null = value.keys() <= {"const", "title", "description", "default"}
    return {
        key: without_nulls(item) for key, item in value.items() if item is not None or (key == "const" and says_null)
    }
