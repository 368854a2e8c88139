"""What a row is made of: values that JSON gives back as they were.

What JSON lacks is converted: dates to ISO text, decimals to text, bytes to base64 text, NaN and infinity to null.
"""

import base64
import datetime
import decimal
import math
from collections.abc import Mapping
from typing import Any

Row = dict[str, Any]


def json_value(value: Any) -> Any:
    """Convert `value` to what JSON would give back; see the top of this file for what is converted how."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else None
        case Mapping():
            return {str(key): json_value(item) for key, item in value.items()}
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
