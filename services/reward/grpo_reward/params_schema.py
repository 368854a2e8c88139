"""The JSON schema of a reward's params, with every default written so that JSON can carry it."""

import math
import warnings
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import PydanticJsonSchemaWarning


def params_schema(params: type[BaseModel]) -> dict[str, Any]:
    """The schema, less defaults that are no JSON, like a function. Raises what pydantic does for a type without one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PydanticJsonSchemaWarning)
        schema: dict[str, Any] = _in_json(params.model_json_schema())
    return schema


def _in_json(value: Any) -> Any:
    """`inf` and `nan` as texts: JSON has no such numbers, and null would be another default."""
    if isinstance(value, dict):
        return {key: _in_json(part) for key, part in value.items()}
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
