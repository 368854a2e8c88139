"""Read a configuration: defaults < YAML files, left to right < environment < flags. Each mistake is one message.

grpo-train run.yaml fast.yaml --optimizer.learning_rate 3e-4
GRPO_TRAIN__OPTIMIZER__LEARNING_RATE=3e-4 grpo-train run.yaml
"""

import difflib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_settings import (
    BaseSettings,
    CliSettingsSource,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    YamlConfigSettingsSource,
)

from ..errors import UsageError, storage_error_class

ConfigT = TypeVar("ConfigT", bound=BaseModel)


def read_config(model: type[ConfigT], argv: Sequence[str], *, program: str, env_prefix: str) -> ConfigT:
    """Build `model` from the files and flags in `argv` and the variables `{env_prefix}SECTION__KEY`.

    Raises UsageError naming the key, what is wrong with it and the nearest known key. `--help` prints and exits.
    """
    files, flags = _split(argv)
    known = set(_dotted_keys(model))
    _check_flags(flags, known)
    _check_environment(os.environ, env_prefix, known)
    yaml_files = [_readable(file) for file in files]

    class Settings(BaseSettings, model):  # type: ignore[valid-type, misc]
        model_config = SettingsConfigDict(
            extra="forbid",
            env_prefix=env_prefix,
            env_nested_delimiter="__",
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
            return (
                cli,
                _Environment(settings_cls),
                YamlConfigSettingsSource(settings_cls, yaml_file=yaml_files, deep_merge=True),
            )

    try:
        values = Settings().model_dump()
    except ValidationError as error:
        raise UsageError(_explain(error, known), hint=f"{program} --help lists every key") from error
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
    path.write_text(yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True))


def _split(argv: Sequence[str]) -> tuple[list[Path], list[str]]:
    """Split `argv` at the first flag: files before it, flags from it on."""
    first = next((index for index, word in enumerate(argv) if word.startswith("-")), len(argv))
    return [Path(word) for word in argv[:first]], list(argv[first:])


def _readable(file: Path) -> Path:
    try:
        content = yaml.safe_load(file.read_text())
    except OSError as error:
        raise storage_error_class(error)(
            f"{file}: {error.strerror}", hint="YAML files come first, then flags"
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} is not YAML: {error}") from error
    if not isinstance(content, dict):
        raise UsageError(f"{file} is not a mapping of sections", hint="such as `model: {name_or_path: …}`")
    return file


def _dotted_keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield prefix + name
        for part in get_args(field.annotation) or (field.annotation,):  # a section may be absent: Section | None
            if isinstance(part, type) and issubclass(part, BaseModel):
                yield from _dotted_keys(part, f"{prefix}{name}.")


def _check_flags(flags: Sequence[str], known: set[str]) -> None:
    for flag in flags:
        name = flag.removeprefix("--").partition("=")[0]
        if flag.startswith("--") and name != "help" and name not in known and not _inside_mapping(name, known):
            raise UsageError(f"unknown flag --{name}", hint=_nearest(name, known, "--"))


def _check_environment(environment: Mapping[str, str], prefix: str, known: set[str]) -> None:
    for variable in environment:
        if variable.startswith(prefix):
            name = variable.removeprefix(prefix).lower().replace("__", ".")
            if name not in known and not _inside_mapping(name, known):
                raise UsageError(f"unknown setting in the environment: {variable}", hint=_nearest(name, known, ""))


def _inside_mapping(name: str, known: set[str]) -> bool:
    """Whether `name` lies in a free mapping, whose keys are the user's, such as `reward.params.format`."""
    parent = name.rpartition(".")[0]
    is_section = any(key.startswith(f"{parent}.") for key in known)
    return "." in parent and parent in known and not is_section


def _nearest(name: str, known: set[str], prefix: str) -> str | None:
    """Return the nearest known key; prefer the same name in another section."""
    last = name.rpartition(".")[2]
    elsewhere = [key for key in sorted(known) if key.rpartition(".")[2] == last]
    close = elsewhere or difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.5)
    return f"did you mean {prefix}{close[0]}?" if close else None


def _explain(error: ValidationError, known: set[str]) -> str:
    lines = []
    for problem in error.errors(include_url=False):
        name = ".".join(str(part) for part in problem["loc"]) or "run file"
        if problem["type"] == "extra_forbidden":
            hint = _nearest(name, known, "")
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
