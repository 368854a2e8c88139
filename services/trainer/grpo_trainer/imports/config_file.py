"""A file of another trainer's options, in place of words: TRL's YAML, and YAML or JSON of ms-swift."""

from pathlib import Path
from typing import Any

import yaml

from ..errors import UsageError

SUFFIXES = (".yaml", ".yml", ".json")


def read_config_file(path: Path) -> dict[str, Any]:
    """Option → value, of a file in YAML or in JSON, which is YAML, too. Raises UsageError."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is no YAML: {error}") from error
    if not isinstance(content, dict):
        raise UsageError(f"{path} is no mapping of options", hint="write `option: value`, one a line")
    return content
