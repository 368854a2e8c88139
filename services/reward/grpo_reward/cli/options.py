"""The flags that the commands share, and how rewards and params are written in them."""

import argparse
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from grpo_proto import RewardSpec
from grpo_proto.messages.reward import Seconds
from grpo_proto.server_url import checked_url

from ..config import ConfigError
from ..refusal import nearest


class CommandFailed(Exception):  # noqa: N818 - it ends the command, with status 1
    """The usage is right, and still the command cannot do it; the message says why."""


class CommandParser(argparse.ArgumentParser):
    """Errors become a ConfigError that says what to type."""

    def __init__(self, command: str, description: str):
        super().__init__(prog=f"grpo-reward {command}", description=description, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        unknown = message.removeprefix("unrecognized arguments: ")
        if unknown != message:
            message = f"too much: {unknown.split()[0]}"
        elif message.startswith("the following arguments are required: "):
            message = f"needs {message.removeprefix('the following arguments are required: ').replace(', ', ' and ')}"
        raise ConfigError(f"{message} ({self.prog} --help)")

    def add_place(self) -> None:
        """Where the rewards run."""
        self.add_argument(
            "--plugin", nargs=1, action="extend", metavar="FILE.py", help="A Python file with rewards, or several."
        )
        self.add_argument("--workers", metavar="N", help="Worker processes; 0 is one for each CPU core.")
        self.add_argument(
            "--url", help="Ask this server, such as http://127.0.0.1:8001, instead; its token is $GRPO_API_TOKEN."
        )
        self.add_argument("--json", action="store_true", help="JSON on stdout instead of tables.")

    def add_params(self, form: str) -> None:
        self.add_argument(
            "--param",
            action="append",
            default=[],
            metavar=form,
            help="A param of a reward; VALUE is JSON, and text when it is none.",
        )

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Raises ConfigError; `--help` exits."""
        known = [flag for action in self._actions for flag in action.option_strings]
        for word in arguments:
            flag = word.partition("=")[0]
            # Before argparse, for which the word behind it would be what is wrong.
            if re.match("--[a-z]|-[a-z]$", flag) and flag not in known:
                raise ConfigError(f"unknown option {flag}: {nearest(flag, known)} ({self.prog} --help)")
        options = self.parse_args(_one_plugin_each(arguments))
        if options.url is not None:
            for flag in ("plugin", "workers"):
                if getattr(options, flag) is not None:
                    raise ConfigError(f"--{flag} is for rewards that run here: leave it out, or leave out --url")
            try:
                checked_url(options.url)
            except ValueError as error:
                raise ConfigError(f"--url: {error}") from None
            if options.url.rstrip("/").endswith("/v1/score"):
                raise ConfigError(f"--url is the server's, without its route: {options.url.rpartition('/v1/score')[0]}")
        return options


def _one_plugin_each(arguments: Sequence[str]) -> list[str]:
    """`--plugin a.py b.py NAME` → `--plugin a.py --plugin b.py NAME`, which argparse would take for three plugins."""
    found: list[str] = []
    before, behind_plugin = "", False
    for word in arguments:
        is_file = re.search(r"\.py(:\w+)?$", word) is not None
        if behind_plugin and is_file:
            found.append("--plugin")
        behind_plugin = is_file and (behind_plugin or before == "--plugin")
        found.append(word)
        before = word
    return found


def seconds(text: str) -> float:
    """For argparse: what `timeout_s` of a request may be."""
    try:
        return TypeAdapter(Seconds).validate_python(text)
    except ValidationError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error.errors()[0]['msg']}") from None


def positive(text: str) -> int:
    """For argparse: 1 or more."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 on, not {text!r}")
    return int(text)


def not_negative(text: str) -> int:
    """For argparse: 0 or more."""
    return 0 if text == "0" else positive(text)


def number(text: str) -> float:
    """For argparse: a finite number."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"must be a finite number, not {text!r}")
    return value


def existing_file(text: str) -> Path:
    """For argparse: anything that can be read, so also a pipe; `-` is what comes in."""
    path = Path("/dev/stdin" if text == "-" else text)
    try:
        if path.is_dir():
            raise argparse.ArgumentTypeError(f"{text} is a folder, not a file")
        if path.exists():
            return path
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text:.80}: {error.strerror or error}") from None
    raise argparse.ArgumentTypeError(f"there is no file {text}")


def reward_specs(text: str, params: Sequence[str]) -> list[RewardSpec]:
    """`accuracy,format:0.1` and `["format.require_think=false"]` as the rewards of a request. Raises ConfigError."""
    weights: dict[str, float] = {}
    for part in text.split(","):
        name, colon, weight = part.strip().rpartition(":")
        name, weight = (name.strip(), weight) if colon else (weight, "1")
        if not name:
            raise ConfigError(f"--rewards {text}: write names with commas between them, such as accuracy,format:0.1")
        if "=" in name:
            reward, _, rest = name.partition("=")
            raise ConfigError(f"--rewards {text}: a weight is written {reward}:{rest}")
        if name in weights:
            raise ConfigError(f"--rewards {text}: {name} is there twice")
        try:
            weights[name] = number(weight)
        except argparse.ArgumentTypeError:
            raise ConfigError(f"--rewards {text}: the weight of {name} must be a number, not {weight!r}") from None
    values: dict[str, dict[str, Any]] = {name: {} for name in weights}
    for param in params:
        key, value = _assignment(param)
        owner = next((name for name in weights if key.startswith(f"{name}.") and key != f"{name}."), None)
        if owner is None:
            reward = key.partition(".")[0]
            raise ConfigError(f"--param {param}: {reward} is none of --rewards; {nearest(reward, weights)}")
        values[owner][key.removeprefix(f"{owner}.")] = value
    return [RewardSpec(name=name, weight=weight, params=values[name]) for name, weight in weights.items()]


def own_params(reward: str, params: Sequence[str]) -> dict[str, Any]:
    """`["max_len=64"]`, or `["cosine.max_len=64"]`, for a command about one reward. Raises ConfigError."""
    pairs = [_assignment(param) for param in params]
    return {key.removeprefix(f"{reward}."): value for key, value in pairs}


def _assignment(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ConfigError(f"--param {text}: write NAME=VALUE")
    try:
        return key, from_json(value, allow_inf_nan=False)
    except ValueError:
        return key, value
