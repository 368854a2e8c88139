"""The column `solution` as text."""

from typing import Annotated, Any

from pydantic import BeforeValidator


def text_of_boolean(value: Any) -> Any:
    """`true` for True: readers of CSV files make booleans of a column of `true` and `false`. Other values stay."""
    return str(value).lower() if isinstance(value, bool) else value


GoldText = Annotated[str, BeforeValidator(text_of_boolean)]
"""Text, or a boolean in its place. A number has lost its spelling (`1.10`, `007`) and is an error."""
