"""The settings of a reward server: defaults < environment (`GRPO_REWARD_…`) < flags."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from grpo_proto.api_token import ALSO_VARIABLE, TOKEN_VARIABLE, TokenError, server_tokens
from grpo_proto.loopback import is_loopback

from .refusal import nearest
from .reward_models import models_in, named_models

ENV_PREFIX = "GRPO_REWARD_"
METAVARS = {"plugin": "FILE.py[:NAME]", "reward_model": "[NAME=]MODEL"}
LEAST_MEMORY_MIB = 128
"""The rewards of the package take some 90; plugins come on top."""


class Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, frozen=True, env_ignore_empty=True)

    host: str = Field(default="127.0.0.1", description="Address to listen on; off loopback a token is required.")
    port: int = Field(default=8001, ge=0, le=65535, description="0 takes a free one and prints it.")
    workers: int = Field(
        default=0,
        ge=0,
        le=1024,
        description="Worker processes; 0 is one for each CPU core. One for every eight comes on top. "
        "Rewards of plugins have as many of their own.",
    )
    plugin: Annotated[list[Path], NoDecode] = Field(
        default_factory=list,
        description="More rewards: FILE.py, or FILE.py:NAME for one of them; in the environment separated by ':'.",
    )
    executor: Literal["process", "ray"] = Field(
        default="process", description="Where rewards run: on this machine, or on every node of a Ray cluster."
    )
    adapter_rewards: str = Field(
        default="", description="What other trainers' routes score with, such as accuracy,format:0.1; or ?rewards=…"
    )
    allowed_url: Annotated[list[str], NoDecode] = Field(
        default_factory=list,
        description="What judge and reward_model may call: URLs begin with one of these; in the environment by ','.",
    )
    reward_model: Annotated[list[str], NoDecode] = Field(
        default_factory=list,
        description="Classification models: a folder or Hub name, loaded at the start, for reward_model; NAME=MODEL, "
        "also several, each the reward NAME; NAME=URL of a server as for reward_model; in the environment by ',', "
        "or a JSON list.",
    )
    worker_env: Annotated[list[str], NoDecode] = Field(
        default_factory=list,
        description="Environment variables that rewards may see; in the environment by ','. JUDGE_API_KEY and "
        "REWARD_MODEL_API_KEY need not be named, and plugins never see them.",
    )
    code_sandbox: Literal["closed", "open"] = Field(
        default="closed",
        description="closed: the reward code is refused where its sandbox leaves files, network or processes open to "
        "programs; open: it runs them all the same.",
    )
    memo: int = Field(
        default=0, ge=0, le=10**9, description="Scores to remember, so that the same sample is not scored twice."
    )
    max_body_mib: int = Field(default=16, ge=1, le=1024, description="Largest request body.")
    max_samples: int = Field(default=4096, ge=1, le=10**6, description="Most samples in one request.")
    max_pending_requests: int = Field(default=1024, ge=1, le=10**6, description="More at once are refused with 429.")
    body_timeout_s: float = Field(default=30.0, gt=0, le=3600, description="Limit for receiving a body.")
    max_timeout_s: float = Field(
        default=600.0, gt=0, le=3600, description="Largest timeout_s and deadline_s that a request may ask for."
    )
    worker_memory_mib: int = Field(
        default=4096, ge=0, le=2**30, description="Address space of a worker process; 0: no limit."
    )
    otlp_endpoint: str | None = Field(
        default=None,
        pattern=r"^https?://",
        description="OpenTelemetry receiver, such as http://otel-collector:4318: spans of what is scored.",
    )
    grace_s: float = Field(
        default=10.0, ge=0, le=86_400, description="After SIGTERM, how long running requests may go on."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="What is logged.")

    @field_validator("plugin", mode="before")
    @classmethod
    def _split_paths(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        plugins: list[str] = []
        for part in filter(None, value.split(os.pathsep)):
            if plugins and not part.endswith(".py") and plugins[-1].endswith(".py"):
                plugins[-1] += f":{part}"
            else:
                plugins.append(part)
        return plugins

    @field_validator("allowed_url", "worker_env", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value

    @field_validator("reward_model", mode="before")
    @classmethod
    def _models_in(cls, value: Any) -> Any:
        return models_in(value) if isinstance(value, str) else value

    @field_validator("reward_model")
    @classmethod
    def _distinct(cls, models: list[str]) -> list[str]:
        named_models(models)
        return models

    @field_validator("worker_memory_mib")
    @classmethod
    def _enough(cls, memory_mib: int) -> int:
        if 0 < memory_mib < LEAST_MEMORY_MIB:
            raise ValueError(f"a worker cannot begin with less than {LEAST_MEMORY_MIB}")
        return memory_mib

    @property
    def num_workers(self) -> int:
        return self.workers or len(os.sched_getaffinity(0))


class ConfigError(Exception):
    """The settings are wrong; the message is for the operator."""


def read_settings(arguments: Sequence[str]) -> Settings:
    """Settings from the environment and the flags after `serve`. Raises ConfigError; `--help` exits."""
    flags = vars(_parser().parse_args(arguments))
    try:
        tokens = server_tokens()
    except TokenError as error:
        raise ConfigError(str(error)) from None
    # In Kubernetes a Service called grpo-reward puts its address there, "tcp://10.0.0.7:8001".
    if os.environ.get(f"{ENV_PREFIX}PORT", "").startswith("tcp://"):
        del os.environ[f"{ENV_PREFIX}PORT"]
    try:
        settings = Settings(**flags)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        name = str(problem["loc"][0])
        where = f"--{name.replace('_', '-')}" if name in flags else f"{ENV_PREFIX}{name.upper()}"
        raise ConfigError(f"{where}: {problem['msg']}, not {problem['input']!r}") from None
    for name in (TOKEN_VARIABLE, ALSO_VARIABLE):
        if name in settings.worker_env:
            raise ConfigError(f"--worker-env {name}: the key to this server is not for the rewards")
    if not tokens and not is_loopback(settings.host):
        raise ConfigError(
            f"{settings.host} can be reached from other machines: set GRPO_API_TOKEN to a secret, or serve 127.0.0.1"
        )
    return settings


class _Parser(argparse.ArgumentParser):
    """Errors become a ConfigError that names the nearest flag."""

    def error(self, message: str) -> Any:
        unknown = message.removeprefix("unrecognized arguments: ")
        if unknown.startswith("--token"):
            message = "there is no --token, which everybody on this machine could read: set GRPO_API_TOKEN"
        elif unknown != message and not unknown.startswith("-"):
            message = (
                f"{unknown.split()[0]} is no option, and serve takes nothing else; rewards of a file: --plugin FILE.py"
            )
        elif unknown != message:
            known = [flag for action in self._actions for flag in action.option_strings]
            message = f"unknown option {unknown.split()[0]}: {nearest(unknown.split()[0], known)}"
        raise ConfigError(message)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="grpo-reward serve",
        description="Serve rewards over HTTP. Every option is also an environment variable: GRPO_REWARD_PORT=8001.",
        epilog="An answer holds 32 MiB of log columns, metrics and details, all answers at once 256 MiB; beyond that"
        " scores come without them. A request has at most 64 x --max-samples scores.",
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    for name, field in Settings.model_fields.items():
        several = field.default_factory is list
        default = field.get_default()
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            help=field.description if several or default in (None, "") else f"{field.description} (default: {default})",
            metavar=METAVARS.get(name, name.rsplit("_", 1)[-1].upper()),
            **({"nargs": "+", "action": "extend"} if several else {}),  # type: ignore[arg-type]
        )
    return parser
