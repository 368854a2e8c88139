"""Where the scores come from: worker processes of our own, with the server's machinery, or a server that runs."""

import argparse
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from pydantic import ValidationError

from grpo_proto import (
    ErrorDetail,
    RewardClient,
    RewardDescription,
    RewardSpec,
    ScoreRequest,
    ScoreResponse,
    ServiceError,
)

from ..config import ConfigError, Settings
from ..executors import process
from ..executors.base import Chunk, Executor, ExecutorUnavailable, LoadedReward
from ..executors.environment import hide_this_process
from ..executors.wrapped import WrappedExecutor
from ..metrics import Metrics
from ..refusal import Refusal, nearest
from ..scoring import Scoring
from ..server import make_executor
from .options import CommandFailed

_told: set[str] = set()

RETRY_FOR_S = 30.0
"""How long a server that is away or busy is asked again."""
WRONG_USAGE = {"unknown_reward", "unknown_param", "missing_param", "invalid_param"}
"""Refusals of a request that are about what the user typed."""


@dataclass(frozen=True)
class KnownReward:
    """A reward as its users see it. What a running server does not tell is None."""

    description: RewardDescription
    loaded: LoadedReward | None

    @property
    def batch(self) -> bool:
        return self.description.batch


class Scorer(Protocol):
    """`score` raises ConfigError for what the user typed and CommandFailed for everything else."""

    place: str
    """For people: where the rewards run."""
    workers: int

    @property
    def rewards(self) -> Mapping[str, KnownReward]: ...

    @property
    def inside(self) -> "Inside | None":
        """Time spent in the rewards; None when it cannot be known."""

    async def score(self, request: ScoreRequest) -> ScoreResponse: ...


@dataclass
class Inside:
    """What the workers measured around the rewards' own code."""

    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    scores: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))


@asynccontextmanager
async def open_scorer(options: argparse.Namespace, *, workers: int | None = None) -> AsyncIterator[Scorer]:
    """The scorer that the flags ask for. `workers` wins over the flag. Raises ConfigError and CommandFailed."""
    if options.url is not None:
        async with RewardClient(options.url) as client:
            try:
                yield await RemoteScorer.connect(client)
            except ServiceError as error:
                raise failure(error.detail, where=options.url) from error
        return
    settings = local_settings(options)
    hide_this_process()
    process.notices.addFilter(_told_once)  # some commands load the rewards twice
    metrics = Metrics()
    try:
        executor = make_executor(settings.model_copy(update={"workers": workers}) if workers else settings, metrics)
        await executor.start()
    except ExecutorUnavailable as error:
        raise CommandFailed(str(error)) from None
    try:
        yield LocalScorer(executor, metrics)
    finally:
        await executor.stop()


def _told_once(record: logging.LogRecord) -> bool:
    text = record.getMessage()
    known = text in _told
    _told.add(text)
    return not known


def local_settings(options: argparse.Namespace) -> Settings:
    """The server's settings as far as rewards see them: from the environment and the flags. Raises ConfigError.

    No memo: what is to be tested or timed is the reward, not what is remembered of it. Host and port are not used.
    """
    flags = {name: value for name in ("plugin", "workers") if (value := getattr(options, name)) is not None}
    values: dict[str, Any] = {"host": "127.0.0.1", "port": 0, "memo": 0, **flags}
    try:
        return Settings(**values)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        name = str(problem["loc"][0])
        where = f"--{name}" if name in flags else f"GRPO_REWARD_{name.upper()}"
        raise ConfigError(f"{where}: {problem['msg']}, not {problem['input']!r}") from None


class LocalScorer:
    """The server without HTTP: the same worker processes, limits and deadlines."""

    def __init__(self, executor: Executor, metrics: Metrics):
        self._executor = _Measured(executor)
        # The limit of a server protects it from its clients; here there is one, and the file is on its own disk.
        self._scoring = Scoring(self._executor, metrics)
        self.workers = executor.workers
        self.place = f"here, {executor.workers} worker{'s' if executor.workers > 1 else ''}"
        self._rewards = {name: KnownReward(loaded.description, loaded) for name, loaded in executor.rewards.items()}

    @property
    def rewards(self) -> Mapping[str, KnownReward]:
        return self._rewards

    @property
    def inside(self) -> Inside:
        return self._executor.inside

    async def score(self, request: ScoreRequest) -> ScoreResponse:
        try:
            return await self._scoring.score(request)
        except Refusal as refusal:
            raise failure(refusal.body.error) from None


class RemoteScorer:
    """A server that runs."""

    inside: Inside | None = None

    def __init__(self, client: RewardClient, rewards: Sequence[RewardDescription], workers: int):
        self._client = client
        self.workers = workers
        self.place = f"{client.base_url}, {workers} worker{'s' if workers > 1 else ''}"
        self._rewards = {reward.name: KnownReward(reward, None) for reward in rewards}

    @property
    def rewards(self) -> Mapping[str, KnownReward]:
        return self._rewards

    @classmethod
    async def connect(cls, client: RewardClient) -> "RemoteScorer":
        """Raises ServiceError."""
        info = await client.info()
        return cls(client, (await client.rewards()).rewards, info.workers)

    async def score(self, request: ScoreRequest) -> ScoreResponse:
        try:
            return await self._client.score(request, retry_for_s=RETRY_FOR_S)
        except ServiceError as error:
            raise failure(error.detail, where=self._client.base_url) from error


class _Measured(WrappedExecutor):
    """Adds up what the workers measured."""

    def __init__(self, executor: Executor):
        super().__init__(executor)
        self.inside = Inside()

    async def score(self, chunk: Chunk) -> None:
        await super().score(chunk)
        for name, seconds in chunk.seconds.items():
            self.inside.seconds[name] += seconds
            self.inside.scores[name] += len(chunk.samples)


def failure(detail: ErrorDetail, *, where: str = "") -> ConfigError | CommandFailed:
    message = f"{where}: {detail.message}" if where else detail.message
    hint = detail.hint
    if detail.type == "invalid_param":
        reward = detail.message.removeprefix("params of ").partition(":")[0]
        hint = f"grpo-reward list {reward} shows their types"
    if hint:
        message += f" ({hint})"
    return ConfigError(message) if detail.type in WRONG_USAGE else CommandFailed(message)


def known_reward(scorer: Scorer, name: str) -> KnownReward:
    """Raises ConfigError that names the nearest one."""
    if name not in scorer.rewards:
        raise ConfigError(f"there is no reward {name}: {nearest(name, scorer.rewards)}")
    return scorer.rewards[name]


def known_rewards(scorer: Scorer, specs: Sequence[RewardSpec]) -> list[KnownReward]:
    """Raises ConfigError for an unknown reward, and for one that lacks a param."""
    known = [known_reward(scorer, spec.name) for spec in specs]
    for spec, reward in zip(specs, known, strict=True):
        required = reward.description.params_schema.get("required", [])
        if missing := [name for name in required if name not in spec.params]:
            flags = " ".join(f"--param {spec.name}.{name}=VALUE" for name in missing)
            raise ConfigError(f"{spec.name} needs {' and '.join(missing)}: add {flags} (grpo-reward list {spec.name})")
    return known
