"""What a reward says beside its score: log columns and metrics, as plain JSON.

A diagnostic costs no score: what cannot be sent is left out, and the `detail` of the score names it. What is beyond the
limits of one score is an error, as it always would be.
"""

import json
import math
import numbers
import reprlib
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from .nesting import nesting

MAX_LOG_CHARS = 64 * 1024
MAX_LOG_DEPTH = 100
MAX_METRICS, MAX_METRIC_CHARS = 100, 200
MAX_DETAIL_CHARS = 1000


class BeyondLimitsError(Exception):
    """There is too much of it for one score."""


def plain(value: Any) -> Any:
    """Python's own for a number or an array of NumPy, torch and their like; raises TypeError for everything else."""
    for name in ("tolist", "item"):
        if not isinstance(value, type) and callable(convert := getattr(value, name, None)):
            return convert()
    raise TypeError(f"a value of type {type(value).__name__} is no JSON")


as_json = json.JSONEncoder(allow_nan=False).encode
_plain_as_json = json.JSONEncoder(allow_nan=False, default=plain).encode


def finite(value: Any) -> float | None:
    """A finite number as float, True as 1; also a Decimal, and one of NumPy or torch. None for everything else."""
    if type(value) is float:  # as most are
        return value if math.isfinite(value) else None
    if not isinstance(value, numbers.Real) and not getattr(value, "shape", ()) and hasattr(value, "item"):
        value = plain(value)
    if not isinstance(value, numbers.Real | Decimal):
        return None
    try:
        number = float(value)
    except (OverflowError, ValueError):  # a signaling NaN of decimal
        return None
    return number if math.isfinite(number) else None


def sendable_metrics(metrics: Any) -> tuple[dict[str, float], list[str]]:
    """The finite ones, and what has been left out. Raises BeyondLimitsError."""
    if not isinstance(metrics, Mapping):
        return {}, [f"metrics left out: they are a {type(metrics).__name__}, not a dict of numbers"]
    if len(metrics) > MAX_METRICS:
        raise BeyondLimitsError(f"{len(metrics)} metrics; the limit is {MAX_METRICS}")
    kept: dict[str, float] = {}
    left_out = []
    for name, value in metrics.items():
        if len(str(name)) > MAX_METRIC_CHARS:
            raise BeyondLimitsError(f"the name of a metric has {len(str(name))} characters; at most {MAX_METRIC_CHARS}")
        try:
            number = finite(value)
        except Exception:  # its `item()` is not ours
            number = None
        if number is None:
            left_out.append(f"metric {name} left out: it is {reprlib.repr(value)}, not a finite number")
        else:
            kept[str(name)] = number
    return kept, left_out


def sendable_log(log: Any) -> tuple[dict[str, Any], list[str]]:
    """The columns that are JSON, and what has been left out. Raises BeyondLimitsError."""
    if not isinstance(log, dict):
        return {}, [f"log left out: it is a {type(log).__name__}, not a dict of columns"]
    left_out: list[str] = []
    try:
        size = len(as_json(log))
    except (TypeError, ValueError, RecursionError):
        log, left_out = _columns_of_json(log)
        size = len(as_json(log))
    # A level has two brackets at least: most logs are too short to be looked through.
    if size > 2 * MAX_LOG_DEPTH and nesting(log) > MAX_LOG_DEPTH:
        raise BeyondLimitsError(f"log has more than {MAX_LOG_DEPTH} nested levels")
    if size > MAX_LOG_CHARS:
        raise BeyondLimitsError(f"log has {size} characters of JSON; the limit is {MAX_LOG_CHARS}")
    return log, left_out


def _columns_of_json(log: dict[Any, Any]) -> tuple[dict[str, Any], list[str]]:
    kept: dict[str, Any] = {}
    left_out = []
    for column, value in log.items():
        try:
            kept |= json.loads(_plain_as_json({column: value}))
        except Exception as error:  # also of a `tolist()` that is not ours
            name = column if isinstance(column, str) else reprlib.repr(column)
            left_out.append(f"log column {name} left out: {error}")
    return kept, left_out
