"""Read a configuration: defaults < YAML files, left to right < environment < flags. Each mistake is one message.

grpo-train run.yaml fast.yaml --optimizer.learning_rate 3e-4
GRPO_TRAIN__OPTIMIZER__LEARNING_RATE=3e-4 grpo-train run.yaml
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_settings import (
    BaseSettings,
    CliSettingsSource,
    EnvSettingsSource,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from ..atomic_file import write_text_atomically
from ..errors import UsageError
from .command_words import check_text, split_words
from .keys import Keys
from .yaml_file import read_yaml

ConfigT = TypeVar("ConfigT", bound=BaseModel)


def read_config(
    model: type[ConfigT], argv: Sequence[str], *, program: str, env_prefix: str, switches: Sequence[str] = ()
) -> ConfigT:
    """Build `model` from the files and flags in `argv` and the variables `{env_prefix}SECTION__KEY`.

    `switches` are the command's own flags, which are not in `argv`. Raises UsageError naming the key, what is wrong
    with it and the nearest known key. `--help` prints and exits.
    """
    keys = Keys(model, switches)
    files, flags = split_words(argv, keys)
    _check_environment(os.environ, env_prefix, keys)
    content: dict[str, Any] = {}
    for file in files:
        content = _merged(content, read_yaml(file, model))

    class Settings(BaseSettings, model):  # type: ignore[valid-type, misc]
        model_config = SettingsConfigDict(
            extra="forbid",
            env_prefix=env_prefix,
            env_nested_delimiter="__",
            # Of two keys of a file that differ in their case, the second would be dropped.
            case_sensitive=True,
            # compose.yaml cannot unset a variable; it can only leave the variable empty.
            env_ignore_empty=True,
        )

        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            cli: CliSettingsSource[Any] = CliSettingsSource(
                settings_cls, cli_prog_name=program, cli_parse_args=list(flags), cli_hide_none_type=True
            )
            return cli, _Environment(settings_cls, case_sensitive=False), InitSettingsSource(settings_cls, content)

    try:
        values = Settings().model_dump()
    except ValidationError as error:
        raise UsageError(explain(error, keys), hint=f"{program} --help lists every key") from error
    except SettingsError as error:
        raise UsageError(str(error), hint="lists and mappings on the command line are written as JSON") from error
    return model.model_validate(values)


class _Environment(EnvSettingsSource):
    """Read variables. A list is written as on the command line: `wandb,tensorboard`, as JSON, or as one word."""

    def decode_complex_value(self, field_name: str, field: Any, value: Any) -> Any:
        annotation = field and field.annotation
        choices = get_args(annotation) if isinstance(annotation, UnionType) else (annotation,)
        if any(get_origin(choice) is list for choice in choices) and not value.lstrip().startswith("["):
            return [part.strip() for part in value.split(",")]
        try:
            return json.loads(value)
        except ValueError as error:
            raise UsageError(
                f"{field_name}: {value!r} in the environment is not JSON: {error}", hint="a mapping is written as JSON"
            ) from error


def write_resolved(config: BaseModel, path: Path) -> None:
    """Write the configuration as a YAML file from which `read_config` restores it."""
    text = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
    write_text_atomically(path, text)


def _merged(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    """`upper` over `lower`, section by section."""
    both = {
        key: _merged(lower[key], upper[key])
        for key in lower.keys() & upper.keys()
        if isinstance(lower[key], Mapping) and isinstance(upper[key], Mapping)
    }
    return {**lower, **upper, **both}


def _check_environment(environment: Mapping[str, str], prefix: str, keys: Keys) -> None:
    for variable, value in environment.items():
        if variable.startswith(prefix):
            check_text(value, f"{variable} in the environment")
            name = variable.removeprefix(prefix).lower().replace("__", ".")
            if name not in keys.known and not keys.is_in_free_mapping(name):
                raise UsageError(f"unknown setting in the environment: {variable}", hint=keys.nearest(name))
        elif variable.startswith(prefix[:-1]):  # one underscore where two belong, and no variable of somebody else
            name = variable.removeprefix(prefix[:-1]).lower().replace("__", "_")
            if meant := next((known for known in sorted(keys.known) if known.replace(".", "_") == name), None):
                raise UsageError(
                    f"{variable} in the environment sets nothing",
                    hint=f"{meant} is set by {prefix}{meant.replace('.', '__').upper()}, two underscores each",
                )


def explain(error: ValidationError, keys: Keys) -> str:
    lines = []
    for problem in error.errors(include_url=False):
        name = ".".join(str(part) for part in problem["loc"]) or "run file"
        if problem["type"] == "extra_forbidden":
            hint = keys.nearest(name)
            lines.append(f"{name}: unknown key" + (f"; {hint}" if hint else ""))
        elif problem["type"] == "missing":
            lines.append(f"{name}: missing, and it has no default")
        else:
            text = problem["msg"].removeprefix("Value error, ")
            given = problem["input"]
            shown = (
                ""
                if isinstance(given, dict) or problem["type"] == "secret" or repr(given) in text
                else f" (got {given!r})"
            )
            lines.append(f"{name}: {text}{shown}")
    return "\n".join(lines)
