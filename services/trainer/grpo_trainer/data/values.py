"""What a row is made of: values that JSON gives back as they were.

What JSON lacks is converted: dates to ISO text, decimals to text, bytes to base64 text, NaN and infinity to null. What
would be lost or changed is refused: a key that stands twice, a number beyond a double, half of a surrogate pair.
"""

import base64
import datetime
import decimal
import math
from collections.abc import Mapping
from typing import Any

from ..errors import UsageError
from .json_text import BeyondDouble, ObjectWithKeyTwice

Row = dict[str, Any]


class ValueRefusedError(ValueError):
    """A value that would be lost or changed."""


def json_row(row: Mapping[Any, Any], where: str) -> Row:
    """Convert the columns of `row`. Raises UsageError that begins with `where` and names the column."""
    if isinstance(row, ObjectWithKeyTwice):
        raise UsageError(f"{where} has the key {row.key} twice", hint="leave one of them out")
    made = {}
    for name, value in row.items():
        try:
            made[json_value(str(name))] = json_value(value)
        except ValueRefusedError as error:
            column = str(name).encode(errors="backslashreplace").decode()
            raise UsageError(f"{where}, column {column}: {error}", hint="mend it, or leave the row out") from error
    return made


def json_value(value: Any) -> Any:
    """Convert `value` to what JSON would give back; see the top of this file. Raises ValueRefusedError."""
    match value:
        case str():
            return value if value.isascii() else _whole_text(value)
        case None | bool() | int():
            return value
        case float():
            if isinstance(value, BeyondDouble):
                raise ValueRefusedError(f"the number {value.text} is beyond the range of a double; write it as text")
            return value if math.isfinite(value) else None
        case Mapping():
            if isinstance(value, ObjectWithKeyTwice):
                raise ValueRefusedError(f"an object has the key {value.key} twice")
            return {json_value(str(key)): json_value(item) for key, item in value.items()}
        case list() | tuple() | set():
            return [json_value(item) for item in value]
        case datetime.datetime() | datetime.date() | datetime.time():
            return value.isoformat()
        case datetime.timedelta():
            return value.total_seconds()
        case decimal.Decimal():
            return str(value)
        case bytes() | bytearray():
            return base64.b64encode(value).decode()
    # numpy's and pyarrow's scalars and arrays.
    for method in ("tolist", "as_py", "item"):
        if callable(convert := getattr(value, method, None)):
            return json_value(convert())
    return str(value)


def _whole_text(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(value[error.start]):04x}"
        raise ValueRefusedError(f"half of a surrogate pair, {half}, which is no character") from error
    return value
