"""Arguments of a tool call, as chat templates read them."""

import json
from typing import Any


def parsed_arguments(arguments: Any) -> Any:
    """Parse JSON text of an object, so that a template does not encode it twice. Anything else stays as it is."""
    if not isinstance(arguments, str):
        return arguments
    try:
        parsed = json.loads(arguments)
    except ValueError:
        return arguments
    return parsed if isinstance(parsed, dict) else arguments
